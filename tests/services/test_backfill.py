"""Backfill and trigger: missed ticks are run by hand, each tick once, and only ticks of the past."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from everbeat.core.errors import InvalidInput, NotFound, TooLarge
from everbeat.core.misfire import Lateness
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import Origin, TaskKey, TaskState
from everbeat.services import backfill as module
from everbeat.services.backfill import BackfillResult
from everbeat.services.calendars import CalendarService
from everbeat.services.events import TasksSubmitted
from everbeat.services.ticker import TickerSettings
from everbeat.store.base import Store
from everbeat.store.values import QueueDepth
from tests.factories import (
    NOW,
    OTHER_TENANT,
    SteppedNode,
    count_rows,
    ledger,
    ledger_summary,
    minutes,
    open_second_store,
    seconds,
)
from tests.services.workers import Worker, finish_ready_tasks, get

LATE = TickerSettings(lateness=Lateness(catch_up_rate=0))


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store, settings=LATE)


async def backfill(node: SteppedNode, from_: float, to: float, *, name: str = "job", **more: Any) -> list[float]:
    """Backfill a window, and return the ticks that got a task, in minutes since NOW, like the window."""
    filled = await node.backfill.backfill(
        DEFAULT_TENANT, name, from_=NOW + minutes(from_), to=NOW + minutes(to), now=node.now, **more
    )
    return in_minutes(filled)


def in_minutes(filled: BackfillResult) -> list[float]:
    assert filled.count == len(filled.ticks)
    return [(tick - NOW).total_seconds() / 60 for tick in filled.ticks]


async def after_an_outage(node: SteppedNode, **more: Any) -> None:
    """Ticks 1 and 2 fired, 3 to 6 were missed, 7 and 8 fired."""
    await node.put(**{"catch_up": "none", "overlap": "allow", **more})
    await node.run(NOW + minutes(2), by_seconds=60)
    await node.step(NOW + minutes(6) + seconds(30))
    await node.run(NOW + minutes(8), by_seconds=30)
    await finish_ready_tasks(node, NOW + minutes(8.5))


async def test_only_missing_ticks_get_a_task(node: SteppedNode) -> None:
    await after_an_outage(node)
    assert await backfill(node, 0.5, 60) == [3, 4, 5, 6]
    tasks = await Worker(node).claim(10)
    assert [(task.scheduled_for, task.origin) for task in tasks] == [
        (NOW + minutes(tick), Origin.BACKFILL) for tick in (3, 4, 5, 6)
    ]
    assert {task.schedule for task in tasks} == {"job"}


async def test_a_repeated_backfill_creates_no_tasks(node: SteppedNode) -> None:
    await after_an_outage(node)
    assert await backfill(node, 0.5, 5) == [3, 4]
    assert await backfill(node, 0.5, 60) == [5, 6]
    assert await backfill(node, 0.5, 60) == []
    await finish_ready_tasks(node)
    node.move_to(NOW + timedelta(days=3))
    assert await backfill(node, 0.5, 60) == [], "also after its keys have expired and its tasks have finished"


async def test_concurrent_backfills_fill_each_tick_once(store: Store) -> None:
    second_store = open_second_store(store)
    nodes = [SteppedNode(store, settings=LATE), SteppedNode(second_store)]
    await after_an_outage(nodes[0])
    nodes[1].move_to(nodes[0].now)
    for node in nodes:
        node.events.clear()
    filled = await asyncio.gather(*(backfill(node, 0.5, 60) for node in nodes for _ in range(3)))
    assert sorted(tick for ticks in filled for tick in ticks) == [3, 4, 5, 6]
    assert await store.task_depths() == [QueueDepth("default", "ready", 4)]
    assert sum(event.count for node in nodes for event in node.events_of(TasksSubmitted)) == 4
    await second_store.close()


async def test_a_dry_run_returns_the_ticks_and_writes_nothing(node: SteppedNode) -> None:
    await after_an_outage(node)
    assert await backfill(node, 0.5, 60, dry_run=True) == [3, 4, 5, 6]
    assert await count_rows(node.store, "tasks") == 0
    assert await backfill(node, 0.5, 60, dry_run=True, missing_only=False) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert await backfill(node, 0.5, 60) == [3, 4, 5, 6], "the dry run has not filled them"


async def test_without_missing_only_each_backfill_runs_all_ticks_again(node: SteppedNode) -> None:
    await after_an_outage(node)
    for _ in range(2):
        assert await backfill(node, 2, 5, missing_only=False) == [2, 3, 4]
    assert await count_rows(node.store, "tasks") == 6
    assert await backfill(node, 0.5, 60) == [5, 6], "filled ticks are not missing any more"


async def test_a_rate_spreads_the_tasks_over_time(node: SteppedNode) -> None:
    await after_an_outage(node)
    assert await backfill(node, 0.5, 60, rate_per_second=0.5) == [3, 4, 5, 6]
    assert await node.store.task_depths() == [QueueDepth("default", "ready", 1), QueueDepth("default", "scheduled", 3)]
    start, order = node.now, []
    for at in (0, 2, 4, 6):
        await node.promote(start + seconds(at))
        order += [task.scheduled_for for task in await Worker(node).claim(10)]
    assert order == [NOW + minutes(tick) for tick in (3, 4, 5, 6)]


@pytest.mark.parametrize(("from_", "to", "expected"), [(3, 6, [3, 4, 5]), (3.01, 6.01, [4, 5, 6]), (6.5, 6.9, [])])
async def test_the_window_includes_its_start_and_excludes_its_end(
    node: SteppedNode, from_: float, to: float, expected: list[float]
) -> None:
    await after_an_outage(node)
    assert await backfill(node, from_, to) == expected


@pytest.mark.parametrize("to", [0, -5])
async def test_a_window_that_ends_before_it_begins_is_refused(node: SteppedNode, to: float) -> None:
    await node.put()
    with pytest.raises(InvalidInput, match="later than from"):
        await backfill(node, 0, to)


async def test_future_and_due_ticks_are_left_to_the_schedule(node: SteppedNode) -> None:
    job = await node.put(overlap="allow")
    await node.run(NOW + minutes(2), by_seconds=60)
    node.move_to(NOW + minutes(2.5))
    assert await backfill(node, 0.5, 600, missing_only=False) == [1, 2]
    assert await backfill(node, 60, 600) == []
    node.move_to(NOW + minutes(5))  # due, but not yet fired: the schedule will record them
    assert await backfill(node, 0.5, 600) == []
    await node.step(NOW + minutes(5))
    assert [line[1] for line in ledger_summary(await ledger(node.store, job.id))] == ["fired", "fired", "misfire", "fired"]
    assert await backfill(node, 0.5, 600) == [3, 4]


async def test_ticks_before_the_creation_of_the_schedule_can_be_filled(node: SteppedNode) -> None:
    await node.put()
    assert await backfill(node, -3, 0) == [-3, -2, -1]
    assert {task.scheduled_for for task in await Worker(node).claim(10)} == {NOW - minutes(tick) for tick in (1, 2, 3)}


async def test_ticks_that_a_calendar_excludes_are_not_filled(node: SteppedNode) -> None:
    calendars = CalendarService(node.store, node.schedules)
    day = {"intervals": [{"from": "2026-03-02T11:55:00", "to": "2026-03-02T11:58:00"}]}
    await calendars.put(DEFAULT_TENANT, "closed", day, now=NOW)
    await node.put(calendars={"exclude": ["closed"]})
    ticks = await backfill(node, -8, 0)
    assert set(range(-5, -3)).isdisjoint(ticks)
    assert {-8, -7, -6, -1} <= set(ticks)
    assert await backfill(node, -8, 0, missing_only=False) == ticks


async def test_ticks_before_starts_at_or_after_ends_at_are_not_filled(node: SteppedNode) -> None:
    starts, ends = NOW - minutes(4), NOW + minutes(2)
    await node.put(starts_at=starts.isoformat(), ends_at=ends.isoformat())
    await node.run(NOW + minutes(4), by_seconds=60)
    assert await backfill(node, -10, 10, missing_only=False) == [-4, -3, -2, -1, 0, 1, 2]


async def test_ticks_of_a_current_pause_can_be_filled(node: SteppedNode) -> None:
    job = await node.put(overlap="allow")
    await node.run(NOW + minutes(2), by_seconds=60)
    await node.schedules.pause(DEFAULT_TENANT, "job", note=None, now=node.now)
    await node.run(NOW + minutes(5) + seconds(30), by_seconds=60)
    assert await backfill(node, 0.5, 60) == [3, 4, 5]
    ticks = [task.scheduled_for for task in await Worker(node).claim(10)]
    assert ticks == [NOW + minutes(tick) for tick in (3, 4, 5)], "backfilled tasks run although the schedule is paused"
    await node.schedules.resume(DEFAULT_TENANT, "job", now=node.now)
    assert ledger_summary(await ledger(node.store, job.id))[-1] == (180, "paused", 3)
    assert await backfill(node, 0.5, 60) == []


async def test_a_finished_schedule_can_be_filled(node: SteppedNode) -> None:
    await node.put(at=(NOW + minutes(1)).isoformat(), catch_up="none")
    await node.step(NOW + minutes(10))
    assert await backfill(node, 0.5, 60) == [1]


async def test_a_window_with_too_many_ticks_is_refused(node: SteppedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TICKS", 5)
    monkeypatch.setattr(module, "_BATCH_SIZE", 2)
    await node.put()
    with pytest.raises(InvalidInput, match="more than 5 ticks"):
        await backfill(node, -6, 0)
    assert await count_rows(node.store, "tasks") == 0
    assert await backfill(node, -5, 0) == [-5, -4, -3, -2, -1]


async def test_a_long_ledger_is_read_completely(node: SteppedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule that once ticked often has more ledger rows in a window than its current rule has ticks."""
    monkeypatch.setattr(module, "MAX_TICKS", 5)
    await node.put(every_seconds=10, overlap="allow")
    await node.run(NOW + minutes(3), by_seconds=10)
    await node.put(overlap="allow")
    node.move_to(NOW + minutes(3))
    assert await backfill(node, 0.5, 3.5) == [], "each of these ticks has fired"


