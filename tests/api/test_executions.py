"""POST /v1/schedules/{ref}/trigger and …/backfill, GET …/executions, and the overlap policies as users see them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from everbeat.store.base import Store
from tests.api.conftest import (
    ON_BOTH_STORES,
    claim,
    complete,
    definition,
    fields_of,
    lease,
    message_of,
    problem_of,
    read,
    report,
)
from tests.factories import NOW, SteppedNode, minutes

WINDOW = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T05:00:00Z"}
TICKS = [f"2026-01-01T0{hour}:00:00.000000Z" for hour in range(5)]


async def create(client: httpx.AsyncClient, **more: Any) -> dict[str, Any]:
    response = await client.post("/v1/schedules", json=definition(**{"cron": "0 * * * *", **more}))
    assert response.status_code == 201, response.text
    schedule: dict[str, Any] = response.json()
    return schedule


async def backfill(client: httpx.AsyncClient, **more: Any) -> dict[str, Any]:
    response = await client.post("/v1/schedules/nightly/backfill", json={**WINDOW, **more})
    assert response.status_code == 200, response.text
    filled: dict[str, Any] = response.json()
    return filled


async def executions(client: httpx.AsyncClient, ref: str = "nightly", **query: Any) -> list[dict[str, Any]]:
    response = await client.get(f"/v1/schedules/{ref}/executions", params=query)
    assert response.status_code == 200, response.text
    items: list[dict[str, Any]] = response.json()["items"]
    return items


# Trigger


@ON_BOTH_STORES
async def test_a_trigger_creates_a_task_of_the_schedule(client: httpx.AsyncClient) -> None:
    schedule = await create(client, payload={"a": 1}, priority=7, labels={"x": "y"}, max_attempts=5)
    response = await client.post("/v1/schedules/nightly/trigger")

    assert response.status_code == 201
    task = response.json()
    assert response.headers["location"] == f"/v1/tasks/{task['id']}"
    assert (task["origin"], task["schedule_id"], task["schedule"]) == ("trigger", schedule["id"], "nightly")
    assert (task["payload"], task["priority"], task["labels"], task["max_attempts"]) == ({"a": 1}, 7, {"x": "y"}, 5)
    assert (task["type"], task["scheduled_for"], task["state"]) == ("report", None, "ready")
    assert await read(client, task) == task
    assert [one["id"] for one in await claim(client)] == [task["id"]]


@ON_BOTH_STORES
@pytest.mark.parametrize("payload", [{"b": 2}, [], 0, "x", False])
async def test_a_trigger_may_have_its_own_payload(client: httpx.AsyncClient, payload: Any) -> None:
    schedule = await create(client, payload={"a": 1})
    task = (await client.post(f"/v1/schedules/{schedule['id']}/trigger", json={"payload": payload})).json()

    assert task["payload"] == payload


@ON_BOTH_STORES
async def test_a_paused_schedule_can_be_triggered(client: httpx.AsyncClient) -> None:
    await create(client, enabled=False)

    assert (await client.post("/v1/schedules/nightly/trigger", json={})).status_code == 201


@ON_BOTH_STORES
async def test_a_trigger_with_an_idempotency_key_creates_one_task(client: httpx.AsyncClient) -> None:
    await create(client)
    headers = {"Idempotency-Key": "today"}
    path = "/v1/schedules/nightly/trigger"
    responses = await asyncio.gather(*(client.post(path, headers=headers) for _ in range(3)))

    assert {response.status_code for response in responses} == {201}
    assert len({response.json()["id"] for response in responses}) == 1
    assert fields_of(await client.post(path, headers=headers, json={"payload": 1})) == ["Idempotency-Key"]


@ON_BOTH_STORES
async def test_an_invalid_trigger_request_is_refused(client: httpx.AsyncClient) -> None:
    await create(client)
    problem_of(await client.post("/v1/schedules/unknown/trigger"), 404)
    assert fields_of(await client.post("/v1/schedules/nightly/trigger", json={"when": "now"})) == ["when"]
    assert fields_of(await client.post("/v1/schedules/nightly/trigger", json={"payload": "x" * 70_000}), 413) == ["payload"]
    assert await executions(client) == []


# Backfill


@ON_BOTH_STORES
async def test_a_dry_run_returns_the_ticks_and_creates_no_tasks(client: httpx.AsyncClient) -> None:
    await create(client, enabled=False)

    assert await backfill(client, dry_run=True) == {"count": 5, "ticks": TICKS}
    assert await executions(client) == []


@ON_BOTH_STORES
async def test_a_backfill_creates_one_task_for_each_tick(client: httpx.AsyncClient) -> None:
    schedule = await create(client, enabled=False)

    assert await backfill(client) == {"count": 5, "ticks": TICKS}
    made = await executions(client)
    assert sorted(task["scheduled_for"] for task in made) == TICKS
    assert {(task["origin"], task["schedule_id"], task["state"]) for task in made} == {("backfill", schedule["id"], "ready")}
    assert await backfill(client) == {"count": 0, "ticks": []}
    assert await backfill(client, missing_only=False) == {"count": 5, "ticks": TICKS}
    assert len(await executions(client)) == 10


@ON_BOTH_STORES
async def test_concurrent_backfills_create_each_task_once(client: httpx.AsyncClient) -> None:
    await create(client, enabled=False)
    responses = await asyncio.gather(*(backfill(client) for _ in range(3)))

    assert sum(response["count"] for response in responses) == 5
    assert len(await executions(client)) == 5


@ON_BOTH_STORES
async def test_a_rate_spreads_a_backfill_over_time(client: httpx.AsyncClient) -> None:
    await create(client, enabled=False)
    await backfill(client, rate_per_second=0.01)

    states = sorted(task["state"] for task in await executions(client))
    assert states == ["ready", "scheduled", "scheduled", "scheduled", "scheduled"]


@ON_BOTH_STORES
async def test_a_backfill_returns_the_first_hundred_ticks(client: httpx.AsyncClient) -> None:
    await create(client, enabled=False, cron="* * * * *")
    shown = await backfill(client, dry_run=True)

    assert (shown["count"], len(shown["ticks"]), shown["ticks"][0]) == (300, 100, TICKS[0])


@ON_BOTH_STORES
async def test_future_ticks_of_an_active_schedule_are_not_backfilled(client: httpx.AsyncClient) -> None:
    await create(client)

    assert (await backfill(client, **{"from": "2090-01-01T00:00:00Z", "to": "2091-01-01T00:00:00Z"}))["count"] == 0


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"from": ...}, "from"),
        ({"to": ...}, "to"),
        ({"to": WINDOW["from"]}, "to"),
        ({"to": "2025-01-01T00:00:00Z"}, "to"),
        ({"from": "2026-01-01T00:00:00"}, "from"),
        ({"from": "1900-01-01T00:00:00Z"}, "from"),
        ({"to": "9999-01-01T00:00:00Z"}, "to"),
        ({"from": "2020-01-01T00:00:00Z"}, "to"),
        ({"missing_only": "yes"}, "missing_only"),
        ({"dry_run": 1}, "dry_run"),
        ({"rate_per_second": 0}, "rate_per_second"),
        ({"rate_per_second": 1e-300}, "rate_per_second"),
        ({"limit": 5}, "limit"),
    ],
)
async def test_an_invalid_backfill_is_refused(client: httpx.AsyncClient, wrong: dict[str, Any], field: str) -> None:
    await create(client, enabled=False)
    body = {key: value for key, value in {**WINDOW, **wrong}.items() if value is not ...}

    assert fields_of(await client.post("/v1/schedules/nightly/backfill", json=body)) == [field]
    assert await executions(client) == []


@ON_BOTH_STORES
async def test_an_unknown_schedule_is_not_found(client: httpx.AsyncClient) -> None:
    problem_of(await client.post("/v1/schedules/unknown/backfill", json=WINDOW), 404)
    problem_of(await client.get("/v1/schedules/unknown/executions"), 404)


# Executions


@ON_BOTH_STORES
async def test_executions_are_the_tasks_of_the_schedule_newest_first(client: httpx.AsyncClient) -> None:
    await create(client)
    await create(client, name="other")
    made = [(await client.post("/v1/schedules/nightly/trigger")).json()["id"] for _ in range(5)]
    await client.post("/v1/schedules/other/trigger")
    for claimed in await claim(client, max=2):
        await complete(client, claimed)

    assert [task["id"] for task in await executions(client)] == made[::-1]
    assert [task["id"] for task in await executions(client, state="completed")] == made[1::-1]
    assert len(await executions(client, state="ready")) == 3
    page = (await client.get("/v1/schedules/nightly/executions?limit=3")).json()
    rest = (await client.get(f"/v1/schedules/nightly/executions?limit=3&cursor={page['next_cursor']}")).json()
    assert [task["id"] for task in page["items"] + rest["items"]] == made[::-1]
    assert rest["next_cursor"] is None
    assert fields_of(await client.get("/v1/schedules/nightly/executions?state=odd")) == ["state"]
    assert fields_of(await client.get("/v1/schedules/nightly/executions?queue=a")) == ["queue"]


# Overlap


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


@ON_BOTH_STORES
async def test_queued_ticks_run_one_after_the_other(client: httpx.AsyncClient, node: SteppedNode) -> None:
    await node.put("nightly", overlap="queue")
    for minute in (1, 2):
        await node.step(NOW + minutes(minute))
    assert [task["state"] for task in await executions(client)] == ["held", "ready"]

    (claimed,) = await claim(client)
    assert await claim(client) == []
    await complete(client, claimed)
    await node.release_held()
    (second,) = await claim(client)
    assert second["scheduled_for"] > claimed["scheduled_for"]
    assert [task["state"] for task in await executions(client)] == ["running", "completed"]


@ON_BOTH_STORES
async def test_a_newer_tick_cancels_the_previous_one(client: httpx.AsyncClient, node: SteppedNode) -> None:
    await node.put("nightly", overlap="cancel_previous")
    await node.step(NOW + minutes(1))
    (claimed,) = await claim(client)
    await node.step(NOW + minutes(2))
    await node.release_held()
    newer, older = await executions(client)
    assert (newer["state"], older["state"], older["cancel_requested"]) == ("held", "running", True)

    (heartbeat,) = await report(client, "heartbeat", "leases", lease(claimed))
    assert heartbeat["status"] == "cancel"
    await report(client, "fail", "failures", lease(claimed, error={"message": "stopped", "kind": "cancelled"}))
    await node.release_held()
    assert [task["state"] for task in await executions(client)] == ["ready", "cancelled"]


@pytest.mark.parametrize("overlap", ["skip", "allow", "queue", "cancel_previous"])
async def test_every_overlap_policy_is_accepted(client: httpx.AsyncClient, overlap: str) -> None:
    assert (await create(client, overlap=overlap))["overlap"] == overlap


async def test_an_unknown_overlap_policy_is_refused_with_a_list_of_the_known_ones(client: httpx.AsyncClient) -> None:
    message = message_of(await client.post("/v1/schedules", json=definition(overlap="merge")), "overlap")

    assert "cancel_previous" in message
