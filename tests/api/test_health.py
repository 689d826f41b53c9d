"""GET /healthz, /readyz and /metrics."""

from __future__ import annotations

import httpx

from everbeat.api.app import ApiContext, Health
from everbeat.core.errors import StoreUnavailable
from tests.api.conftest import make_client, problem_of


async def test_a_running_process_is_healthy(client: httpx.AsyncClient) -> None:
    response = await client.get("/healthz")

    assert (response.status_code, response.json()) == (200, {"status": "ok", "loops": {"ticker": 0.1}})


async def test_a_stuck_process_is_not_healthy(context: ApiContext) -> None:
    async with make_client(context._replace(health=lambda: Health(False, {"loops": {"ticker": 99.0}}))) as client:
        response = await client.get("/healthz")

    assert (response.status_code, response.json()["status"]) == (503, "stuck")
    assert response.headers["retry-after"] == "1"


async def test_a_server_with_a_database_is_ready(client: httpx.AsyncClient) -> None:
    response = await client.get("/readyz")

    assert (response.status_code, response.json()) == (200, {"status": "ok", "database": "ok"})


async def test_a_server_without_a_database_is_not_ready(context: ApiContext) -> None:
    async def not_ready() -> Health:
        return Health(False, {"database": "unavailable"})

    async with make_client(context._replace(ready=not_ready)) as client:
        response = await client.get("/readyz")

    assert (response.status_code, response.json()) == (503, {"status": "unready", "database": "unavailable"})


async def test_an_unavailable_database_is_503(context: ApiContext) -> None:
    async def unavailable() -> Health:
        raise StoreUnavailable("unavailable")

    async with make_client(context._replace(ready=unavailable)) as client:
        problem_of(await client.get("/readyz"), 503)


async def test_metrics_are_in_the_prometheus_text_format(client: httpx.AsyncClient) -> None:
    response = await client.get("/metrics")

    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert response.content == b"# HELP everbeat_up Up.\n"
