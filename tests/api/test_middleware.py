"""Checks of every request: the request id, the response headers, and the allowed hosts and origins."""

from __future__ import annotations

from uuid import UUID

import httpx
import pytest

from everbeat.api.app import ApiContext
from tests.api.conftest import definition, make_client, problem_of


@pytest.mark.parametrize("path", ["/healthz", "/v1/schedules", "/nothing"])
async def test_every_response_has_a_request_id(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path)

    assert UUID(response.headers["x-request-id"]).version == 7
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_the_request_id_of_the_client_is_used(client: httpx.AsyncClient) -> None:
    response = await client.get("/nothing", headers={"X-Request-Id": "trace-1.a_B"})

    assert problem_of(response, 404)["request_id"] == "trace-1.a_B"


@pytest.mark.parametrize("id_", ["", "a b", "x" * 101, "<script>", "ä"])
async def test_an_unsafe_request_id_is_replaced(client: httpx.AsyncClient, id_: str) -> None:
    response = await client.get("/healthz", headers=httpx.Headers({"X-Request-Id": id_}, "latin-1"))

    assert UUID(response.headers["x-request-id"])


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:9"])
async def test_loopback_hosts_are_accepted(client: httpx.AsyncClient, host: str) -> None:
    assert (await client.get("/healthz", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8080", "", "localhost:x", "[::1"),
        *("evil@localhost", "localhost/", "localhost:80:80", "2130706433", "0.0.0.0", "[::]", "127.0.0.1, evil"),
    ],
)
@pytest.mark.parametrize("path", ["/healthz", "/v1/schedules", "/nothing"])
async def test_another_host_is_refused(client: httpx.AsyncClient, host: str, path: str) -> None:
    problem_of(await client.get(path, headers={"Host": host}), 403)


async def test_two_hosts_are_refused(client: httpx.AsyncClient) -> None:
    headers = [("Host", "localhost"), ("Host", "evil.example")]
    problem_of(await client.get("/healthz", headers=headers), 403)


async def test_configured_hosts_are_accepted(context: ApiContext) -> None:
    async with make_client(context._replace(allowed_hosts=frozenset({"everbeat.internal", "[fd00::1]"}))) as client:
        for host in ("everbeat.internal:8080", "localhost", "[fd00::1]:80"):
            assert (await client.get("/healthz", headers={"Host": host})).status_code == 200
        problem_of(await client.get("/healthz", headers={"Host": "evil.example"}), 403)


async def test_without_a_list_every_host_is_accepted(context: ApiContext) -> None:
    async with make_client(context._replace(allowed_hosts=None)) as client:
        headers = {"Host": "everbeat.example", "Origin": "https://elsewhere.example"}
        assert (await client.put("/v1/calendars/a", json={}, headers=headers)).status_code == 201


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://localhost:3000", "https://localhost:8081", "http://localhost", "x", "http://["],
)
async def test_a_change_from_another_origin_is_refused(client: httpx.AsyncClient, origin: str) -> None:
    headers = {"Origin": origin}
    problem_of(await client.post("/v1/schedules", json=definition(), headers=headers), 403)
    problem_of(await client.delete("/v1/schedules/nightly", headers=headers), 403)
    assert (await client.get("/v1/schedules", headers=headers)).json()["items"] == []


@pytest.mark.parametrize("host", ["localhost:8080", "localhost", "[::1]:8080"])
async def test_a_change_from_the_same_origin_is_accepted(client: httpx.AsyncClient, host: str) -> None:
    headers = {"Origin": f"http://{host}", "Host": host}
    assert (await client.post("/v1/schedules", json=definition(), headers=headers)).status_code == 201
