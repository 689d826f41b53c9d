"""The roll-up of the ledger: ledger_day_*, and what it reads: schedule_audit_find, tick_day_* and tick_window_totals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import uuid_utils.compat

from everbeat.core.changes import ScheduleWrite
from everbeat.core.ledger_days import DayCounts, LedgerDay
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.ticks import Outcome, SkipReason
from everbeat.store.base import Store
from everbeat.store.values import IncompleteDay
from tests.factories import (
    NOW,
    OTHER_TENANT,
    count_rows,
    execute_raw,
    firing_of,
    insert,
    make_schedule,
    minutes,
    own_all_partitions,
    seconds,
    skip,
)

DAY = timedelta(days=1)
FIRST = datetime(2026, 3, 1, tzinfo=UTC)
NODE, A, B = uuid4(), UUID(int=21), UUID(int=22)


def a_day(schedule_id: UUID = A, day: datetime = FIRST, **more: Any) -> LedgerDay:
    defaults: dict[str, Any] = {"tenant_id": DEFAULT_TENANT, "expected": 4, "fired": 3, "missing": 1}
    return LedgerDay(day=day, schedule_id=schedule_id, **{**defaults, **more})


async def total(store: Store, tenant_id: UUID = DEFAULT_TENANT, days: int = 10) -> DayCounts:
    return await store.ledger_day_total(tenant_id, from_=FIRST, to=FIRST + days * DAY)


async def test_ledger_day_write_stores_all_fields(store: Store) -> None:
    written = a_day(
        doubled=2,
        skipped={reason.value: index + 1 for index, reason in enumerate(SkipReason)},
        lag_seconds=1.5,
        first_at=FIRST + seconds(1),
        last_at=FIRST + minutes(9),
        cursor_at=FIRST + minutes(10),
    )
    await store.ledger_day_write([written])
    assert await store.ledger_day_find(FIRST, [A, B]) == [written]
    assert await total(store) == DayCounts(expected=4, fired=3, missing=1, doubled=2, skipped=written.skipped, lag_seconds=1.5)


async def test_ledger_day_write_of_a_known_day_changes_the_sums_by_the_difference(store: Store) -> None:
    await store.ledger_day_write([a_day(A, skipped={"overlap": 5}), a_day(B)])
    replaced = a_day(A, fired=4, missing=0, skipped={"paused": 2})
    await store.ledger_day_write([replaced])
    assert await store.ledger_day_find(FIRST, [A]) == [replaced]
    assert await total(store) == DayCounts(expected=8, fired=7, missing=1, skipped={"paused": 2})
    await store.ledger_day_write([replaced])
    assert (await total(store)).fired == 7


async def test_ledger_day_total_adds_the_days_of_one_tenant(store: Store) -> None:
    others = a_day(B, tenant_id=OTHER_TENANT)
    await store.ledger_day_write([a_day(A), a_day(A, FIRST + DAY), a_day(A, FIRST + 2 * DAY, lag_seconds=9), others])
    assert (await total(store, days=2)).expected == 8
    assert (await total(store, OTHER_TENANT)).expected == 4
    assert await total(store, UUID(int=99)) == DayCounts()
    assert (await total(store)).lag_seconds == 9


async def test_ledger_day_list_adds_the_days_of_each_schedule(store: Store) -> None:
    await store.ledger_day_write([a_day(A), a_day(A, FIRST + DAY, skipped={"misfire": 2}), a_day(B, FIRST + 5 * DAY)])
    found = await store.ledger_day_list(DEFAULT_TENANT, [A, B], [FIRST, FIRST + DAY])
    assert found == {A: DayCounts(expected=8, fired=6, missing=2, skipped={"misfire": 2})}
    assert await store.ledger_day_list(OTHER_TENANT, [A], [FIRST]) == {}


async def test_ledger_day_find_is_for_one_day(store: Store) -> None:
    await store.ledger_day_write([a_day(A), a_day(A, FIRST + DAY)])
    assert [one.day for one in await store.ledger_day_find(FIRST + DAY, [A])] == [FIRST + DAY]


async def test_ledger_day_incomplete_returns_days_whose_cursor_has_moved(store: Store) -> None:
    moved, still = make_schedule("moved", cursor_at=NOW), make_schedule("still", cursor_at=NOW)
    await insert(store, moved, still)
    days = [
        a_day(moved.id, FIRST + DAY, cursor_at=NOW - seconds(1)),
        a_day(moved.id, FIRST, cursor_at=NOW - seconds(1)),
        a_day(moved.id, FIRST + 2 * DAY),
        a_day(still.id, cursor_at=NOW),
        a_day(A, cursor_at=FIRST),
    ]
    await store.ledger_day_write(days)
    expected = [IncompleteDay(moved.id, FIRST), IncompleteDay(moved.id, FIRST + DAY)]
    assert await store.ledger_day_incomplete(limit=10) == expected
    assert await store.ledger_day_incomplete(limit=1) == expected[:1]


async def test_ledger_day_prune_deletes_old_days_in_steps(store: Store) -> None:
    await store.ledger_day_write([a_day(A, FIRST + index * DAY) for index in range(4)])
    assert await store.ledger_day_prune(before=FIRST + 3 * DAY, limit=2) == 4
    assert await store.ledger_day_prune(before=FIRST + 3 * DAY, limit=2) == 2
    assert await store.ledger_day_prune(before=FIRST + 3 * DAY, limit=2) == 0
    assert await count_rows(store, "ledger_days") == await count_rows(store, "tenant_ledger_days") == 1


async def test_schedule_audit_find_returns_schedules_of_any_tenant(store: Store) -> None:
    one, other = make_schedule("one"), make_schedule("other", tenant_id=OTHER_TENANT)
    await insert(store, one)
    await insert(store, other, tenant_id=OTHER_TENANT)
    found = {schedule.id: schedule for schedule in await store.schedule_audit_find([one.id, other.id, A])}
    assert found.keys() == {one.id, other.id}
    assert (found[other.id].name, found[one.id].created_at) == ("other", one.created_at)


async def test_tick_day_totals_and_ranges_cover_a_day(store: Store) -> None:
    await own_all_partitions(store, NODE)
    fired, skipped = make_schedule("fired"), make_schedule("skipped")
    await insert(store, fired)
    await store.tick_fire(NODE, [firing_of(fired)], now=NOW + seconds(3))
    day = FIRST + DAY
    crossing = skip(day - minutes(5), day + minutes(5), 11)
    leaving = skip(day + DAY - minutes(1), day + DAY + minutes(1), 3, SkipReason.PAUSED)
    skips = (crossing, skip(day + minutes(20)), skip(day + minutes(30), day + minutes(32), 3), leaving)
    await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(skipped, skips=skips)], now=NOW)

    totals = await store.tick_day_totals([fired.id, skipped.id], from_=day, to=day + DAY)
    found = {(one.schedule_id, one.outcome, one.reason): one for one in totals}
    assert {key: one.count for key, one in found.items()} == {
        (fired.id, Outcome.FIRED, None): 1,
        (skipped.id, Outcome.SKIPPED, SkipReason.MISFIRE): 4,
        (skipped.id, Outcome.SKIPPED, SkipReason.PAUSED): 3,
    }
    assert found[fired.id, Outcome.FIRED, None].lag_seconds == 3
    misfires = found[skipped.id, Outcome.SKIPPED, SkipReason.MISFIRE]
    assert (misfires.first_at, misfires.last_at) == (day + minutes(20), day + minutes(30))
    ranges = await store.tick_day_ranges([fired.id, skipped.id], from_=day, to=day + DAY)
    assert sorted(one.scheduled_for for one in ranges) == [crossing.first, leaving.first]


async def test_tick_day_ranges_without_a_crossing_range_is_empty(store: Store) -> None:
    schedule = make_schedule()
    write = ScheduleWrite(schedule, skips=(skip(NOW, NOW + minutes(5), 6),))
    await store.schedule_write(DEFAULT_TENANT, [write], now=NOW)
    assert await store.tick_day_ranges([schedule.id], from_=FIRST + DAY, to=FIRST + 2 * DAY) == []


async def test_tick_day_doubled_counts_ticks_with_two_tasks(store: Store) -> None:
    await own_all_partitions(store, NODE)
    schedule = make_schedule()
    await insert(store, schedule)
    await store.tick_fire(NODE, [firing_of(schedule)], now=NOW)
    window = {"from_": FIRST, "to": FIRST + 5 * DAY}
    assert await store.tick_day_doubled([schedule.id], **window) == {}
    columns = (
        "tenant_id, partition, queue, type, target, payload, origin, schedule_id, scheduled_for, run_at, priority, state, "
        "max_attempts, retry, timeout_seconds, labels, fair_key, created_at"
    )
    await execute_raw(store, f"INSERT INTO tasks (id, {columns}) SELECT ?, {columns} FROM tasks", uuid_utils.compat.uuid7())
    assert await store.tick_day_doubled([schedule.id], **window) == {schedule.id: 1}
    assert await store.tick_day_doubled([schedule.id], from_=FIRST, to=FIRST + DAY) == {}


async def test_tick_window_totals_counts_the_rows_of_a_tenant(store: Store) -> None:
    one, other = make_schedule("one"), make_schedule("other", tenant_id=OTHER_TENANT)
    skips = (skip(NOW, NOW + minutes(2), 3), skip(NOW + minutes(5), reason=SkipReason.PAUSED), skip(NOW + minutes(9)))
    await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(one, skips=skips)], now=NOW)
    await store.schedule_write(OTHER_TENANT, [ScheduleWrite(other, skips=skips)], now=NOW)
    await own_all_partitions(store, NODE)
    fires = make_schedule("fires")
    await insert(store, fires)
    await store.tick_fire(NODE, [firing_of(fires)], now=NOW)
    found = await store.tick_window_totals(DEFAULT_TENANT, from_=NOW, to=NOW + minutes(9))
    assert found == {"fired": 1, "misfire": 3, "paused": 1}
