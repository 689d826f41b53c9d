"""The route table: exact paths and paths matched by segment have the same responses and the same checks."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from everbeat.api.app import ROUTES, ApiContext
from everbeat.api.operations import Operation
from everbeat.api.routing import Route, Router
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


@pytest.mark.parametrize("path", BODIES)
async def test_a_trailing_slash_makes_no_difference_to_the_response(client: httpx.AsyncClient, path: str) -> None:
    exact = await client.post(path, json=BODIES[path])
    other = await client.post(f"{path}/", json=BODIES[path])

    assert exact.status_code == other.status_code == (201 if path == "/v1/tasks" else 200)
    assert exact.json().keys() == other.json().keys()
    for name in ("content-type", "cache-control", "x-content-type-options"):
        assert exact.headers[name] == other.headers[name]
    assert ("location" in exact.headers) == ("location" in other.headers)


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
        (422, {"json": {"color": "red"}}),
        (422, {"json": [], "params": {}}),
    ],
)
async def test_a_trailing_slash_makes_no_difference_to_a_refusal(
    client: httpx.AsyncClient, path: str, status: int, more: dict[str, Any]
) -> None:
    first = problem_of(await client.post(path, **more), status)
    second = problem_of(await client.post(f"{path}/", **more), status)
    del first["request_id"], second["request_id"]

    assert first == second


@pytest.mark.parametrize("path", BODIES)
async def test_the_middleware_checks_both_paths(client: httpx.AsyncClient, path: str) -> None:
    for variant in (path, f"{path}/"):
        problem_of(await client.post(variant, json=BODIES[path], headers={"Host": "evil.example"}), 403)
        problem_of(await client.post(variant, json=BODIES[path], headers={"Origin": "http://evil.example"}), 403)
    assert (await client.get("/v1/tasks")).json()["items"] == []


@pytest.mark.parametrize("path", BODIES)
async def test_other_methods_are_not_allowed(client: httpx.AsyncClient, path: str) -> None:
    for method in ("PUT", "PATCH", "DELETE"):
        assert "POST" in (await client.request(method, path)).headers["allow"]
    assert "POST" in (await client.options(path)).headers["allow"]


async def test_a_literal_segment_takes_precedence_over_a_parameter(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/schedules/batch")).status_code == 405
    problem_of(await client.get("/v1/schedules/batches"), 404)


async def test_head_is_like_get_without_a_body(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    paths = sorted({route.path for route in ROUTES if route.method == "GET"} - {"/v1/events"})
    for path in (*(path for path in paths if "{" not in path), f"/v1/tasks/{task['id']}"):
        get, head = await client.get(path), await client.head(path)
        assert (head.status_code, head.content) == (get.status_code, b""), path
        assert head.headers["content-type"] == get.headers["content-type"]
        if path not in ("/v1/cluster", "/v1/audit", "/v1/queues"):  # these contain times or ages, which differ in length
            assert head.headers["content-length"] == str(len(get.content)), path


async def test_head_of_the_event_stream_ends_immediately(client: httpx.AsyncClient) -> None:
    response = await client.head("/v1/events")

    assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")


async def test_head_of_an_unknown_path_is_not_found(client: httpx.AsyncClient) -> None:
    response = await client.head("/v1/tasks/no-such-task")

    assert (response.status_code, response.content) == (404, b"")
    assert (await client.head("/v1/preview")).status_code == 405


def test_two_routes_of_one_path_and_method_are_refused() -> None:
    operation = Operation(id="a", tag="a", summary="a", responses={})
    route = Route("GET", "/a/{x}", operation, ROUTES[0].handle)

    for other in (route, route._replace(method="POST", path="/a/{y}")):
        with pytest.raises(ValueError):
            Router([route, other])


async def test_a_request_has_an_id(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/tasks", json={"type": "a"}, headers={"X-Request-Id": "mine"})
    assert response.headers["x-request-id"] == "mine"
    assert UUID((await client.post("/v1/tasks", json={"type": "a"})).headers["x-request-id"]).version == 7


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StoreUnavailable("unavailable"), 503),
        (StoreUnusable("damaged"), 503),
        (StoreRefused("no"), 409),
        (RuntimeError("secret detail"), 500),
    ],
)
@pytest.mark.parametrize("path", ["/v1/tasks", "/v1/tasks/"])
async def test_a_failing_store_is_a_problem_without_internals(
    context: ApiContext, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, path: str
) -> None:
    async def fails(*_: Any, **__: Any) -> Any:
        raise error

    async with make_client(context) as client:
        monkeypatch.setattr(context.tasks, "submit", fails)
        response = await client.post(path, json={"type": "a"})
        assert "secret" not in response.text
        problem_of(response, status)
        assert ("retry-after" in response.headers) == (status == 503)
        monkeypatch.undo()
        await submit(client)
