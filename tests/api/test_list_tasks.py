"""GET /v1/tasks."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from everbeat.api import paging
from everbeat.store.base import Store
from tests.api.conftest import ON_BOTH_STORES, claim, complete, definition, fields_of, submit
from tests.factories import OTHER_TENANT, make_task


async def listed(client: httpx.AsyncClient, **query: Any) -> list[str]:
    """Return the types of all matching tasks, over all pages."""
    found: list[str] = []
    for _ in range(100):
        response = await client.get("/v1/tasks", params=query)
        assert response.status_code == 200, response.text
        found += [task["type"] for task in response.json()["items"]]
        if response.json()["next_cursor"] is None:
            return found
        query["cursor"] = response.json()["next_cursor"]
    raise AssertionError("the list never ends")


@ON_BOTH_STORES
async def test_live_and_finished_tasks_are_listed_newest_first(client: httpx.AsyncClient) -> None:
    for number in range(7):
        await submit(client, f"t{number}")
    for claimed in (await claim(client, max=3)) + []:
        await complete(client, claimed)
    await claim(client, max=1)

    newest_first = [f"t{number}" for number in reversed(range(7))]
    assert await listed(client) == newest_first
    for limit in (1, 2, 3, 7):
        assert await listed(client, limit=limit) == newest_first


@ON_BOTH_STORES
async def test_it_filters_by_state(client: httpx.AsyncClient) -> None:
    await submit(client, "later", delay_seconds=600)
    await submit(client, "done")
    (claimed,) = await claim(client)
    await complete(client, claimed)
    await submit(client, "running")
    await claim(client)
    await submit(client, "ready")
    cancelled = await submit(client, "cancelled")
    await client.post(f"/v1/tasks/{cancelled['id']}/cancel")

    states = {"scheduled": "later", "completed": "done", "running": "running", "ready": "ready", "cancelled": "cancelled"}
    for state, type_ in states.items():
        assert await listed(client, state=state) == [type_]
    for state in ("held", "failed", "dead"):
        assert await listed(client, state=state) == []


@ON_BOTH_STORES
async def test_it_filters_by_queue_type_and_label(client: httpx.AsyncClient) -> None:
    await submit(client, "a", queue="q1", labels={"team": "billing", "tier": "1"})
    await submit(client, "b", queue="q1", labels={"team": "search"})
    await submit(client, "a", queue="q2")
    (claimed,) = await claim(client, "q2")
    await complete(client, claimed)

    assert await listed(client, queue="q1") == ["b", "a"]
    assert await listed(client, type="a") == ["a", "a"]
    assert await listed(client, queue="q2", type="a") == ["a"]
    assert await listed(client, label="team") == ["b", "a"]
    assert await listed(client, label="team=billing") == ["a"]
    assert await listed(client, label="team:search") == ["b"]
    assert await listed(client, label="tier=2") == []
    assert await listed(client, queue="nowhere") == []


@ON_BOTH_STORES
async def test_it_filters_by_schedule_by_id_and_name(client: httpx.AsyncClient) -> None:
    schedule = (await client.post("/v1/schedules", json=definition(name="nightly"))).json()
    await client.post("/v1/schedules/nightly/trigger")
    await submit(client, "other")

    for ref in ("nightly", schedule["id"]):
        assert await listed(client, schedule=ref) == ["report"]
    assert await listed(client, schedule="unknown") == []
    await client.delete("/v1/schedules/nightly")
    assert await listed(client, schedule=schedule["id"]) == ["report"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"state": "unknown"}, "state"),
        ({"queue": "a b"}, "queue"),
        ({"type": ""}, "type"),
        ({"schedule": "a/b"}, "schedule"),
        ({"label": ""}, "label"),
        ({"label": "=x"}, "label"),
        ({"label": "a=\x00"}, "label"),
        ({"label": "a=" + "x" * 257}, "label"),
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"cursor": "x"}, "cursor"),
        ({"cursor": "bmFiYw"}, "cursor"),
        ({"color": "red"}, "color"),
    ],
)
async def test_an_invalid_parameter_is_named(client: httpx.AsyncClient, query: dict[str, str], field: str) -> None:
    assert fields_of(await client.get("/v1/tasks", params=query)) == [field]


@ON_BOTH_STORES
async def test_tasks_of_other_tenants_are_not_listed(client: httpx.AsyncClient, store: Store) -> None:
    await store.task_submit([make_task(tenant_id=OTHER_TENANT)])

    assert await listed(client) == []
    assert await claim(client) == []


async def test_a_page_of_large_tasks_is_short_and_the_next_ones_follow(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "MAX_PAGE_BYTES", 200_000)
    tasks = [
        {"type": "large" if number % 10 else "small", "payload": "x" * (40_000 if number % 10 else 1)} for number in range(35)
    ]
    ids = (await client.post("/v1/tasks/batch", json={"tasks": tasks})).json()["ids"]
    found: list[str] = []
    cursor: str | None = None
    while cursor is not None or not found:
        page = (await client.get("/v1/tasks", params={"limit": 30, **({"cursor": cursor} if cursor else {})})).json()
        assert 1 <= len(page["items"]) <= 6
        found += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert found == ids[::-1]
