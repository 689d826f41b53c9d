"""/ping/{token}: the forms of Healthchecks, without an API key."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import httpx
import pytest
import structlog.testing

from everbeat.api.app import ApiContext
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.access import Authenticator
from everbeat.services.check_changes import CheckPublisher
from everbeat.services.pings import PingService
from everbeat.services.rate_limits import RequestLimits, RequestRates
from everbeat.services.sessions import KeySessions
from everbeat.store.base import Store
from tests.api.conftest import ON_BOTH_STORES, make_client, problem_of
from tests.api.test_checks import put, read


@pytest.fixture
async def path(client: httpx.AsyncClient) -> str:
    """The path of the ping URL of a check."""
    url: str = (await put(client))["ping_url"]
    return "/ping/" + url.rpartition("/")[2]


async def pings(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await read(client, "/pings"))["items"]
    return items


@ON_BOTH_STORES
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_every_form_is_accepted_without_a_key(
    client: httpx.AsyncClient, context: ApiContext, store: Store, path: str, method: str
) -> None:
    forms = {"": "success", "/start": "start", "/fail": "fail", "/log": "log", "/0": "success", "/1": "fail", "/255": "fail"}
    async with make_client(context._replace(access=Authenticator(store, KeySessions(), is_required=True))) as outside:
        for form in forms:
            response = await outside.request(method, f"{path}{form}")
            assert (response.status_code, response.text) == (200, "" if method == "HEAD" else "OK")
            assert response.headers["content-type"] == "text/plain; charset=utf-8"
            assert response.headers["ping-body-limit"] == "10000"
    found = await pings(client)
    assert [one["kind"] for one in reversed(found)] == list(forms.values())
    assert {one["method"] for one in found} == {method}
    assert [one["exit_status"] for one in reversed(found)] == [None, None, None, None, 0, 1, 255]


@pytest.mark.parametrize("form", ["/256", "/-1", "/done", "/1.5", "/start/now", "/٣"])
async def test_other_forms_are_not_found(client: httpx.AsyncClient, path: str, form: str) -> None:
    problem_of(await client.get(f"{path}{form}"), 404)
    assert await pings(client) == []


@pytest.mark.parametrize(
    "token",
    ["9f3a1c52-7d0e-4b61-8a2f-0c5e6d7b8a90", "x", "a" * 36, "00000000-0000-0000-0000-00000000000g", "my-project/backup"],
)
async def test_an_unknown_token_is_not_found(client: httpx.AsyncClient, path: str, token: str) -> None:
    detail = problem_of(await client.post(f"/ping/{token}", content=b"x"), 404)["detail"]
    assert token not in detail


async def test_the_token_is_accepted_in_capital_letters(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get("/ping/" + path.rpartition("/")[2].upper())).status_code == 200


async def test_run_ids_tell_overlapping_runs_apart(client: httpx.AsyncClient, path: str) -> None:
    one, two = uuid4(), uuid4()
    for form, rid in (("/start", one), ("/start", two), ("", one), ("/0", two), ("", uuid4())):
        assert (await client.get(f"{path}{form}?rid={rid}&create=1")).status_code == 200
    found = await pings(client)
    assert [one["rid"] for one in reversed(found)][:4] == [str(one), str(two), str(one), str(two)]
    assert [one["duration_ms"] is None for one in reversed(found)] == [True, True, False, False, True]
    problem_of(await client.get(f"{path}?rid=7"), 400)
    problem_of(await client.get(f"{path}?rid=%00"), 400)


@ON_BOTH_STORES
async def test_the_beginning_of_a_large_body_is_kept(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.post(path, content=b"a" * 9_999 + b"\xc3\xa4" + b"b" * 990_000)).status_code == 200
    (found,) = await pings(client)
    assert (len(found["body"]), found["body"][-1], found["body_bytes"]) == (10_000, "\ufffd", 1_000_001)


async def test_a_body_above_the_limit_of_the_server_is_refused(client: httpx.AsyncClient, path: str) -> None:
    problem_of(await client.post(path, content=b"a" * (12 * 1024 * 1024 + 1)), 413)


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "text/plain; charset=latin-1"},
        {"Content-Encoding": "gzip"},
        {"User-Agent": "runitor/1.4 \x7f" + "x" * 500},
    ],
)
async def test_a_body_of_any_type_is_accepted(client: httpx.AsyncClient, path: str, headers: dict[str, str]) -> None:
    assert (await client.post(path, content=b"{not json", headers=headers)).status_code == 200
    (found,) = await pings(client)
    assert found["body"] == "{not json"
    assert len(found["user_agent"] or "") <= 200


async def test_an_empty_body_is_no_body(client: httpx.AsyncClient, path: str) -> None:
    await client.post(path)
    (found,) = await pings(client)
    assert (found["body"], found["body_bytes"]) == (None, 0)


async def test_a_check_with_too_many_pings_is_limited(client: httpx.AsyncClient, context: ApiContext, path: str) -> None:
    limited = PingService(context.store, context.timelines, CheckPublisher(), per_second=0.05)
    async with make_client(context._replace(pings=limited)) as client:
        statuses = [(await client.get(path)).status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        assert int((await client.get(path)).headers["retry-after"]) > 1
        other = await put(client, "other")
        assert (await client.get("/ping/" + other["ping_url"].rpartition("/")[2])).status_code == 200


async def test_an_address_with_too_many_requests_is_limited(context: ApiContext, store: Store, path: str) -> None:
    limits = RequestLimits(RequestRates(per_address=1.0))
    access = Authenticator(store, KeySessions(), limits, is_required=True)
    async with make_client(context._replace(access=access)) as outside:
        statuses = [(await outside.get(path)).status_code for _ in range(5)]
    assert statuses == [200, 200, 429, 429, 429]


@ON_BOTH_STORES
async def test_pings_that_arrive_together_are_all_stored(client: httpx.AsyncClient, path: str) -> None:
    responses = await asyncio.gather(*(client.get(path) for _ in range(40)))
    assert {response.status_code for response in responses} == {200}
    assert [one["number"] for one in await pings(client)] == list(range(40, 0, -1))


@ON_BOTH_STORES
async def test_two_nodes_that_get_pings_at_the_same_time_lose_none(
    context: ApiContext, client: httpx.AsyncClient, path: str
) -> None:
    nodes = [PingService(context.store, context.timelines, CheckPublisher()) for _ in range(3)]
    contexts = [context._replace(pings=node) for node in nodes]
    clients = [make_client(one) for one in contexts]
    try:
        responses = await asyncio.gather(*(one.get(path) for one in clients for _ in range(8)))
    finally:
        for one in clients:
            await one.aclose()
    assert {response.status_code for response in responses} == {200}
    assert (await read(client))["ping_count"] == 24


async def test_a_failed_request_is_logged_without_the_token(context: ApiContext, path: str) -> None:
    class Broken:
        async def accept(self, _token: str, _ping: object) -> None:
            raise RuntimeError("broken")

    async with make_client(context._replace(pings=Broken())) as client:  # type: ignore[arg-type]
        with structlog.testing.capture_logs() as logs:
            problem_of(await client.get(f"{path}/start"), 500)
    assert [entry["path"] for entry in logs] == ["/ping/***"]
    assert path.rpartition("/")[2] not in str({**logs[0], "exc_info": None})


async def test_a_node_that_may_not_write_refuses_even_a_get(context: ApiContext, path: str) -> None:
    from everbeat.core.errors import SchemaTooNew

    def refuse() -> None:
        raise SchemaTooNew("newer")

    async with make_client(context._replace(check_schema=refuse)) as client:
        problem_of(await client.get(path), 503)


async def test_a_ping_belongs_to_the_tenant_of_its_check(client: httpx.AsyncClient, context: ApiContext, path: str) -> None:
    await client.get(path)
    check = (await context.checks.get(DEFAULT_TENANT, "backup")).check
    (found,) = await context.checks.pings(check, before=None, limit=5)
    assert found.number == 1
