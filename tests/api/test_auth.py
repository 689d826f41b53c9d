"""Keys at the API: what they allow, what their revocation ends, request limits, and an unavailable database."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx
import pytest

from everbeat.api.app import ApiContext, openapi_documents
from everbeat.api.messages import NO_CONTENT, ApiRequest, Response
from everbeat.api.middleware import RequestMiddleware
from everbeat.core.addresses import parse_networks
from everbeat.core.errors import StoreUnavailable
from everbeat.core.keys import make_key
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.access import Authenticator
from everbeat.services.events import Event, RequestRefused
from everbeat.services.keys import KeyService
from everbeat.services.rate_limits import RequestLimits, RequestRates
from everbeat.services.sessions import KeySessions
from everbeat.store.base import Store
from everbeat.store.values import ClaimRequest, Notice
from tests.api.conftest import claim, definition, make_client, problem_of, submit
from tests.factories import claim_for, lease_of
from tests.support.processes import wait_until_async

Headers = dict[str, str]


@pytest.fixture
def access(store: Store) -> Authenticator:
    return Authenticator(store, KeySessions(), is_required=True)


@pytest.fixture
async def client(context: ApiContext, access: Authenticator) -> AsyncIterator[httpx.AsyncClient]:
    async with make_client(context._replace(access=access)) as client:
        yield client


async def key_of(store: Store, *scopes: str, **more: Any) -> tuple[UUID, Headers]:
    key, text = await KeyService(store).create(DEFAULT_TENANT, "test", scopes, **more)
    return key.id, {"Authorization": f"Bearer {text}"}


class FailingStore:
    """A store whose key queries always fail."""

    def __init__(self, error: Exception) -> None:
        self.key_queries = 0
        self._error = error

    async def key_find(self, **_wanted: Any) -> Any:
        self.key_queries += 1
        raise self._error

    def subscribe(self, _listener: Any) -> None: ...


async def test_a_key_allows_what_its_scope_includes(client: httpx.AsyncClient, store: Store) -> None:
    _, headers = await key_of(store, "manage")
    assert (await client.post("/v1/schedules", json=definition(), headers=headers)).status_code == 201
    problem = problem_of(await client.post("/v1/worker/claim", json={"worker": "w", "queues": ["a"]}, headers=headers), 403)
    assert problem["detail"] == "This operation requires an API key with the scope work; this key has manage."


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer "])
async def test_the_scheme_is_case_insensitive(client: httpx.AsyncClient, store: Store, scheme: str) -> None:
    _, headers = await key_of(store, "read")
    text = headers["Authorization"].split()[1]
    assert (await client.get("/v1/schedules", headers={"Authorization": f"{scheme} {text}"})).status_code == 200


async def test_a_key_for_certain_queues_claims_only_from_them(client: httpx.AsyncClient, store: Store) -> None:
    _, headers = await key_of(store, "submit", "work:mail", "work:sms")
    client.headers.update(headers)
    await submit(client, queue="mail")
    assert len(await claim(client, "mail", "sms")) == 1
    for queues in (["default"], ["mail", "default"]):
        problem = problem_of(await client.post("/v1/worker/claim", json={"worker": "w", "queues": queues}), 403)
        assert "may work on mail, sms, but not on the queue default" in problem["detail"]


@pytest.mark.parametrize("path", ["/v1/schedules?key={}", "/v1/schedules?limit=1&a={}&b=1", "/v1/schedules/{}", "/{}"])
async def test_a_key_in_the_url_is_refused_even_with_a_valid_header(client: httpx.AsyncClient, store: Store, path: str) -> None:
    _, headers = await key_of(store, "read")
    response = await client.get(path.format(headers["Authorization"].split()[1]), headers=headers)
    assert "Revoke this key" in problem_of(response, 401)["detail"]
    assert "eb_" not in response.text.replace("eb_…", "")


async def test_a_presented_key_is_checked_even_if_none_is_required(context: ApiContext, store: Store) -> None:
    async with make_client(context._replace(access=Authenticator(store, KeySessions()))) as client:
        assert (await client.get("/v1/schedules")).status_code == 200
        problem_of(await client.get("/v1/schedules", headers={"Authorization": "Bearer eb_x"}), 401)
        _, headers = await key_of(store, "submit")
        problem_of(await client.get("/v1/schedules", headers=headers), 403)
        problem_of(await client.get("/v1/schedules", headers={"Host": "evil.example"}), 403)


async def test_with_a_key_any_host_and_origin_is_accepted(client: httpx.AsyncClient, store: Store) -> None:
    _, headers = await key_of(store, "read")
    other_host = {**headers, "Host": "everbeat.example", "Origin": "https://other.example"}
    assert (await client.post("/v1/preview", json={"cron": "* * * * *"}, headers=other_host)).status_code == 200


async def test_a_request_has_its_caller(client: httpx.AsyncClient, store: Store, context: ApiContext) -> None:
    """The audit log is written from these fields."""
    id_, headers = await key_of(store, "admin")
    seen: list[Any] = []

    async def handle(request: ApiRequest) -> Response:
        seen.append(request.caller)
        return NO_CONTENT

    access = Authenticator(store, KeySessions(), is_required=True)
    app: Any = RequestMiddleware(handle, context._replace(access=access), openapi_documents())

    transport = httpx.ASGITransport(app, client=("192.0.2.7", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as direct:
        await direct.get("/anything", headers={**headers, "X-Request-Id": "trace-1"})
    assert (seen[0].key_id, seen[0].actor) == (id_, "test")
    assert (seen[0].request_id, seen[0].address) == ("trace-1", "192.0.2.7")


# Open requests


async def test_revoking_a_key_ends_its_long_polls_without_a_task(
    client: httpx.AsyncClient, store: Store, access: Authenticator
) -> None:
    id_, headers = await key_of(store, "work")
    _, other = await key_of(store, "work", "submit")
    polls = [
        asyncio.create_task(
            client.post("/v1/worker/claim", json={"worker": "w", "queues": ["default"], "wait_seconds": 30}, headers=one)
        )
        for one in (headers, other)
    ]
    await wait_until_async(lambda: len(access.sessions.key_ids()) == 2)
    await KeyService(store).revoke(id_)
    await access.run_once()
    async with asyncio.timeout(10):
        problem_of(await polls[0], 401)
    assert not polls[1].done()
    client.headers.update(other)
    await submit(client)
    async with asyncio.timeout(10):
        assert len((await polls[1]).json()["tasks"]) == 1


async def test_a_repeated_key_shows_a_submit_key_no_result(client: httpx.AsyncClient, store: Store) -> None:
    shown = {}
    for scope in ("submit", "manage"):
        _, headers = await key_of(store, scope)
        headers["Idempotency-Key"] = "same"
        client.headers.pop("authorization", None)
        first = await client.post("/v1/tasks", json={"type": "a"}, headers=headers)
        if scope == "submit":
            ((claimed,),) = await claim_for(store, ["default"], [ClaimRequest("worker", 1, 30)])
            await store.task_complete([(lease_of(claimed), '{"secret":1}')])
        else:
            assert first.status_code == 200
        again = await client.post("/v1/tasks", json={"type": "a"}, headers=headers)
        assert again.status_code == 200
        shown[scope] = again.json()
    assert shown["submit"]["state"] == "completed"
    assert (shown["submit"]["result"], shown["submit"]["worker"]) == (None, None)
    assert (shown["manage"]["result"], shown["manage"]["worker"]) == ({"secret": 1}, "worker")


# Limits


async def test_a_key_above_its_rate_gets_429_with_retry_after(context: ApiContext, store: Store) -> None:
    access = Authenticator(store, KeySessions(), RequestLimits(RequestRates(per_key=1)), is_required=True)
    _, headers = await key_of(store, "read")
    async with make_client(context._replace(access=access)) as client:
        responses = [await client.get("/v1/schedules", headers=headers) for _ in range(4)]
    assert [one.status_code for one in responses[:2]] == [200, 200]
    problem = problem_of(responses[-1], 429)
    assert problem["type"].endswith(":rate-limited")
    assert int(responses[-1].headers["retry-after"]) == 1


async def test_a_key_may_have_a_limited_number_of_long_polls(context: ApiContext, store: Store) -> None:
    access = Authenticator(store, KeySessions(), RequestLimits(max_polls_per_key=2), is_required=True)
    _, headers = await key_of(store, "work")
    _, other = await key_of(store, "work")
    claim = {"worker": "w", "queues": ["default"]}
    async with make_client(context._replace(access=access)) as client:
        polls = [
            asyncio.create_task(client.post("/v1/worker/claim", json={**claim, "wait_seconds": 30}, headers=headers))
            for _ in range(2)
        ]
        async with asyncio.timeout(10):
            while sum(access.limits._open_polls.values()) < 2:
                await asyncio.sleep(0.001)
        refused = await client.post("/v1/worker/claim", json={**claim, "wait_seconds": 1}, headers=headers)
        assert problem_of(refused, 429)["type"].endswith(":rate-limited")
        assert refused.headers["retry-after"] == "5"
        for more in ({"headers": headers}, {"headers": other, "json": {**claim, "wait_seconds": 0.01}}):
            assert (await client.post("/v1/worker/claim", **{"json": claim, **more})).status_code == 200  # type: ignore[arg-type]
        await context.leases._long_polls.close()
        assert [(await poll).status_code for poll in polls] == [200, 200]
    assert access.limits._open_polls == {}


async def test_an_address_above_its_rate_is_refused_without_a_key_query(context: ApiContext) -> None:
    store = FailingStore(StoreUnavailable("unavailable"))
    access = Authenticator(store, KeySessions(), RequestLimits(RequestRates(per_address=1)), is_required=True)  # type: ignore[arg-type]
    access.trusted_proxies = parse_networks(["127.0.0.1"])
    async with make_client(context._replace(access=access)) as client:
        for address in ("2001:db8::1", "2001:db8::2", "2001:db8::3"):
            response = await client.get("/nothing", headers={"X-Forwarded-For": f"6.6.6.6, {address}"})
        problem_of(response, 429)
        problem_of(await client.get("/nothing", headers={"X-Forwarded-For": "2001:db8:9::1"}), 401)
        assert (await client.get("/healthz")).status_code == 200
    assert store.key_queries == 0


async def test_a_malformed_key_needs_no_query(context: ApiContext) -> None:
    store = FailingStore(AssertionError("not expected to be called"))
    emitted: Counter[Event] = Counter()
    limits = RequestLimits(RequestRates(bad_keys=1))
    access = Authenticator(store, KeySessions(), limits, is_required=True, emit=lambda one: emitted.update([one]))  # type: ignore[arg-type]
    async with make_client(context._replace(access=access)) as client:
        statuses = [
            (await client.get("/v1/tasks", headers={"Authorization": "Bearer eb_invented"})).status_code for _ in range(8)
        ]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert store.key_queries == 0
    assert emitted == {RequestRefused("unauthenticated"): 5, RequestRefused("rate-limited"): 3}


# Unavailable database


async def test_while_the_database_is_unavailable_an_unknown_key_gets_503(context: ApiContext) -> None:
    access = Authenticator(FailingStore(StoreUnavailable("unavailable")), KeySessions(), is_required=True)  # type: ignore[arg-type]
    async with make_client(context._replace(access=access)) as client:
        response = await client.get("/v1/schedules", headers={"Authorization": f"Bearer {make_key(b'k' * 32)}"})
    problem = problem_of(response, 503)
    assert problem["type"].endswith(":database-unavailable")
    assert int(response.headers["retry-after"]) >= 1


async def test_while_the_database_is_unavailable_a_known_key_still_works(
    client: httpx.AsyncClient, store: Store, access: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, headers = await key_of(store, "read")
    assert (await client.get("/v1/schedules", headers=headers)).status_code == 200
    monkeypatch.setattr(store, "key_find", FailingStore(StoreUnavailable("unavailable")).key_find)
    store.publish(Notice.KEYS)
    assert (await client.get("/v1/schedules", headers=headers)).status_code == 200


@pytest.mark.parametrize("is_required", [True, False])
async def test_the_document_states_whether_a_key_is_required(context: ApiContext, store: Store, is_required: bool) -> None:
    _, headers = await key_of(store, "read")
    async with make_client(context._replace(access=Authenticator(store, KeySessions(), is_required=is_required))) as client:
        document = (await client.get("/v1/openapi.json", headers=headers)).json()
    assert ({} in document["paths"]["/v1/schedules"]["get"]["security"]) is not is_required
