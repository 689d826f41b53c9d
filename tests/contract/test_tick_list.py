"""tick_list, tick_totals, tick_ranges and tick_doubled: reading the ledger."""

from __future__ import annotations

from uuid import UUID, uuid4

from everbeat.core.changes import ScheduleWrite
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.ticks import Outcome, SkipReason
from everbeat.store.base import Store
from everbeat.store.values import TickTotal
from tests.factories import (
    NOW,
    claim,
    complete,
    execute_raw,
    firing_of,
    insert,
    make_schedule,
    minutes,
    own_all_partitions,
    skip,
)

NODE = UUID(int=1)
FROM, TO = NOW - minutes(10), NOW


async def test_tick_list_returns_rows_that_overlap_the_window_oldest_first(store: Store) -> None:
    schedule, other = make_schedule(), make_schedule("other")
    skips = (
        skip(NOW - minutes(30), NOW - minutes(20), 5),  # before the window
        skip(NOW - minutes(19), NOW - minutes(10), 5),  # overlaps the start
        skip(NOW - minutes(8)),
        skip(NOW - minutes(3), NOW + minutes(3), 7),  # overlaps the end
        skip(NOW),  # at the end: outside
    )
    await insert(store, other)
    writes = [ScheduleWrite(schedule, skips=skips)]
    assert await store.schedule_write(DEFAULT_TENANT, writes, now=NOW)
    rows = await store.tick_list(DEFAULT_TENANT, schedule.id, from_=FROM, to=TO, limit=10)
    assert [row.scheduled_for for row in rows] == [NOW - minutes(19), NOW - minutes(8), NOW - minutes(3)]
    assert len(await store.tick_list(DEFAULT_TENANT, schedule.id, from_=FROM, to=TO, limit=2)) == 2
    assert await store.tick_list(DEFAULT_TENANT, other.id, from_=FROM, to=TO, limit=10) == []


async def test_tick_totals_sum_rows_that_begin_in_the_window(store: Store) -> None:
    one, two = make_schedule("one", at=NOW - minutes(10)), make_schedule("two")
    await insert(store, one)
    await own_all_partitions(store, NODE)
    await store.tick_fire(NODE, [firing_of(one)], now=NOW)
    skips = (
        skip(NOW - minutes(11), NOW - minutes(9), 3),
        skip(NOW - minutes(8), NOW - minutes(7), 2),
        skip(NOW - minutes(6)),
        skip(NOW - minutes(5), reason=SkipReason.PAUSED),
        skip(NOW, NOW + minutes(1), 2),
    )
    assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(two, skips=skips)], now=NOW)
    totals = await store.tick_totals(DEFAULT_TENANT, {one.id: TO, two.id: TO}, from_=FROM)
    assert {(total.schedule_id, total.reason): total for total in totals} == {
        (one.id, None): TickTotal(one.id, Outcome.FIRED, None, 1),
        (two.id, SkipReason.MISFIRE): TickTotal(two.id, Outcome.SKIPPED, SkipReason.MISFIRE, 3),
        (two.id, SkipReason.PAUSED): TickTotal(two.id, Outcome.SKIPPED, SkipReason.PAUSED, 1),
    }
    assert [total.schedule_id for total in await store.tick_totals(DEFAULT_TENANT, {one.id: TO}, from_=FROM)] == [one.id]


async def test_tick_ranges_returns_ranges_that_cross_an_edge_of_the_window(store: Store) -> None:
    schedule = make_schedule()
    skips = (
        skip(NOW - minutes(30), NOW - minutes(11), 5),
        skip(NOW - minutes(9), NOW - minutes(1), 9),
        skip(NOW - minutes(10.5), NOW - minutes(10), 2),
        skip(NOW - minutes(0.5), NOW, 2),
    )
    assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(schedule, skips=skips)], now=NOW)
    ranges = await store.tick_ranges(DEFAULT_TENANT, {schedule.id: TO, uuid4(): TO}, from_=FROM)
    assert sorted(row.scheduled_for for row in ranges) == [NOW - minutes(10.5), NOW - minutes(0.5)]
    whole = await store.tick_ranges(DEFAULT_TENANT, {schedule.id: NOW - minutes(20) + minutes(1)}, from_=NOW - minutes(20))
    assert [row.count for row in whole] == [5]


async def test_tick_doubled_counts_ticks_with_two_live_or_finished_tasks(store: Store) -> None:
    schedule, normal = make_schedule(), make_schedule("normal")
    await insert(store, schedule, normal)
    await own_all_partitions(store, NODE)
    await store.tick_fire(NODE, [firing_of(schedule), firing_of(normal)], now=NOW)
    window = {"from_": NOW, "to": NOW + minutes(1)}
    assert await store.tick_doubled(DEFAULT_TENANT, [schedule.id, normal.id], **window) == {}
    await duplicate_task(store, schedule.id)
    assert await store.tick_doubled(DEFAULT_TENANT, [schedule.id, normal.id], **window) == {schedule.id: 1}
    await complete(store, *await claim(store, limit=1))
    assert await store.tick_doubled(DEFAULT_TENANT, [schedule.id, normal.id], **window) == {schedule.id: 1}
    assert await store.tick_doubled(DEFAULT_TENANT, [schedule.id], from_=NOW - minutes(5), to=NOW) == {}


async def duplicate_task(store: Store, schedule_id: UUID) -> None:
    columns = "queue, type, target, payload, origin, schedule_id, scheduled_for, run_at, priority, state, max_attempts, retry"
    columns += ", timeout_seconds, labels, created_at, tenant_id, partition"
    await execute_raw(
        store, f"INSERT INTO tasks (id, {columns}) SELECT ?, {columns} FROM tasks WHERE schedule_id = ?", uuid4(), schedule_id
    )
