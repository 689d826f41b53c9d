"""Headers of targets with secrets: no response contains them, and a definition that was read can be written again."""

from __future__ import annotations

from uuid import UUID

import httpx

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.targets import HttpTarget
from everbeat.store.base import Store
from tests.api.conftest import ON_BOTH_STORES, definition, fields_of

SECRET = "Bearer s3cr3t-value"
URL = "https://api.example/hook"
TARGET = {"kind": "http", "url": URL, "headers": {"Authorization": SECRET, "X-Team": "billing"}}
SHOWN = {"Authorization": "***", "X-Team": "billing"}


async def stored_headers(store: Store, name: str = "nightly") -> dict[str, str]:
    found = await store.schedule_find(DEFAULT_TENANT, names=[name])
    target = found.schedules[0].spec.target
    assert isinstance(target, HttpTarget)
    return target.headers


@ON_BOTH_STORES
async def test_no_response_contains_the_value(client: httpx.AsyncClient, store: Store) -> None:
    body = definition(name="nightly", target=TARGET)
    key = {"Idempotency-Key": "k"}
    responses = [await client.post("/v1/schedules", json=body, headers=key) for _ in range(2)]
    responses += [await client.post("/v1/schedules/nightly/trigger"), await client.post("/v1/schedules/nightly/pause")]
    task = {"type": "call", "target": TARGET}
    responses += [await client.post("/v1/tasks", json=task, headers=key) for _ in range(2)]
    task_id = responses[-1].json()["id"]
    responses += [await client.post(f"/v1/tasks/{task_id}/cancel"), await client.post(f"/v1/tasks/{task_id}/retry")]
    paths = ("schedules", "schedules/nightly", "schedules/nightly/executions", "tasks", f"tasks/{task_id}", "audit-log")
    responses += [await client.get(f"/v1/{path}") for path in paths]
    for response in responses:
        assert response.is_success, response.text
        assert "s3cr3t" not in response.text
    assert [one.json()["target"]["headers"] for one in responses[:2]] == [SHOWN] * 2
    assert responses[-2].json()["target"]["headers"] == SHOWN
    assert (await stored_headers(store))["Authorization"] == SECRET
    retried = await store.task_find(DEFAULT_TENANT, [UUID(responses[7].json()["id"])])
    assert isinstance(retried[0].target, HttpTarget)
    assert retried[0].target.headers["Authorization"] == SECRET, "the new task has the value"


@ON_BOTH_STORES
async def test_a_definition_that_was_read_can_be_written_again(client: httpx.AsyncClient, store: Store) -> None:
    created = (await client.put("/v1/schedules/nightly", json=definition(name="nightly", target=TARGET))).json()
    again = await client.put("/v1/schedules/nightly", json=definition(name="nightly", target=created["target"]))
    assert again.json()["revision"] == created["revision"], "nothing has changed"
    batch = {"schedules": [definition(name="nightly", target={**created["target"], "method": "PUT"})]}
    assert (await client.post("/v1/schedules/batch", json=batch)).json()["items"][0]["status"] == "updated"
    patched = await client.patch("/v1/schedules/nightly", json={"description": "a"})
    assert patched.json()["target"]["headers"] == SHOWN
    patched = await client.patch("/v1/schedules/nightly", json={"target": {**created["target"], "url": f"{URL}/2"}})
    assert patched.status_code == 200
    assert await stored_headers(store) == TARGET["headers"]
    replaced = {**TARGET, "headers": {"Authorization": "Bearer other"}}
    assert (await client.patch("/v1/schedules/nightly", json={"target": replaced})).status_code == 200
    assert await stored_headers(store) == {"Authorization": "Bearer other"}


async def test_a_redacted_value_is_refused_where_none_is_stored(client: httpx.AsyncClient, store: Store) -> None:
    redacted = {**TARGET, "headers": SHOWN}
    field = "target.headers.Authorization"
    assert fields_of(await client.post("/v1/schedules", json=definition(name="new", target=redacted))) == [field]
    assert fields_of(await client.post("/v1/tasks", json={"type": "a", "target": redacted})) == [field]
    await client.put("/v1/schedules/nightly", json=definition(name="nightly", target=TARGET))
    moved = {**redacted, "url": "https://attacker.example/hook"}
    assert fields_of(await client.patch("/v1/schedules/nightly", json={"target": moved})) == [field]
    assert fields_of(await client.put("/v1/schedules/nightly", json=definition(name="nightly", target=moved))) == [field]
    assert await stored_headers(store) == TARGET["headers"]
