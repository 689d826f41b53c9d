"""Every route and method that is served: without a key, with a wrong one, with a wrong scope, and with another tenant's ids.

The table is the app's own; a route that is added is tested without being named here.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import httpx
import pytest

from everbeat.api.app import ROUTES, ApiContext
from everbeat.api.operations import Operation
from everbeat.core.access import INCLUDED_SCOPES, Scope
from everbeat.core.keys import make_key
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tenants import Tenant
from everbeat.services.access import Authenticator
from everbeat.services.keys import KeyService
from everbeat.services.sessions import KeySessions
from everbeat.store.base import Store
from everbeat.store.values import TenantWrite
from tests.api.conftest import claim, definition, fail, make_client, problem_of, submit
from tests.factories import NOW

THEIRS = UUID(int=77)
MARK = "only-of-the-first"
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE")

OPERATIONS = [(route.path, route.method, route.operation) for route in ROUTES]
PATHS = sorted({route.path for route in ROUTES})


class Things(NamedTuple):
    """What the first tenant has; the second one has nothing."""

    schedule_id: str
    task_id: str
    dead_id: str
    lease: dict[str, Any]

    def of(self, template: str) -> list[dict[str, str]]:
        """Values for the parameters of a path that name what is there."""
        if template.startswith("/v1/schedules/"):
            return [{"ref": self.schedule_id}, {"ref": MARK}]
        if template.startswith("/v1/tasks/"):
            return [{"id": self.task_id}]
        if template.startswith("/v1/dead-letters/"):
            return [{"task_id": self.dead_id}]
        if template.startswith("/v1/calendars/"):
            return [{"name": MARK}]
        raise AssertionError(f"say here what the parameters of {template} are")


@pytest.fixture
async def access(store: Store) -> Authenticator:
    return Authenticator(store, KeySessions(), is_required=True)


@pytest.fixture
async def client(context: ApiContext, access: Authenticator) -> AsyncIterator[httpx.AsyncClient]:
    async with make_client(context._replace(access=access)) as client:
        yield client


async def key_of(store: Store, *scopes: str, tenant_id: UUID = DEFAULT_TENANT) -> dict[str, str]:
    _, text = await KeyService(store).create(tenant_id, "test", scopes)
    return {"Authorization": f"Bearer {text}"}


async def make_tenant(store: Store) -> None:
    tenant = Tenant(id=THEIRS, name="theirs", created_at=NOW, updated_at=NOW)
    assert await store.tenant_write([TenantWrite(tenant)])


@pytest.fixture
async def things(client: httpx.AsyncClient, store: Store) -> Things:
    client.headers.update(await key_of(store, "admin"))
    assert (await client.put(f"/v1/calendars/{MARK}", json={"dates": ["2026-12-24"]})).status_code == 201
    target = {"kind": "worker", "type": MARK, "queue": MARK}
    schedule = (await client.post("/v1/schedules", json=definition(name=MARK, target=target))).json()
    dying = await submit(client, MARK, queue="dying", max_attempts=1, payload={"a": MARK})
    (held,) = await claim(client, "dying")
    await fail(client, held, MARK)
    task = await submit(client, MARK, queue=MARK, payload={"a": MARK}, delay_seconds=3600)
    await submit(client, MARK, queue="running")
    (lease,) = await claim(client, "running")
    del client.headers["Authorization"]
    return Things(schedule["id"], task["id"], dying["id"], {"id": lease["id"], "fence": lease["fence"]})


def without_ids(response: httpx.Response, *ids: str) -> str:
    """An answer without what differs between two requests for the same thing."""
    text = re.sub(r'"request_id":"[^"]*"', "", response.text)
    for id_ in ids:
        text = text.replace(id_, "ID")
    return f"{response.status_code} {response.headers['content-type']} {text}"


def path_of(template: str, **values: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], str(uuid4())), template)


def body_of(operation: Operation) -> dict[str, Any]:
    """What a request needs to get as far as what it asks for."""
    if operation.body is None:
        return {}
    examples = list(operation.body.examples.values())
    return {"json": examples[0] if examples else {}}


def is_endless(operation: Operation) -> bool:
    return any(answer.media_type == "text/event-stream" for answer in operation.responses.values())


def wrong_scopes(operation: Operation) -> Iterator[Scope]:
    if operation.scope is not None and not operation.for_any_key:
        yield from (scope for scope in Scope if operation.scope not in INCLUDED_SCOPES[scope])


def test_every_served_route_says_who_may_ask_for_it() -> None:
    assert {path for path, _, operation in OPERATIONS if operation.scope is None} == {"/healthz", "/readyz"}
    for path, _, operation in OPERATIONS:
        if path.startswith(("/v1/tenants", "/v1/keys")):
            assert operation.scope is Scope.ADMIN
        if path.startswith("/v1/worker/"):
            assert operation.scope is Scope.WORK


@pytest.mark.parametrize("key", [None, "eb_nonsense", make_key(b"?" * 32)], ids=["no key", "malformed", "unknown"])
async def test_without_a_valid_key_every_path_and_method_is_answered_alike(client: httpx.AsyncClient, key: str | None) -> None:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    seen: set[str] = set()
    for template in [*PATHS, "/nothing", "/v1/nothing/{x}", "/healthz/", "/readyz/x", "//healthz", "/v1/worker/claim/"]:
        if template in ("/healthz", "/readyz"):
            continue
        for method in METHODS:
            response = await client.request(method, path_of(template), headers=headers, content=b"{")
            assert response.headers["www-authenticate"].startswith("Bearer"), (method, template)
            if method != "HEAD":  # which has no body
                seen.add(without_ids(response))
    assert len(seen) == 1, seen
    assert seen.pop().startswith("401 application/problem+json")


async def test_health_is_open_and_no_key_is_looked_at(client: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/readyz"):
        for headers in ({}, {"Authorization": "Bearer eb_nonsense"}, {"Host": "anywhere.example"}):
            assert (await client.get(path, headers=headers)).status_code == 200


async def test_a_key_without_the_scope_is_refused_everywhere(client: httpx.AsyncClient, store: Store) -> None:
    headers = {scope: await key_of(store, scope.value) for scope in Scope}
    tried = 0
    for template, method, operation in OPERATIONS:
        for scope in wrong_scopes(operation):
            response = await client.request(method, path_of(template), headers=headers[scope], content=b"{")
            problem = problem_of(response, 403)
            assert problem["type"] == "urn:everbeat:problem:forbidden", (method, template)
            assert f"the scope {operation.scope}; this one has {scope}" in problem["detail"]
            tried += 1
    assert tried > 100


async def test_a_key_with_the_scope_gets_past_the_check(client: httpx.AsyncClient, store: Store) -> None:
    headers = {scope: await key_of(store, scope.value) for scope in Scope}
    for template, method, operation in OPERATIONS:
        if operation.scope is not None and not is_endless(operation):
            response = await client.request(method, path_of(template), headers=headers[operation.scope], content=b"{")
            assert response.status_code not in (401, 403), (method, template, response.text)


async def test_another_tenants_ids_are_as_good_as_none(client: httpx.AsyncClient, store: Store, things: Things) -> None:
    await make_tenant(store)
    theirs = await key_of(store, "manage", "work", tenant_id=THEIRS)
    ours = await key_of(store, "manage", "work")
    tried = 0
    for template, method, operation in OPERATIONS:
        if "{" not in template or operation.scope is Scope.ADMIN or method == "PUT":
            continue
        for there in things.of(template):
            (name,) = there
            nowhere = {name: "no-such-thing" if there[name] == MARK else str(uuid4())}
            answers = []
            for values in (there, nowhere):
                response = await client.request(method, path_of(template, **values), headers=theirs, **body_of(operation))
                answers.append(without_ids(response, values[name]))
            assert answers[0] == answers[1], (method, template)
            assert answers[0].startswith("404 "), (method, template)
            if method == "GET":
                own = await client.get(path_of(template, **there), headers=ours)
                assert own.status_code == 200, (template, "the test asks for what is there")
            tried += 1
    assert tried > 15


async def test_a_put_by_another_tenant_makes_its_own(client: httpx.AsyncClient, store: Store, things: Things) -> None:
    await make_tenant(store)
    theirs = await key_of(store, "manage", tenant_id=THEIRS)
    ours = await key_of(store, "manage")
    for template, method, operation in OPERATIONS:
        if method != "PUT":
            continue
        for there in things.of(template):
            path = path_of(template, **there)
            before = await client.get(path, headers=ours)
            await client.put(path, headers=theirs, **body_of(operation))
            assert (await client.get(path, headers=ours)).json() == before.json()


async def test_lists_show_nothing_of_another_tenant(client: httpx.AsyncClient, store: Store, things: Things) -> None:
    await make_tenant(store)
    theirs = await key_of(store, "manage", "work", tenant_id=THEIRS)
    for template, method, operation in OPERATIONS:
        if method == "GET" and "{" not in template and operation.scope is not Scope.ADMIN and not is_endless(operation):
            text = (await client.get(template, headers=theirs)).text
            for told in (MARK, things.schedule_id, things.task_id, things.dead_id, things.lease["id"]):
                assert told not in text, (template, told)


async def test_leases_of_another_tenant_are_as_good_as_lost(client: httpx.AsyncClient, store: Store, things: Things) -> None:
    await make_tenant(store)
    theirs = await key_of(store, "work", tenant_id=THEIRS)
    no_lease = {"id": str(uuid4()), "fence": things.lease["fence"]}
    more: dict[str, tuple[str, dict[str, Any]]] = {
        "heartbeat": ("leases", {}),
        "complete": ("results", {"result": 1}),
        "fail": ("failures", {"error": {"message": "x"}}),
        "release": ("leases", {}),
    }
    settling = {template.rpartition("/")[2] for template, _, _ in OPERATIONS if template.startswith("/v1/worker/")} - {"claim"}
    assert settling == set(more)
    for verb, (field, rest) in more.items():
        answers = []
        for lease in (things.lease, no_lease):
            body = {"worker": "w", field: [{**lease, **rest}]}
            response = await client.post(f"/v1/worker/{verb}", json=body, headers=theirs)
            assert response.status_code == 200
            answers.append(without_ids(response, lease["id"]))
        assert answers[0] == answers[1], verb
        assert "ok" not in answers[0]
