"""The routes with a second door: what they answer is the same at both, and the gate stands before either."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from everbeat.api import tasks, workers
from everbeat.api.app import ApiContext, build_app
from everbeat.core.errors import StoreRefused, StoreUnavailable, StoreUnusable
from tests.api.conftest import make_client, problem_of, submit

LEASE = {"id": str(uuid4()), "fence": 1}
BODIES: dict[str, Any] = {
    "/v1/tasks": {"type": "a"},
    "/v1/tasks/batch": {"tasks": [{"type": "a"}]},
    "/v1/worker/claim": {"worker": "w", "queues": ["nothing"]},
    "/v1/worker/heartbeat": {"worker": "w", "leases": [LEASE]},
    "/v1/worker/complete": {"worker": "w", "results": [LEASE]},
    "/v1/worker/fail": {"worker": "w", "failures": [{**LEASE, "error": {"message": "no"}}]},
    "/v1/worker/release": {"worker": "w", "leases": [LEASE]},
}


def test_every_hot_route_is_known_to_the_framework_too(context: ApiContext) -> None:
    hot = {**tasks.HOT, **workers.HOT}

    assert hot.keys() == BODIES.keys()
    assert hot.keys() <= {route.path for route in build_app(context).routes}


@pytest.mark.parametrize("path", BODIES)
async def test_both_doors_answer_alike(client: httpx.AsyncClient, path: str) -> None:
    hot = await client.post(path, json=BODIES[path])
    other = await client.post(f"{path}/", json=BODIES[path])

    assert hot.status_code == other.status_code == (201 if path == "/v1/tasks" else 200)
    assert hot.json().keys() == other.json().keys()
    for name in ("content-type", "cache-control", "x-content-type-options"):
        assert hot.headers[name] == other.headers[name]
    assert ("location" in hot.headers) == ("location" in other.headers)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("status", "more"),
    [
        (400, {"content": b"{", "headers": {"Content-Type": "application/json"}}),
        (400, {}),
        (415, {"content": b"{}"}),
        (415, {"content": b"{}", "headers": {"Content-Type": "text/plain"}}),
        (415, {"content": b"{}", "headers": {"Content-Type": "application/json", "Content-Encoding": "gzip"}}),
        (413, {"content": b"{}", "headers": {"Content-Type": "application/json", "Content-Length": "99999999999"}}),
        (400, {"content": b"{}", "headers": {"Content-Type": "application/json", "Content-Length": "x"}}),
        (422, {"json": {"colour": "red"}}),
        (422, {"json": [], "params": {}}),
    ],
)
async def test_both_doors_refuse_alike(client: httpx.AsyncClient, path: str, status: int, more: dict[str, Any]) -> None:
    first = problem_of(await client.post(path, **more), status)
    second = problem_of(await client.post(f"{path}/", **more), status)
    del first["request_id"], second["request_id"]

    assert first == second


@pytest.mark.parametrize("path", BODIES)
async def test_the_middleware_checks_both_paths(client: httpx.AsyncClient, path: str) -> None:
    for door in (path, f"{path}/"):
        problem_of(await client.post(door, json=BODIES[path], headers={"Host": "evil.example"}), 403)
        problem_of(await client.post(door, json=BODIES[path], headers={"Origin": "http://evil.example"}), 403)
    assert (await client.get("/v1/tasks")).json()["items"] == []


@pytest.mark.parametrize("path", BODIES)
async def test_other_methods_are_not_allowed(client: httpx.AsyncClient, path: str) -> None:
    for method in ("PUT", "PATCH", "DELETE"):
        assert "POST" in (await client.request(method, path)).headers["allow"]
    assert "POST" in (await client.options(path)).headers["allow"]


async def test_a_request_has_an_id(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/tasks", json={"type": "a"}, headers={"X-Request-Id": "mine"})
    assert response.headers["x-request-id"] == "mine"
    assert UUID((await client.post("/v1/tasks", json={"type": "a"})).headers["x-request-id"]).version == 7


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StoreUnavailable("gone"), 503),
        (StoreUnusable("damaged"), 503),
        (StoreRefused("no"), 409),
        (RuntimeError("secret detail"), 500),
    ],
)
@pytest.mark.parametrize("door", ["/v1/tasks", "/v1/tasks/"])
async def test_a_store_that_fails_is_a_problem_without_internals(
    context: ApiContext, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, door: str
) -> None:
    async def fails(*_: Any, **__: Any) -> Any:
        raise error

    async with make_client(context) as client:
        monkeypatch.setattr(context.tasks, "submit", fails)
        response = await client.post(door, json={"type": "a"})
        assert "secret" not in response.text
        problem_of(response, status)
        assert ("retry-after" in response.headers) == (status == 503)
        monkeypatch.undo()
        await submit(client)