async def test_a_search_over_a_calendar_that_excludes_nearly_everything_ends(node: SteppedNode) -> None:
    calendars = CalendarService(node.store, node.schedules)
    await calendars.put(DEFAULT_TENANT, "rare", {"dates": ["2030-01-01"]}, now=NOW)
    await node.put(calendars={"only": ["rare"]})
    async with asyncio.timeout(60):
        with pytest.raises(InvalidInput, match="shorter"):
            await node.backfill.backfill(DEFAULT_TENANT, "job", from_=datetime(1990, 1, 1, tzinfo=UTC), to=NOW, now=node.now)


@pytest.mark.parametrize("from_", [datetime.min.replace(tzinfo=UTC), datetime(1, 1, 1, 1, tzinfo=UTC)])
async def test_a_window_from_the_minimum_date_is_accepted(node: SteppedNode, from_: datetime) -> None:
    await node.put(cron="0 0 1 1 *", name="job")
    filled = await node.backfill.backfill(
        DEFAULT_TENANT, "job", from_=from_, to=datetime.max.replace(tzinfo=UTC), dry_run=True, now=node.now
    )
    assert 0 < filled.count < 2100


async def test_unknown_schedules_and_those_of_other_tenants_are_not_found(node: SteppedNode) -> None:
    await node.put()
    for tenant, name in ((DEFAULT_TENANT, "unknown"), (OTHER_TENANT, "job")):
        with pytest.raises(NotFound):
            await node.backfill.backfill(tenant, name, from_=NOW - minutes(1), to=NOW, now=NOW)
        with pytest.raises(NotFound):
            await node.backfill.trigger(tenant, name, now=NOW)


