"""Every route and method: without a key, with a wrong key, with a wrong scope, and with ids of another tenant.

The routes come from the app's own table, so new routes are tested automatically.
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
from tests.contract.test_alerts import evaluation, make_incident
from tests.factories import NOW

THEIRS = UUID(int=77)
SECRET_NAME = "only-of-the-first-tenant"
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE")

OPERATIONS = [(route.path, route.method, route.operation) for route in ROUTES]
CALLBACKS = {f"/v1/callbacks/{{id}}/{verb}" for verb in ("complete", "fail", "heartbeat")}  # they need a token of the task
PINGS = {"/ping/{token}", "/ping/{token}/{signal}"}  # the token is part of the path
WITHOUT_KEY = {"/healthz", "/readyz", *CALLBACKS, *PINGS}
PATHS = sorted({route.path for route in ROUTES})


class Objects(NamedTuple):
    """What the first tenant has. The second tenant has nothing."""

    schedule_id: str
    task_id: str
    dead_id: str
    lease: dict[str, Any]
    operation_id: str
    incident_id: str

    def of(self, template: str) -> list[dict[str, str]]:
        """Return values for the path parameters that refer to existing objects."""
        if template.startswith("/v1/schedules/"):
            return [{"ref": self.schedule_id}, {"ref": SECRET_NAME}]
        if template.startswith("/v1/tasks/"):
            return [{"id": self.task_id}]
        if template.startswith("/v1/dead-letters/"):
            return [{"task_id": self.dead_id}]
        if template.startswith("/v1/calendars/"):
            return [{"name": SECRET_NAME}]
        if template.startswith(("/v1/endpoints/", "/v1/checks/")):
            return [{"name": SECRET_NAME}]
        if template.startswith("/v1/alerts/"):
            return [{"name": SECRET_NAME}]
        if template.startswith("/v1/incidents/"):
            return [{"id": self.incident_id}]
        if template.startswith("/v1/operations/"):
            return [{"id": self.operation_id}]
        if template.startswith("/v1/queues/"):
            return []  # the names of queues are those of the tenant; there is nothing to find
        raise AssertionError(f"add the parameters of {template} here")


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
async def objects(client: httpx.AsyncClient, store: Store) -> Objects:
    client.headers.update(await key_of(store, "admin"))
    assert (await client.put(f"/v1/calendars/{SECRET_NAME}", json={"dates": ["2026-12-24"]})).status_code == 201
    endpoint = {"url": "https://example.org/", "headers": {"X-Secret": SECRET_NAME}}
    assert (await client.put(f"/v1/endpoints/{SECRET_NAME}", json=endpoint)).status_code == 201
    assert (await client.put(f"/v1/checks/{SECRET_NAME}", json={"every_seconds": 60})).status_code == 201
    target = {"kind": "worker", "type": SECRET_NAME, "queue": SECRET_NAME}
    alert = {"when": {"kind": "dead"}, "notify": [target]}
    assert (await client.put(f"/v1/alerts/{SECRET_NAME}", json=alert)).status_code == 201
    incident = make_incident(alert=SECRET_NAME)
    assert await store.alert_apply(await evaluation(store, opened=[incident]))
    schedule = (await client.post("/v1/schedules", json=definition(name=SECRET_NAME, target=target))).json()
    dead_task = await submit(client, SECRET_NAME, queue="failing", max_attempts=1, payload={"a": SECRET_NAME})
    (claimed,) = await claim(client, "failing")
    await fail(client, claimed, SECRET_NAME)
    task = await submit(client, SECRET_NAME, queue=SECRET_NAME, payload={"a": SECRET_NAME}, delay_seconds=3600)
    await submit(client, SECRET_NAME, queue="running")
    (lease,) = await claim(client, "running")
    bulk = {"action": "cancel", "filter": {"type": SECRET_NAME}}
    operation = (await client.post("/v1/tasks/bulk", json=bulk)).json()
    del client.headers["Authorization"]
    lease_ref = {"id": lease["id"], "fence": lease["fence"]}
    return Objects(schedule["id"], task["id"], dead_task["id"], lease_ref, operation["id"], str(incident.id))


def without_ids(response: httpx.Response, *ids: str) -> str:
    """Return a response without the parts that differ between two identical requests."""
    text = re.sub(r'"request_id":"[^"]*"', "", response.text)
    for id_ in ids:
        text = text.replace(id_, "ID")
    return f"{response.status_code} {response.headers['content-type']} {text}"


def path_of(template: str, **values: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], str(uuid4())), template)


def body_of(operation: Operation) -> dict[str, Any]:
    """Return a valid body for the request."""
    if operation.body is None:
        return {}
    examples = list(operation.body.examples.values())
    return {"json": examples[0] if examples else {}}


def is_endless(operation: Operation) -> bool:
    return any(response.media_type == "text/event-stream" for response in operation.responses.values())


def wrong_scopes(operation: Operation) -> Iterator[Scope]:
    if operation.scope is not None and not operation.for_any_key:
        yield from (scope for scope in Scope if operation.scope not in INCLUDED_SCOPES[scope])


def test_every_route_requires_a_scope() -> None:
    assert {path for path, _, operation in OPERATIONS if operation.scope is None} == WITHOUT_KEY
    for path, _, operation in OPERATIONS:
        if path.startswith(("/v1/tenants", "/v1/keys")):
            assert operation.scope is Scope.ADMIN
        if path.startswith("/v1/worker/"):
            assert operation.scope is Scope.WORK


@pytest.mark.parametrize("key", [None, "eb_nonsense", make_key(b"?" * 32)], ids=["no key", "malformed", "unknown"])
async def test_without_a_valid_key_every_path_and_method_has_the_same_response(
    client: httpx.AsyncClient, key: str | None
) -> None:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    seen: set[str] = set()
    for template in [*PATHS, "/nothing", "/v1/nothing/{x}", "/healthz/", "/readyz/x", "//healthz", "/v1/worker/claim/"]:
        if template in WITHOUT_KEY:
            continue
        for method in METHODS:
            response = await client.request(method, path_of(template), headers=headers, content=b"{")
            assert response.headers["www-authenticate"].startswith("Bearer"), (method, template)
            if method != "HEAD":  # HEAD responses have no body
                seen.add(without_ids(response))
    assert len(seen) == 1, seen
    assert seen.pop().startswith("401 application/problem+json")


async def test_health_needs_no_key_and_ignores_one(client: httpx.AsyncClient) -> None:
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
            assert f"the scope {operation.scope}; this key has {scope}" in problem["detail"]
            tried += 1
    assert tried > 100


async def test_a_key_with_the_scope_gets_past_the_check(client: httpx.AsyncClient, store: Store) -> None:
    headers = {scope: await key_of(store, scope.value) for scope in Scope}
    for template, method, operation in OPERATIONS:
        if operation.scope is not None and not is_endless(operation):
            response = await client.request(method, path_of(template), headers=headers[operation.scope], content=b"{")
            assert response.status_code not in (401, 403), (method, template, response.text)


async def test_ids_of_another_tenant_look_like_unknown_ids(client: httpx.AsyncClient, store: Store, objects: Objects) -> None:
    await make_tenant(store)
    theirs = await key_of(store, "manage", "work", tenant_id=THEIRS)
    ours = await key_of(store, "manage", "work")
    tried = 0
    for template, method, operation in OPERATIONS:
        if "{" not in template or operation.scope is Scope.ADMIN or method == "PUT" or template in WITHOUT_KEY:
            continue
        for existing in objects.of(template):
            (name,) = existing
            missing = {name: "no-such-thing" if existing[name] == SECRET_NAME else str(uuid4())}
            responses = []
            for values in (existing, missing):
                response = await client.request(method, path_of(template, **values), headers=theirs, **body_of(operation))
                responses.append(without_ids(response, values[name]))
            assert responses[0] == responses[1], (method, template)
            assert responses[0].startswith("404 "), (method, template)
            if method == "GET":
                own = await client.get(path_of(template, **existing), headers=ours)
                assert own.status_code == 200, (template, "the object exists")
            tried += 1
    assert tried > 15


async def test_a_put_by_another_tenant_does_not_change_the_first_tenants_object(
    client: httpx.AsyncClient, store: Store, objects: Objects
) -> None:
    await make_tenant(store)
    theirs = await key_of(store, "manage", tenant_id=THEIRS)
    ours = await key_of(store, "manage")
    for template, method, operation in OPERATIONS:
        if method != "PUT":
            continue
        for existing in objects.of(template):
            path = path_of(template, **existing)
            before = await client.get(path, headers=ours)
            await client.put(path, headers=theirs, **body_of(operation))
            assert (await client.get(path, headers=ours)).json() == before.json()


async def test_lists_contain_nothing_of_another_tenant(client: httpx.AsyncClient, store: Store, objects: Objects) -> None:
    await make_tenant(store)
    theirs = await key_of(store, "manage", "work", tenant_id=THEIRS)
    for template, method, operation in OPERATIONS:
        if method == "GET" and "{" not in template and operation.scope is not Scope.ADMIN and not is_endless(operation):
            text = (await client.get(template, headers=theirs)).text
            for secret in (SECRET_NAME, objects.schedule_id, objects.task_id, objects.dead_id, objects.lease["id"]):
                assert secret not in text, (template, secret)


async def test_leases_of_another_tenant_look_like_unknown_leases(
    client: httpx.AsyncClient, store: Store, objects: Objects
) -> None:
    await make_tenant(store)
    theirs = await key_of(store, "work", tenant_id=THEIRS)
    no_lease = {"id": str(uuid4()), "fence": objects.lease["fence"]}
    more: dict[str, tuple[str, dict[str, Any]]] = {
        "heartbeat": ("leases", {}),
        "complete": ("results", {"result": 1}),
        "fail": ("failures", {"error": {"message": "x"}}),
        "release": ("leases", {}),
    }
    report_verbs = {template.rpartition("/")[2] for template, _, _ in OPERATIONS if template.startswith("/v1/worker/")} - {
        "claim"
    }
    assert report_verbs == set(more)
    for verb, (field, rest) in more.items():
        responses = []
        for lease in (objects.lease, no_lease):
            body = {"worker": "w", field: [{**lease, **rest}]}
            response = await client.post(f"/v1/worker/{verb}", json=body, headers=theirs)
            assert response.status_code == 200
            responses.append(without_ids(response, lease["id"]))
        assert responses[0] == responses[1], verb
        assert "ok" not in responses[0]
