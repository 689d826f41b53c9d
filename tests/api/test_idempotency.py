"""Idempotency-Key on every POST that creates something: the same key returns the same response and creates nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest

from everbeat.api import middleware
from everbeat.api.app import ApiContext, openapi_document
from everbeat.core.access import Caller, Scope
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.base import Store
from tests.api.conftest import ON_BOTH_STORES, claim, definition, fail, fields_of, submit
from tests.factories import OTHER_TENANT, count_rows

Request = tuple[str, Any]
KEY = {"Idempotency-Key": "once"}


async def a_schedule(_client: httpx.AsyncClient, _api_context: ApiContext, _tenant_id: UUID) -> Request:
    return "/v1/schedules", definition(name="new")


async def some_schedules(_client: httpx.AsyncClient, _api_context: ApiContext, _tenant_id: UUID) -> Request:
    return "/v1/schedules/batch", {"schedules": [definition(name="a"), definition(name="b")]}


async def a_task(_client: httpx.AsyncClient, _api_context: ApiContext, _tenant_id: UUID) -> Request:
    return "/v1/tasks", {"type": "work"}


async def some_tasks(_client: httpx.AsyncClient, _api_context: ApiContext, _tenant_id: UUID) -> Request:
    return "/v1/tasks/batch", {"tasks": [{"type": "work"}, {"type": "work", "priority": 1}]}


async def a_retry(client: httpx.AsyncClient, _api_context: ApiContext, _tenant_id: UUID) -> Request:
    task = await submit(client)
    await client.post(f"/v1/tasks/{task['id']}/cancel")
    return f"/v1/tasks/{task['id']}/retry", {}


async def a_trigger(client: httpx.AsyncClient, _api_context: ApiContext, _tenant_id: UUID) -> Request:
    await client.post("/v1/schedules", json=definition())
    return "/v1/schedules/nightly/trigger", {"payload": {"by": "user"}}


async def a_backfill(_client: httpx.AsyncClient, context: ApiContext, tenant_id: UUID) -> Request:
    now = await context.store.clock()
    await context.schedules.create(tenant_id, definition(name="hourly", cron="0 * * * *"), now=now - timedelta(hours=5))
    await context.schedules.pause(tenant_id, "hourly", note=None)
    window = {"from": (now - timedelta(hours=5)).isoformat(), "to": now.isoformat(), "missing_only": False}
    return "/v1/schedules/hourly/backfill", window


async def a_dead_letter(client: httpx.AsyncClient, _api_context: ApiContext, _tenant_id: UUID) -> Request:
    task = await submit(client, max_attempts=1)
    claimed = next(one for one in await claim(client) if one["id"] == task["id"])
    await fail(client, claimed)
    return f"/v1/dead-letters/{task['id']}/replay", {}


async def dead_letters(client: httpx.AsyncClient, context: ApiContext, tenant_id: UUID) -> Request:
    for _ in range(2):
        await a_dead_letter(client, context, tenant_id)
    return "/v1/dead-letters/replay", {"filter": {}}


CREATING = [
    *(a_schedule, some_schedules, a_task, some_tasks, a_retry),
    *(a_trigger, a_backfill, a_dead_letter, dead_letters),
]
Prepare = Callable[[httpx.AsyncClient, ApiContext, UUID], Awaitable[Request]]
EVERY_REQUEST = pytest.mark.parametrize("prepare", CREATING, ids=[one.__name__ for one in CREATING])


async def rows_of(store: Store) -> tuple[int, int]:
    return await count_rows(store, "schedules"), await count_rows(store, "tasks")


@ON_BOTH_STORES
@EVERY_REQUEST
async def test_the_same_key_returns_the_same_response_and_creates_nothing(
    client: httpx.AsyncClient, context: ApiContext, store: Store, prepare: Prepare
) -> None:
    path, body = await prepare(client, context, DEFAULT_TENANT)
    before = await rows_of(store)
    first = await client.post(path, json=body, headers=KEY)
    assert first.status_code in (200, 201), first.text
    done = await rows_of(store)
    assert done != before
    second = await client.post(path, json=body, headers=KEY)
    assert second.content == first.content
    assert second.status_code == (200 if path == "/v1/tasks" else first.status_code)
    assert await rows_of(store) == done


@EVERY_REQUEST
async def test_the_same_key_with_another_request_is_refused(
    client: httpx.AsyncClient, context: ApiContext, prepare: Prepare
) -> None:
    path, body = await prepare(client, context, DEFAULT_TENANT)
    await client.post(path, json=body, headers=KEY)
    if body:
        other = {**body, "name": "other"} if path == "/v1/schedules" else _changed(body)
    else:
        path, other = await prepare(client, context, DEFAULT_TENANT)
    assert fields_of(await client.post(path, json=other, headers=KEY)) == ["Idempotency-Key"]


def _changed(body: dict[str, Any]) -> dict[str, Any]:
    (name, value), *rest = body.items()
    if isinstance(value, list):
        return {name: value[:1], **dict(rest)}
    changed = {"payload": {"by": "another"}, "type": "another", "filter": {"queue": "other"}, "from": "2020-01-01T00:00:00Z"}
    return {name: changed[name], **dict(rest)}


@EVERY_REQUEST
async def test_keys_of_tenants_are_separate(
    client: httpx.AsyncClient, context: ApiContext, prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body = await prepare(client, context, DEFAULT_TENANT)
    ours = await client.post(path, json=body, headers=KEY)

    monkeypatch.setattr(middleware, "LOCAL_CALLER", Caller(OTHER_TENANT, frozenset(Scope)))
    path, body = await prepare(client, context, OTHER_TENANT)
    theirs = await client.post(path, json=body, headers=KEY)
    assert theirs.status_code in (200, 201), theirs.text
    assert prepare is a_backfill or theirs.content != ours.content


async def test_concurrent_requests_with_one_key_get_one_response(
    client: httpx.AsyncClient, context: ApiContext, store: Store
) -> None:
    path, body = await dead_letters(client, context, DEFAULT_TENANT)
    responses = await asyncio.gather(*(client.post(path, json=body, headers=KEY) for _ in range(4)))
    assert len({response.content for response in responses}) == 1
    assert await count_rows(store, "tasks") == 2


def test_every_post_that_creates_something_documents_the_key() -> None:
    document = openapi_document()
    keyed = {
        path
        for path, methods in document["paths"].items()
        for parameter in methods.get("post", {}).get("parameters", ())
        if parameter["name"] == "Idempotency-Key"
    }
    creating = {path for path, methods in document["paths"].items() if "201" in methods.get("post", {}).get("responses", ())}
    # Batches return 200, because there is no single location. Bulk operations return 202, and 200 for a dry run.
    creating |= {"/v1/schedules/batch", "/v1/tasks/batch", "/v1/schedules/{ref}/backfill", "/v1/dead-letters/replay"}
    creating |= {"/v1/schedules/bulk", "/v1/tasks/bulk"}
    assert keyed == creating