async def test_backfilled_tasks_do_not_count_as_overlapping_or_doubled(node: SteppedNode) -> None:
    job = await node.put(overlap="skip")
    assert await backfill(node, -3, 0) == [-3, -2, -1]
    await node.run(NOW + minutes(1), by_seconds=60)
    assert ledger_summary(await ledger(node.store, job.id)) == [(60, "fired", 1)]
    count = await node.count(from_=NOW)
    assert (count.fired, count.doubled, count.missing) == (1, 0, 0)


# Trigger


async def test_a_trigger_creates_the_task_of_a_tick_immediately(node: SteppedNode) -> None:
    await node.put(payload={"a": 1}, priority=5, max_attempts=7, timeout_seconds=9, labels={"x": "y"})
    task = await node.backfill.trigger(DEFAULT_TENANT, "job", now=NOW)
    assert await get(node, task) == task
    assert (task.origin, task.schedule, task.scheduled_for, task.state) == (Origin.TRIGGER, "job", None, TaskState.READY)
    assert (task.payload, task.priority, task.max_attempts, task.timeout_seconds) == (b'{"a":1}', 5, 7, 9)
    assert (task.labels, task.type, task.queue) == ({"x": "y"}, "work", "default")


async def test_a_trigger_may_have_its_own_payload(node: SteppedNode) -> None:
    await node.put(payload={"a": 1})
    task = await node.backfill.trigger(DEFAULT_TENANT, "job", b'{"b":[2]}', now=NOW)
    assert msgspec.json.decode((await get(node, task)).payload) == {"b": [2]}
    with pytest.raises(TooLarge):
        await node.backfill.trigger(DEFAULT_TENANT, "job", b'"%b"' % (b"x" * 70_000), now=NOW)


async def test_a_paused_schedule_can_be_triggered(node: SteppedNode) -> None:
    await node.put(enabled=False)
    task = await node.backfill.trigger(DEFAULT_TENANT, "job", now=NOW)
    assert (await Worker(node).claim_one()).id == task.id


async def test_a_pause_does_not_hold_triggered_tasks(node: SteppedNode) -> None:
    await node.put()
    task = await node.backfill.trigger(DEFAULT_TENANT, "job", now=NOW)
    await node.schedules.pause(DEFAULT_TENANT, "job", note=None, now=NOW)
    assert (await Worker(node).claim_one()).id == task.id


async def test_a_trigger_with_an_idempotency_key_creates_one_task(node: SteppedNode) -> None:
    await node.put()
    key = TaskKey("trigger", b"x")
    first = await node.backfill.trigger(DEFAULT_TENANT, "job", key=key, now=NOW)
    assert (await node.backfill.trigger(DEFAULT_TENANT, "job", key=key, now=NOW)).id == first.id
    with pytest.raises(InvalidInput):
        await node.backfill.trigger(DEFAULT_TENANT, "job", key=TaskKey("trigger", b"y"), now=NOW)
    assert await count_rows(node.store, "tasks") == 1
