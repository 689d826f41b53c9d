"""schedule_due and schedule_fault: the schedules that the ticker loads, and those that it pauses because of a fault."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from everbeat.core.schedules import CatchUp, Schedule, Status
from everbeat.store.base import Store
from tests.factories import NOW, OTHER_TENANT, cron, execute_raw, find, insert, make_schedule, minutes, seconds


async def due(store: Store, *partitions: int, horizon: float = 5, limit: int = 100) -> list[UUID]:
    scan = await store.schedule_due(partitions, horizon_seconds=horizon, limit=limit, now=NOW)
    return [one.id for one in scan.schedules]


async def test_schedule_due_returns_overdue_schedules_and_those_within_the_horizon(store: Store) -> None:
    ages = {-3600.0: True, 0.0: True, 5.0: True, 5.000001: False, 60.0: False}
    schedules = {age: make_schedule(f"at{age}", at=NOW + seconds(age), partition=3) for age in ages}
    await insert(store, *schedules.values())
    assert await due(store, 3) == [schedules[age].id for age, found in ages.items() if found]


async def test_schedule_due_returns_only_the_given_partitions(store: Store) -> None:
    schedules = [make_schedule(f"in-{partition}", partition=partition) for partition in (0, 1, 255)]
    await insert(store, *schedules)
    assert await due(store, 1) == [schedules[1].id]
    assert set(await due(store, 0, 255, 7)) == {schedules[0].id, schedules[2].id}
    assert await due(store) == []


async def test_schedule_due_returns_the_oldest_of_each_partition_up_to_the_limit(store: Store) -> None:
    schedules = [
        make_schedule(f"{partition}-{age}", at=NOW - seconds(age), partition=partition)
        for partition in (1, 2)
        for age in range(6)
    ]
    await insert(store, *schedules)
    found = await due(store, 1, 2, limit=2)
    assert set(found) == {one.id for one in schedules if one.next_tick_at in (NOW - seconds(5), NOW - seconds(4))}
    position = {id_: index for index, id_ in enumerate(found)}
    by_name = {one.spec.name: position[one.id] for one in schedules if one.id in position}
    assert by_name["1-5"] < by_name["1-4"]
    assert by_name["2-5"] < by_name["2-4"]


async def test_schedule_due_leaves_out_inactive_schedules(store: Store) -> None:
    inactive = make_schedule("paused", at=None), make_schedule("finished", at=None, status=Status.FINISHED)
    await insert(store, *inactive)
    assert await due(store, *(one.partition for one in inactive)) == []


async def test_schedule_due_compares_due_at_and_not_the_tick(store: Store) -> None:
    jittered = make_schedule(at=NOW, due_at=NOW + seconds(30))
    await insert(store, jittered)
    assert await due(store, jittered.partition) == []
    assert await due(store, jittered.partition, horizon=30) == [jittered.id]


async def test_schedule_due_returns_the_fields_that_planning_needs(store: Store) -> None:
    rule = cron("*/5 * * * *", timezone="Asia/Tokyo", exclude=("holidays",), ends_at=NOW + minutes(90))
    schedule = make_schedule(
        rule=rule, catch_up=CatchUp.ALL, misfire_grace_seconds=12.5, jitter_seconds=3, revision=4, tenant_id=OTHER_TENANT
    )
    await insert(store, schedule, tenant_id=OTHER_TENANT)
    scan = await store.schedule_due([schedule.partition], horizon_seconds=0, limit=5, now=NOW)
    (one,) = scan.schedules
    assert scan.now == NOW
    assert one._asdict() == {
        "id": schedule.id,
        "tenant_id": OTHER_TENANT,
        "partition": schedule.partition,
        "revision": 4,
        "cursor_at": schedule.cursor_at,
        "next_tick_at": NOW,
        "due_at": NOW,
        "catch_up": CatchUp.ALL,
        "misfire_grace_seconds": 12.5,
        "jitter_seconds": 3,
        "rule": rule,
        "moved_tick_at": None,
    }


async def test_schedule_due_returns_the_time_even_when_nothing_is_due(store: Store) -> None:
    assert (await store.schedule_due([1], horizon_seconds=5, limit=5, now=NOW)).now == NOW
    current = await store.schedule_due([1], horizon_seconds=5, limit=5)
    assert abs(current.now - datetime.now(UTC)) < minutes(1)


async def test_schedule_due_reports_an_unreadable_row_and_returns_the_others(store: Store) -> None:
    good, bad = make_schedule("good", partition=5), make_schedule("bad", partition=5)
    await insert(store, good, bad)
    await execute_raw(store, "UPDATE schedules SET calendars = '{broken' WHERE id = ?", bad.id)
    scan = await store.schedule_due([5], horizon_seconds=5, limit=5, now=NOW)
    assert [one.id for one in scan.schedules] == [good.id]
    assert list(scan.faults) == [bad.id]


async def test_schedule_fault_pauses_a_schedule_with_the_reason(store: Store) -> None:
    bad, good, inactive = make_schedule("bad"), make_schedule("good"), make_schedule("inactive", at=None)
    await insert(store, bad, good, inactive)
    assert await store.schedule_fault({bad.id: "no such zone", inactive.id: "too"}, now=NOW) == 1
    found: Schedule = await find(store, bad)
    assert (found.status, found.fault, found.next_tick_at, found.due_at) == (Status.PAUSED, "no such zone", None, None)
    assert (found.revision, found.cursor_at, found.updated_at) == (bad.revision, bad.cursor_at, NOW)
    assert [await find(store, good), await find(store, inactive)] == [good, inactive]
