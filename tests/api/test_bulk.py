"""POST /v1/schedules/bulk and /v1/tasks/bulk, and /v1/operations."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from everbeat.api.app import ApiContext
from everbeat.services.bulk import BulkRunner
from tests.api.conftest import fields_of, submit
from tests.factories import definition


async def run(context: ApiContext) -> None:
    runner = BulkRunner(context.store, context.schedules, context.tasks, context.backfill)
    while await runner.run_once():
        pass


async def bulk(client: httpx.AsyncClient, subject: str = "tasks", **body: Any) -> httpx.Response:
    return await client.post(f"/v1/{subject}/bulk", json=body)


async def test_an_operation_shows_its_progress_and_its_end(client: httpx.AsyncClient, context: ApiContext) -> None:
    for _ in range(3):
        await submit(client, queue="reports")
    created = await bulk(client, action="cancel", filter={"queue": "reports"}, expect_count=3)
    assert created.status_code == 202, created.text
    operation = created.json()
    assert (operation["state"], operation["matched"], operation["done"]) == ("running", 3, 0)
    assert operation["filter"] == {"queue": "reports"}
    assert created.headers["location"] == f"/v1/operations/{operation['id']}"
    await run(context)
    ended = (await client.get(created.headers["location"])).json()
    assert (ended["state"], ended["done"], ended["failed"], ended["by"]) == ("done", 3, 0, "local")
    assert (await client.get("/v1/operations")).json()["items"] == [ended]
    refused = await client.post(f"/v1/operations/{operation['id']}/cancel")
    assert refused.status_code == 409


async def test_a_dry_run_only_counts(client: httpx.AsyncClient, context: ApiContext) -> None:
    await client.put("/v1/schedules/a", json=definition("a"))
    response = await bulk(client, "schedules", action="delete", filter={"all": True}, dry_run=True)
    assert response.status_code == 200
    assert (response.json()["id"], response.json()["matched"], response.json()["filter"]) == (None, 1, {"all": True})
    await run(context)
    assert (await client.get("/v1/schedules/a")).status_code == 200
    assert (await client.get("/v1/operations")).json()["items"] == []


async def test_schedules_are_changed_by_filter(client: httpx.AsyncClient, context: ApiContext) -> None:
    for name in ("report-a", "report-b", "other"):
        await client.put(f"/v1/schedules/{name}", json=definition(name))
    await bulk(client, "schedules", action="pause", filter={"name_prefix": "report-", "status": "active"}, note="migration")
    await run(context)
    paused = (await client.get("/v1/schedules?status=paused")).json()["items"]
    assert [(one["name"], one["note"]) for one in paused] == [("report-a", "migration"), ("report-b", "migration")]


async def test_a_running_operation_is_cancelled(client: httpx.AsyncClient, context: ApiContext) -> None:
    await submit(client)
    operation = (await bulk(client, action="cancel", filter={"all": True})).json()
    cancelled = (await client.post(f"/v1/operations/{operation['id']}/cancel")).json()
    assert cancelled["state"] == "cancelled"
    await run(context)
    assert (await client.get("/v1/tasks?state=ready")).json()["items"] != []


async def test_a_repeated_key_returns_the_same_operation(client: httpx.AsyncClient) -> None:
    body = {"action": "cancel", "filter": {"label": "team=a", "from": "2026-01-01T00:00:00Z"}}
    first, second = [await client.post("/v1/tasks/bulk", json=body, headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["id"] == second.json()["id"]
    assert first.json()["filter"] == {"label": "team=a", "from": "2026-01-01T00:00:00.000000Z"}


@pytest.mark.parametrize(
    ("subject", "body", "field"),
    [
        ("tasks", {"action": "cancel", "filter": {}}, "filter"),
        ("schedules", {"action": "delete", "filter": {}}, "filter"),
        ("tasks", {"action": "cancel", "filter": {"all": True, "queue": "a"}}, "filter.all"),
        ("tasks", {"action": "delete", "filter": {"all": True}}, "action"),
        ("tasks", {"action": "cancel"}, "filter"),
        ("tasks", {"action": "cancel", "filter": {"queue": "a b"}}, "filter.queue"),
        ("tasks", {"action": "cancel", "filter": {"color": "red"}}, "filter.color"),
        ("tasks", {"action": "cancel", "filter": {"from": "2026-01-01T00:00:00"}}, "filter.from"),
        ("schedules", {"action": "pause", "filter": {"status": "late"}}, "filter.status"),
        ("schedules", {"action": "pause", "filter": {"all": True}, "expect_count": -1}, "expect_count"),
    ],
)
async def test_bad_input_is_refused(client: httpx.AsyncClient, subject: str, body: dict[str, Any], field: str) -> None:
    response = await bulk(client, subject, **body)
    assert response.status_code == 422, response.text
    assert fields_of(response) == [field]


async def test_an_unexpected_count_is_a_conflict(client: httpx.AsyncClient) -> None:
    response = await bulk(client, action="cancel", filter={"all": True}, expect_count=1)
    assert response.status_code == 409
    assert "0 tasks match, not 1" in response.json()["detail"]


async def test_an_unknown_operation_is_not_found(client: httpx.AsyncClient) -> None:
    for path in ("/v1/operations/nothing", "/v1/operations/00000000-0000-7000-8000-000000000000"):
        assert (await client.get(path)).status_code == 404
