"""GET /v1/audit-log: what was done and by whom. A tenant sees its own entries, operators see all."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import httpx
import pytest

from everbeat.api.app import ApiContext
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tenants import Tenant
from everbeat.services.access import Authenticator
from everbeat.services.keys import KeyService
from everbeat.services.sessions import KeySessions
from everbeat.store.base import Store
from everbeat.store.values import TenantWrite
from tests.api.conftest import claim, definition, fail, fields_of, make_client, problem_of, submit
from tests.factories import NOW

THEIRS = UUID(int=77)


async def entries(client: httpx.AsyncClient, **params: Any) -> list[dict[str, Any]]:
    response = await client.get("/v1/audit-log", params=params)
    assert response.status_code == 200, response.text
    items: list[dict[str, Any]] = response.json()["items"]
    return items


async def actions(client: httpx.AsyncClient, **params: Any) -> list[str]:
    return [one["action"] for one in reversed(await entries(client, **params))]


async def test_changes_of_a_schedule_are_recorded_once(client: httpx.AsyncClient) -> None:
    job = (await client.post("/v1/schedules", json=definition(payload={"secret": "s3cr3t"}))).json()
    await client.put("/v1/schedules/nightly", json=definition(payload={"secret": "s3cr3t"}))  # changes nothing
    await client.patch("/v1/schedules/nightly", json={"priority": 5, "payload": {"secret": "s3cr3t2"}})
    await client.post("/v1/schedules/nightly/pause", json={"note": "why"})
    await client.post("/v1/schedules/nightly/pause", json={"note": "why"})
    await client.post("/v1/schedules/nightly/resume")
    task = (await client.post("/v1/schedules/nightly/trigger", json={"payload": {"secret": "s3cr3t"}})).json()
    await client.delete("/v1/schedules/nightly")
    problem_of(await client.delete("/v1/schedules/nightly"), 404)
    response = await client.get("/v1/audit-log")
    assert "s3cr3t" not in response.text
    found = list(reversed(response.json()["items"]))
    assert [one["action"] for one in found] == [
        *("schedule.create", "schedule.update", "schedule.pause", "schedule.resume", "schedule.trigger", "schedule.delete")
    ]
    assert {one["subject"] for one in found} == {job["id"]}
    changes = found[1]["detail"].pop("changes")
    assert [one["field"] for one in changes] == ["priority", "payload"]
    assert set(changes[1]) == {"field"}
    assert found[1]["detail"] == {"name": "nightly", "revision": 2, "fields": ["payload", "priority"]}
    assert found[2]["detail"]["note"] == "why"
    assert found[4]["detail"]["task_id"] == task["id"]
    assert {one["actor"] for one in found} == {"local"}


async def test_a_batch_has_an_entry_for_each_changed_schedule(client: httpx.AsyncClient) -> None:
    await client.post("/v1/schedules", json=definition(name="a"))
    batch = [definition(name="a"), definition(name="b"), definition(name="c")]
    await client.post("/v1/schedules/batch", json={"schedules": batch})
    assert [one["detail"]["name"] for one in reversed(await entries(client))] == ["a", "b", "c"]


async def test_changes_of_tasks_and_dead_letters_are_recorded(client: httpx.AsyncClient) -> None:
    await submit(client, queue="failing", max_attempts=1)
    (claimed,) = await claim(client, "failing")
    await fail(client, claimed)
    waiting = await submit(client, delay_seconds=3600)
    assert await entries(client) == []
    await client.post(f"/v1/tasks/{waiting['id']}/reschedule", json={"run_at": "2100-01-01T00:00:00Z"})
    await client.post(f"/v1/tasks/{waiting['id']}/cancel")
    await client.post(f"/v1/tasks/{waiting['id']}/cancel")  # already cancelled
    for _ in range(2):
        await client.post(f"/v1/tasks/{waiting['id']}/retry", headers={"Idempotency-Key": "k"})
    await client.post("/v1/dead-letters/replay", json={"filter": {"queue": "failing"}})
    await client.post("/v1/dead-letters/replay", json={"filter": {"queue": "failing"}})  # no dead letter is left
    await client.post(f"/v1/dead-letters/{claimed['id']}/replay")
    await client.post("/v1/dead-letters/purge", json={"filter": {}})
    await client.post("/v1/dead-letters/purge", json={"filter": {}})
    expected = ["task.reschedule", "task.cancel", "task.retry", "dead_letter.replay", "dead_letter.replay", "dead_letter.purge"]
    assert await actions(client) == expected
    assert (await entries(client))[2]["detail"]["filter"] == {"queue": "failing"}


async def test_changes_of_calendars_backfills_and_tenants_are_recorded(client: httpx.AsyncClient) -> None:
    await client.put("/v1/calendars/off", json={"dates": ["2026-12-24"]})
    await client.put("/v1/calendars/off", json={"dates": ["2026-12-24"]})
    await client.delete("/v1/calendars/off")
    await client.post("/v1/schedules", json=definition(cron="0 * * * *", enabled=False))
    window = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T05:00:00Z"}
    for dry_run in (True, False, False):
        await client.post("/v1/schedules/nightly/backfill", json={**window, "dry_run": dry_run})
    tenant = (await client.post("/v1/tenants", json={"name": "new"})).json()
    await client.patch("/v1/tenants/new", json={"weight": 2})
    expected = ["calendar.put", "calendar.delete", "schedule.create", "schedule.backfill", "tenant.create", "tenant.update"]
    assert await actions(client) == expected
    assert await actions(client, tenant="new") == expected[-2:]
    assert await actions(client, tenant=tenant["id"]) == expected[-2:]
    assert await actions(client, tenant="all") == expected
    assert (await entries(client, action="schedule.backfill"))[0]["detail"]["count"] == 5


async def test_it_pages_and_filters(client: httpx.AsyncClient) -> None:
    for number in range(5):
        await client.put(f"/v1/calendars/c{number}", json={"dates": ["2026-12-24"]})
    first = (await client.get("/v1/audit-log", params={"limit": 3})).json()
    second = (await client.get("/v1/audit-log", params={"cursor": first["next_cursor"]})).json()
    subjects = [one["subject"] for one in first["items"] + second["items"]]
    assert subjects == ["c4", "c3", "c2", "c1", "c0"]
    assert await entries(client, to="2020-01-01T00:00:00Z") == []
    assert len(await entries(client, **{"from": "2020-01-01T00:00:00Z"})) == 5
    assert await entries(client, action="calendar.delete") == []


@pytest.mark.parametrize("query", ["action=unknown", "cursor=x", "from=x", "limit=0", "tenant="])
async def test_it_refuses_bad_parameters(client: httpx.AsyncClient, query: str) -> None:
    assert fields_of(await client.get(f"/v1/audit-log?{query}")) == [query.partition("=")[0]]


async def test_a_tenant_sees_only_its_own_entries_and_no_other_tenant_names(context: ApiContext, store: Store) -> None:
    assert await store.tenant_write([TenantWrite(Tenant(id=THEIRS, name="theirs", created_at=NOW, updated_at=NOW))])
    keys = {}
    for name, tenant_id, scope in [("own", DEFAULT_TENANT, "manage"), ("theirs", THEIRS, "manage"), ("op", THEIRS, "admin")]:
        _, text = await KeyService(store).create(tenant_id, name, [scope])
        keys[name] = {"Authorization": f"Bearer {text}"}
    async with make_client(context._replace(access=Authenticator(store, KeySessions(), is_required=True))) as client:
        client.headers.update(keys["own"])
        created = await client.post("/v1/schedules", json=definition(), headers={"X-Request-Id": "r1"})
        assert created.status_code == 201
        entry = (await entries(client, action="schedule.create"))[0]
        assert (entry["actor"], entry["request_id"], entry["tenant_id"]) == ("own", "r1", str(DEFAULT_TENANT))
        assert entry["key_id"] is not None
        assert await actions(client, tenant="default", action="schedule.create") == ["schedule.create"]
        refused = [problem_of(await client.get(f"/v1/audit-log?tenant={ref}"), 403) for ref in ("theirs", "unknown", "all")]
        assert len({problem["detail"] for problem in refused}) == 1
        assert problem_of(await client.get("/v1/audit?tenant=theirs"), 403)["detail"] == refused[0]["detail"]
        client.headers.update(keys["theirs"])
        assert await actions(client) == ["key.create", "key.create"]
        client.headers.update(keys["op"])
        assert "schedule.create" in await actions(client)
        assert await actions(client, tenant="default") == ["key.create", "schedule.create"]
