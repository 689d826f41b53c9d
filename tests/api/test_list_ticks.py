"""GET /v1/schedules/{ref}/ticks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest

from everbeat.api.app import ApiContext
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.base import Store
from everbeat.store.values import Firing, NodeHeartbeat
from tests.api.conftest import definition, fields_of, problem_of

HOURLY = definition(name="hourly", cron="0 * * * *")


async def registered_ago(context: ApiContext, **ago: float) -> datetime:
    """Register the hourly schedule as of some time ago, without a node that fires it, and return the current time."""
    now = await context.store.clock()
    await context.schedules.create(DEFAULT_TENANT, HOURLY, now=now - timedelta(**ago))
    return now


async def entries(client: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    response = await client.get("/v1/schedules/hourly/ticks", params=query)
    assert response.status_code == 200, response.text
    items: list[dict[str, Any]] = response.json()["items"]
    return items


async def fire(store: Store, context: ApiContext) -> datetime:
    """Fire the next tick of the hourly schedule, as the ticker would."""
    schedule = await context.schedules.get(DEFAULT_TENANT, "hourly")
    assert schedule.next_tick_at is not None
    node = uuid4()
    renewed = await store.partition_renew(
        NodeHeartbeat(node, "test", ("scheduler",), "0", 60.0), frozenset({schedule.partition})
    )
    following = schedule.next_tick_at + timedelta(hours=1)
    firing = Firing(
        schedule_id=schedule.id,
        tenant_id=schedule.tenant_id,
        partition=schedule.partition,
        epoch=renewed.owned[schedule.partition],
        revision=schedule.revision,
        expected=schedule.next_tick_at,
        fires=schedule.next_tick_at,
        task_id=uuid4(),
        cursor_at=schedule.next_tick_at,
        next_tick_at=following,
        due_at=following,
    )
    await store.month_ensure([schedule.next_tick_at])
    assert len((await store.tick_fire(node, [firing])).fired) == 1
    return schedule.next_tick_at


async def test_a_new_schedule_has_upcoming_ticks(client: httpx.AsyncClient) -> None:
    created = (await client.post("/v1/schedules", json=HOURLY)).json()
    items = await entries(client)

    assert len(items) == 24
    assert items[0] == {
        **{"scheduled_for": created["next_tick_at"], "outcome": "upcoming"},
        **{"reason": None, "task_id": None, "fired_at": None, "lag_ms": None},
    }


async def test_a_fired_tick_has_its_task_and_its_lag(client: httpx.AsyncClient, context: ApiContext) -> None:
    await registered_ago(context, hours=1.5)
    tick = await fire(context.store, context)
    first = (await entries(client))[0]

    assert datetime.fromisoformat(first["scheduled_for"]) == tick
    assert first["outcome"] == "fired"
    assert first["task_id"] is not None
    lag = datetime.fromisoformat(first["fired_at"]) - tick
    assert first["lag_ms"] == pytest.approx(lag.total_seconds() * 1000, abs=0.01)


async def test_an_expected_tick_without_a_row_is_missing(client: httpx.AsyncClient, context: ApiContext) -> None:
    await registered_ago(context, hours=5)

    outcomes = [item["outcome"] for item in await entries(client)]
    assert outcomes.count("missing") >= 4
    assert outcomes == sorted(outcomes, key=["missing", "upcoming"].index)


async def test_a_range_of_skipped_ticks_is_one_entry(client: httpx.AsyncClient, context: ApiContext) -> None:
    now = await registered_ago(context, hours=10)
    await context.schedules.pause(DEFAULT_TENANT, "hourly", note=None, now=now - timedelta(hours=9.5))
    await client.post("/v1/schedules/hourly/resume")
    skipped = [item for item in await entries(client) if item["outcome"] == "skipped" and "until" in item]

    (range_,) = skipped
    assert range_["reason"] == "paused"
    assert range_["until"] > range_["scheduled_for"]
    assert range_["count"] >= 9


async def test_the_pages_contain_every_entry_once(client: httpx.AsyncClient, context: ApiContext) -> None:
    now = await registered_ago(context, hours=10)
    await context.schedules.pause(DEFAULT_TENANT, "hourly", note=None, now=now - timedelta(hours=7))
    await context.schedules.resume(DEFAULT_TENANT, "hourly", now=now - timedelta(hours=4))
    query = {"from": (now - timedelta(days=1)).isoformat(), "to": (now + timedelta(days=1)).isoformat()}
    all_entries = await entries(client, **query, limit=1000)
    seen: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await client.get("/v1/schedules/hourly/ticks", params={**query, "limit": 4, **cursor})).json()
        seen += page["items"]
        if page["next_cursor"] is None:
            break
        assert len(page["items"]) == 4
        cursor = {"cursor": page["next_cursor"]}

    assert seen == all_entries
    assert {item["outcome"] for item in all_entries} >= {"skipped", "upcoming"}


async def test_the_window_includes_from_and_excludes_to(client: httpx.AsyncClient) -> None:
    await client.post("/v1/schedules", json=HOURLY)
    items = await entries(client, **{"from": "2998-01-01T00:00:00Z", "to": "2998-01-01T03:00:00Z"})

    assert [item["scheduled_for"] for item in items] == [f"2998-01-01T0{hour}:00:00.000000Z" for hour in range(3)]


@pytest.mark.parametrize("offset", ["%2B02:00", "+02:00", " 02:00", "%2B0200"])
async def test_a_time_may_have_any_offset_even_with_an_unescaped_plus(client: httpx.AsyncClient, offset: str) -> None:
    await client.post("/v1/schedules", json=HOURLY)
    query = f"from=2998-01-01T02:00:00{offset}&to=2998-01-01T03:00:00.000001{offset}"
    response = await client.get(f"/v1/schedules/hourly/ticks?{query}")

    times = [item["scheduled_for"] for item in response.json()["items"]]
    assert times == ["2998-01-01T00:00:00.000000Z", "2998-01-01T01:00:00.000000Z"]


@pytest.mark.parametrize(
    "time", ["2026-01-01T00:00:00", "2026-01-01", "yesterday", "", "1", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]
)
@pytest.mark.parametrize("field", ["from", "to"])
async def test_it_rejects_a_naive_or_impossible_time(client: httpx.AsyncClient, field: str, time: str) -> None:
    await client.post("/v1/schedules", json=HOURLY)

    assert fields_of(await client.get("/v1/schedules/hourly/ticks", params={field: time})) == [field]


async def test_it_rejects_a_window_that_ends_before_it_begins(client: httpx.AsyncClient) -> None:
    await client.post("/v1/schedules", json=HOURLY)
    window = {"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}

    assert fields_of(await client.get("/v1/schedules/hourly/ticks", params=window)) == ["to"]


@pytest.mark.parametrize("query", ["cursor=x", "cursor=bmE", "limit=0", "state=fired"])
async def test_it_rejects_bad_parameters(client: httpx.AsyncClient, query: str) -> None:
    await client.post("/v1/schedules", json=HOURLY)

    assert fields_of(await client.get(f"/v1/schedules/hourly/ticks?{query}")) == [query.partition("=")[0]]


async def test_a_wide_window_of_a_frequent_schedule_returns_one_page(client: httpx.AsyncClient) -> None:
    await client.post("/v1/schedules", json=definition(name="hourly", cron=..., every_seconds=1))
    window = {"from": "1970-01-01T00:00:00Z", "to": "9998-12-31T00:00:00Z", "limit": 1000}

    assert len(await entries(client, **window)) == 1000


async def test_an_unknown_schedule_is_not_found(client: httpx.AsyncClient) -> None:
    problem_of(await client.get("/v1/schedules/hourly/ticks"), 404)
