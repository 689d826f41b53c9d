"""The API in process over ASGI, on a real store. Every response is validated against the served OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import httpx
import msgspec
import pytest

from everbeat.api import check_responses, responses
from everbeat.api.app import ApiContext, Health, build_app, openapi_documents
from everbeat.api.problems import Problem
from everbeat.clock import DatabaseClock
from everbeat.config import Settings
from everbeat.core import protocol
from everbeat.core import responses as core_responses
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.engine import Engine
from everbeat.services.blobs import BlobStore
from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.sqlite.store import SqliteStore
from everbeat.store.values import ClaimRequest
from tests.factories import OTHER_TENANT, claim_for, make_task

LATE_SECONDS = 5.0
OPEN_ENDED = {"HealthResponse"}


ON_BOTH_STORES = pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """A store on SQLite, unless a module is marked to run on both stores."""
    store: Store
    if getattr(request, "param", "sqlite") == "postgres":
        store = PostgresStore(request.getfixturevalue("postgres_url"), listen=False)
    else:
        store = SqliteStore(request.getfixturevalue("sqlite_path"))
    await store.open()
    await store.migrate()
    yield store
    await store.close()


def make_context(store: Store, blobs: BlobStore | None = None) -> ApiContext:
    async def ready() -> Health:
        return Health(True, {"database": "ok"})

    return ApiContext.from_engine(
        Engine(store, DatabaseClock(), Settings(late_after_seconds=LATE_SECONDS), blobs=blobs),
        health=lambda: Health(True, {"loops": {"ticker": 0.1}}),
        ready=ready,
        metrics=lambda: b"# HELP everbeat_up Up.\n",
    )


@pytest.fixture
def context(store: Store) -> ApiContext:
    return make_context(store)


def make_client(context: ApiContext) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(cast(Any, build_app(context))),
        base_url="http://localhost:8080",
        event_hooks={"response": [conformance()]},
    )


@pytest.fixture
async def client(context: ApiContext) -> AsyncIterator[httpx.AsyncClient]:
    async with make_client(context) as client:
        yield client


def definition(**changed: Any) -> dict[str, Any]:
    """Return the smallest schedule, with the given fields changed. The value ... removes a field."""
    whole = {"name": "nightly", "cron": "0 2 * * *", "target": {"kind": "worker", "type": "report"}, **changed}
    return {field: value for field, value in whole.items() if value is not ...}


async def submit(client: httpx.AsyncClient, type_: str = "work", **more: Any) -> dict[str, Any]:
    """Submit a task and return it."""
    response = await client.post("/v1/tasks", json={"type": type_, **more})
    assert response.status_code == 201, response.text
    task: dict[str, Any] = response.json()
    return task


async def read(client: httpx.AsyncClient, task: dict[str, Any]) -> dict[str, Any]:
    """Return the current state of the task."""
    response = await client.get(f"/v1/tasks/{task['id']}")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def claim(client: httpx.AsyncClient, *queues: str, **more: Any) -> list[dict[str, Any]]:
    """Claim tasks as a worker, and return them."""
    body = {"worker": "w1", "queues": list(queues or ("default",)), "max": 100, **more}
    response = await client.post("/v1/worker/claim", json=body)
    assert response.status_code == 200, response.text
    tasks: list[dict[str, Any]] = response.json()["tasks"]
    return tasks


def lease(task: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": task["id"], "fence": task["fence"], **more}


async def report(client: httpx.AsyncClient, verb: str, field: str, *items: dict[str, Any]) -> list[dict[str, Any]]:
    """Send results, failures or leases of a worker, and return the outcome of each."""
    response = await client.post(f"/v1/worker/{verb}", json={"worker": "w1", field: list(items)})
    assert response.status_code == 200, response.text
    response = response.json()
    outcomes: list[dict[str, Any]] = response.get("results", response.get("leases"))
    return outcomes


async def complete(client: httpx.AsyncClient, task: dict[str, Any], **more: Any) -> str:
    """Complete a task and return the status."""
    return str((await report(client, "complete", "results", lease(task, **more)))[0]["status"])


async def fail(client: httpx.AsyncClient, task: dict[str, Any], message: str = "no", **more: Any) -> dict[str, Any]:
    """Report a failure and return the result, without the id."""
    (response,) = await report(client, "fail", "failures", lease(task, error={"message": message}, **more))
    assert response.pop("id") == task["id"]
    return response


async def claim_expired(context: ApiContext, *, queue: str = "default") -> list[dict[str, Any]]:
    """Claim tasks under a lease that has already expired."""
    wanted = protocol.LeaseClaimRequest(worker="late", queues=[queue], max=100)
    tasks = await context.leases.claim(DEFAULT_TENANT, wanted, now=datetime.now(UTC) - timedelta(minutes=1))
    return [{"id": str(task.id), "fence": task.fence} for task in tasks]


async def foreign_lease(store: Store) -> dict[str, Any]:
    """Return a lease of another tenant."""
    await store.task_submit([make_task(tenant_id=OTHER_TENANT)])
    ((claimed,),) = await claim_for(store, ["default"], [ClaimRequest("theirs", 1, 30)], tenant_id=OTHER_TENANT)
    return {"id": str(claimed.id), "fence": claimed.fence}


def problem_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """Return the problem in a response, which must be one."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["status"] == status
    assert problem["type"].startswith("urn:everbeat:problem:")
    assert problem["request_id"] == response.headers["x-request-id"]
    return problem


def fields_of(response: httpx.Response, status: int = 422) -> list[str]:
    return [error["field"] for error in problem_of(response, status)["errors"]]


def message_of(response: httpx.Response, field: str, status: int = 422) -> str:
    messages = {error["field"]: error["message"] for error in problem_of(response, status)["errors"]}
    assert field in messages, messages
    return str(messages[field])


def conformance() -> Callable[[httpx.Response], Awaitable[None]]:
    """Return a check that a response is documented: its status, its type, its headers and every field of its body."""
    document = msgspec.json.decode(openapi_documents().with_keys)
    known = {**vars(protocol), **vars(core_responses), **vars(responses), **vars(check_responses), "Problem": Problem}
    shapes = {name: one for name, one in known.items() if isinstance(one, type)}

    async def check(response: httpx.Response) -> None:
        await response.aread()
        assert response.headers["x-content-type-options"] == "nosniff"
        operation = documented_operation(document, response.request)
        if operation is None or response.status_code in (405, 500):
            return
        assert str(response.status_code) in operation["responses"], (response.status_code, response.text)
        documented = operation["responses"][str(response.status_code)]
        assert {name.lower() for name in documented["headers"]} <= set(response.headers)
        if response.status_code == 204:
            return
        media_type = response.headers["content-type"].partition(";")[0]
        schema = documented["content"][media_type]["schema"]
        name = schema.get("$ref", "").rpartition("/")[2]
        if name:
            body = response.json()
            seen = msgspec.to_builtins(msgspec.convert(body, shapes[name]))
            assert name in OPEN_ENDED or seen == body

    return check


def documented_operation(document: dict[str, Any], request: httpx.Request) -> dict[str, Any] | None:
    for path in sorted(document["paths"], key=lambda path: path.count("{")):
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), request.url.path):
            operation: dict[str, Any] | None = document["paths"][path].get(request.method.lower())
            return operation
    return None
