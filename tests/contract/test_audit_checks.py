"""What the auditor reads: schedule_audit, tick_audit and tick_suspect."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import uuid_utils.compat

from everbeat.core.changes import ScheduleWrite
from everbeat.core.schedules import DEFAULT_TENANT, Status
from everbeat.core.ticks import SkipReason
from everbeat.store.base import Store
from everbeat.store.values import TickAudit
from tests.factories import (
    LONG_AGO,
    NOW,
    OTHER_TENANT,
    execute_raw,
    firing_of,
    insert,
    make_schedule,
    minutes,
    own_all_partitions,
    seconds,
    skip,
)

NODE = uuid4()


async def test_schedule_audit_pages_through_the_schedules_of_all_tenants(store: Store) -> None:
    made = sorted((make_schedule(f"s{index}") for index in range(3)), key=lambda one: one.id.bytes)
    await insert(store, made[0], made[2])
    other = make_schedule("s1", id=made[1].id, tenant_id=OTHER_TENANT, at=None, jitter_seconds=7)
    await insert(store, other, tenant_id=OTHER_TENANT)
    first, second = await store.schedule_audit(after=None, limit=2)
    (third,) = await store.schedule_audit(after=second.id, limit=2)
    assert [first.id, second.id, third.id] == [one.id for one in made]
    assert (second.tenant_id, second.name, second.status, second.jitter_seconds) == (OTHER_TENANT, "s1", Status.PAUSED, 7)
    assert (first.rule, first.cursor_at, first.rule_at, first.fault) == (
        made[0].spec.rule,
        made[0].cursor_at,
        made[0].rule_at,
        None,
    )


async def test_schedule_audit_leaves_out_a_row_that_cannot_be_decoded(store: Store) -> None:
    good, bad = make_schedule("good"), make_schedule("bad")
    await insert(store, good, bad)
    await execute_raw(store, "UPDATE schedules SET calendars = 'x' WHERE name = 'bad'")
    assert [one.id for one in await store.schedule_audit(after=None, limit=10)] == [good.id]


async def test_schedule_is_many_counts_the_schedules_of_the_tenant(store: Store) -> None:
    await insert(store, make_schedule("one"), make_schedule("two", at=None))
    await insert(store, make_schedule("other", tenant_id=OTHER_TENANT), tenant_id=OTHER_TENANT)
    assert [await store.schedule_is_many(DEFAULT_TENANT, than=number) for number in (0, 1, 2)] == [True, True, False]


async def test_tick_audit_counts_the_ticks_of_each_schedule_up_to_its_end(store: Store) -> None:
    await own_all_partitions(store, NODE)
    fired, skipped, empty = make_schedule("fired"), make_schedule("skipped"), make_schedule("empty")
    await insert(store, fired, empty)
    await store.tick_fire(NODE, [firing_of(fired)], now=NOW + seconds(3))
    skips = (
        skip(NOW, NOW + minutes(2), 3),
        skip(NOW + minutes(3)),
        skip(NOW + minutes(4), reason=SkipReason.ZONE_CHANGED),
        skip(NOW + minutes(9)),
    )
    await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(skipped, skips=skips)], now=NOW)
    end = NOW + minutes(9)
    found = await store.tick_audit({one.id: end for one in (fired, skipped, empty)}, from_=NOW)
    assert found == {fired.id: TickAudit(1, 3.0), skipped.id: TickAudit(4, 0.0), empty.id: TickAudit(0, 0.0)}
    later = await store.tick_audit({fired.id: end, skipped.id: NOW + minutes(4)}, from_=NOW + seconds(1))
    assert {id_: one.recorded for id_, one in later.items()} == {fired.id: 0, skipped.id: 1}


async def test_tick_suspect_returns_ticks_that_are_missing_doubled_or_late(store: Store) -> None:
    await own_all_partitions(store, NODE)
    names = ("fine", "missing", "doubled", "late", "jittered")
    made = {name: make_schedule(name, jitter_seconds=60 if name == "jittered" else 0) for name in names}
    await insert(store, *made.values())
    for name, schedule in made.items():
        delay = seconds(30) if name in ("late", "jittered") else seconds(1)
        await own_all_partitions(store, NODE, now=NOW + delay)
        firing = firing_of(schedule, task_id=uuid_utils.compat.uuid7())
        await store.tick_fire(NODE, [firing], now=NOW + delay)
    await execute_raw(store, "DELETE FROM ticks WHERE schedule_id = ?", made["missing"].id)
    columns = (
        "tenant_id, partition, queue, type, target, payload, origin, schedule_id, scheduled_for, run_at, priority, state, "
        "max_attempts, retry, timeout_seconds, labels, fair_key, created_at"
    )
    copy = f"INSERT INTO tasks (id, {columns}) SELECT ?, {columns} FROM tasks WHERE schedule_id = ?"
    await execute_raw(store, copy, uuid_utils.compat.uuid7(), made["doubled"].id)

    found = {one.name: one for one in await store.tick_suspect(since=NOW, late_seconds=10, limit=10)}
    assert found.keys() == {"missing", "late", "doubled"}
    assert (found["missing"].fired_at, found["missing"].tasks) == (None, 1)
    assert (found["late"].fired_at, found["late"].scheduled_for) == (NOW + seconds(30), NOW)
    assert (found["doubled"].tasks, found["doubled"].schedule_id) == (2, made["doubled"].id)
    assert len(await store.tick_suspect(since=NOW, late_seconds=10, limit=1)) == 1


async def test_tick_suspect_reads_only_tasks_with_recent_ids(store: Store) -> None:
    await own_all_partitions(store, NODE)
    schedule = make_schedule()
    await insert(store, schedule)
    await store.tick_fire(NODE, [firing_of(schedule, task_id=uuid_utils.compat.uuid7())], now=NOW)
    await execute_raw(store, "DELETE FROM ticks WHERE schedule_id = ?", schedule.id)
    assert len(await store.tick_suspect(since=LONG_AGO, late_seconds=10, limit=10)) == 1
    assert await store.tick_suspect(since=NOW + timedelta(days=3650), late_seconds=10, limit=10) == []
