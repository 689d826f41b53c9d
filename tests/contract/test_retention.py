"""Retention: the sizes of months, tenants with a shorter retention, former rules and dead letters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import msgspec
import pytest

from everbeat.core.changes import ScheduleWrite
from everbeat.core.retention import RetentionPeriods, TenantPeriods
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, TaskState
from everbeat.core.tenants import Tenant
from everbeat.store.base import Store
from everbeat.store.values import HeartbeatWrite, TenantPruneStep, TenantWrite
from tests.factories import (
    NOW,
    claim,
    count_rows,
    execute_raw,
    insert,
    lease_of,
    make_schedule,
    make_task,
    seconds,
    skip,
)

DAY = timedelta(days=1)
JANUARY, FEBRUARY, MARCH = (datetime(2026, month, 15, tzinfo=UTC) for month in (1, 2, 3))
TEN_DAYS = TenantPeriods(10 * DAY, 10 * DAY)
TABLES = ("ticks", "task_history", "attempts", "task_log")


async def make_tenant(store: Store, name: str) -> UUID:
    tenant = Tenant(id=uuid4(), name=name, created_at=NOW, updated_at=NOW)
    assert await store.tenant_write([TenantWrite(tenant)], now=NOW)
    return tenant.id


async def write_rows(store: Store, tenant_id: UUID, *moments: datetime) -> None:
    """Write a ledger row, a finished task, an attempt and a log line at each of these times."""
    schedule = make_schedule(f"of-{tenant_id}", tenant_id=tenant_id)
    writes = [ScheduleWrite(schedule, skips=tuple(skip(at) for at in moments))]
    assert await store.schedule_write(tenant_id, writes, now=moments[-1])
    for moment in moments:
        await store.task_submit([make_task(tenant_id=tenant_id)], now=moment)
        (task,) = await claim(store, tenant_id=tenant_id, now=moment, total_seconds=1e8)
        await store.task_heartbeat([HeartbeatWrite(lease_of(task, tenant_id=tenant_id), log="line")], now=moment)
        back = AttemptEnd(task.id, tenant_id, task.fence, AttemptOutcome.RELEASED, TaskState.READY, None, None)
        await store.task_end([back], is_expired=False, now=moment)
        (task,) = await claim(store, tenant_id=tenant_id, now=moment, total_seconds=1e8)
        await store.task_complete([(lease_of(task, tenant_id=tenant_id), None)], now=moment)


async def rows_of(store: Store, tenant_id: UUID) -> dict[str, int]:
    found = {}
    for table in TABLES:
        ((count,),) = await execute_raw(store, f"SELECT count(*) FROM {table} WHERE tenant_id = ?", tenant_id)
        found[table] = count
    return found


async def prune_all(
    store: Store, periods: dict[UUID, TenantPeriods], now: datetime, *, limit: int = 2, is_dry_run: bool = False
) -> list[TenantPruneStep]:
    steps, position = [], None
    for _ in range(200):
        step = await store.tenant_prune(periods, position=position, limit=limit, now=now, is_dry_run=is_dry_run)
        steps.append(step)
        position = step.position
        if position is None:
            return steps
    raise AssertionError("the steps do not end")


async def test_month_sizes_are_those_of_months_before_the_given_times(store: Store) -> None:
    await write_rows(store, DEFAULT_TENANT, JANUARY, FEBRUARY, MARCH)
    before = {"ticks": datetime(2026, 3, 1, tzinfo=UTC), "attempts": datetime(2026, 2, 1, tzinfo=UTC)}
    found = await store.month_sizes(before=before)
    assert [(one.table, one.month, one.rows) for one in sorted(found)] == [
        ("attempts", "2026-01", 1),
        ("ticks", "2026-01", 1),
        ("ticks", "2026-02", 1),
    ]
    assert all((one.bytes is None) == (store.dialect == "sqlite") for one in found)


async def test_month_prune_removes_only_the_given_tables(store: Store) -> None:
    await write_rows(store, DEFAULT_TENANT, JANUARY, MARCH)
    while await store.month_prune(before=datetime(2026, 3, 1, tzinfo=UTC), limit=10, tables=("ticks",)):
        pass
    assert await rows_of(store, DEFAULT_TENANT) == {"ticks": 1, "task_history": 2, "attempts": 2, "task_log": 2}


@pytest.mark.parametrize("limit", [1, 2, 1000])
async def test_tenant_prune_removes_old_rows_of_these_tenants_only(store: Store, limit: int) -> None:
    short, other = await make_tenant(store, "short"), await make_tenant(store, "other")
    moments = [MARCH - 60 * DAY, MARCH - 20 * DAY, MARCH - 20 * DAY + seconds(1), MARCH - 5 * DAY, MARCH]
    for tenant in (short, other):
        await write_rows(store, tenant, *moments)
    steps = await prune_all(store, {short: TEN_DAYS}, MARCH, limit=limit)
    assert await rows_of(store, short) == dict.fromkeys(TABLES, 2)
    assert await rows_of(store, other) == dict.fromkeys(TABLES, 5)
    assert {table: sum(step.deleted for step in steps if step.table == table) for table in TABLES} == dict.fromkeys(TABLES, 3)


async def test_tenant_prune_with_many_rows_at_one_time_continues_where_it_was(store: Store) -> None:
    short = await make_tenant(store, "short")
    for number in range(7):
        schedule = make_schedule(f"job-{number}", tenant_id=short)
        assert await store.schedule_write(short, [ScheduleWrite(schedule, skips=(skip(JANUARY),))], now=JANUARY)
    steps = await prune_all(store, {short: TEN_DAYS}, MARCH, limit=3)
    assert sum(step.deleted for step in steps) == 7
    assert max(step.deleted for step in steps) <= (3 if store.dialect == "sqlite" else 7)


async def test_tenant_prune_uses_the_period_of_each_table(store: Store) -> None:
    short = await make_tenant(store, "short")
    await write_rows(store, short, MARCH - 20 * DAY, MARCH)
    await prune_all(store, {short: TenantPeriods(ledger=30 * DAY, history=10 * DAY)}, MARCH)
    assert await rows_of(store, short) == {"ticks": 2, "task_history": 1, "attempts": 1, "task_log": 1}


async def test_tenant_prune_as_a_dry_run_counts_and_changes_nothing(store: Store) -> None:
    short = await make_tenant(store, "short")
    await write_rows(store, short, JANUARY, MARCH)
    steps = await prune_all(store, {short: TEN_DAYS}, MARCH, is_dry_run=True)
    assert sum(step.deleted for step in steps) == 4
    assert await rows_of(store, short) == dict.fromkeys(TABLES, 2)


async def test_tenant_prune_without_tenants_does_nothing(store: Store) -> None:
    await write_rows(store, DEFAULT_TENANT, JANUARY)
    assert await store.tenant_prune({}, position=None, limit=10, now=MARCH) == ("", 0, None)


async def test_past_rule_prune_keeps_rules_that_the_ledger_may_still_need(store: Store) -> None:
    schedule = make_schedule()
    await insert(store, schedule)
    for day in (1, 50):
        values = (schedule.id, NOW - 90 * DAY, NOW - day * DAY, "{}")
        await execute_raw(store, "INSERT INTO past_rules (schedule_id, since, until, rule) VALUES (?, ?, ?, ?)", *values)
    assert await store.past_rule_prune(before=NOW - 10 * DAY, limit=10) == 1
    assert await store.past_rule_prune(before=NOW - 10 * DAY, limit=10) == 0
    assert await count_rows(store, "past_rules") == 1


async def die(store: Store, at: datetime) -> None:
    await store.task_submit([make_task()], now=at)
    (task,) = await claim(store, now=at, total_seconds=1e8)
    end = AttemptEnd(task.id, DEFAULT_TENANT, task.fence, AttemptOutcome.FAILED, TaskState.DEAD, None, None)
    await store.task_end([end], is_expired=False, now=at)


async def test_dead_prune_removes_old_dead_letters_in_batches(store: Store) -> None:
    for at in (NOW - 9 * DAY, NOW - 8 * DAY, NOW - 7 * DAY, NOW):
        await die(store, at)
    assert await store.dead_prune(before=NOW - DAY, limit=2) == 2
    assert await store.dead_prune(before=NOW - DAY, limit=2) == 1
    assert await store.dead_prune(before=NOW - DAY, limit=2) == 0
    assert await count_rows(store, "dead_letters") == 1


async def test_prune_count_counts_what_is_past_its_retention(store: Store) -> None:
    await die(store, NOW - 9 * DAY)
    await insert(store, make_schedule())
    rule = (UUID(int=5), NOW - 90 * DAY, NOW - 50 * DAY, "{}")
    await execute_raw(store, "INSERT INTO past_rules (schedule_id, since, until, rule) VALUES (?, ?, ?, ?)", *rule)
    kept = await store.prune_count(
        periods=RetentionPeriods.of_days(90), workers_unseen_seconds=3600, service_levels=DAY, now=NOW
    )
    assert set(kept.values()) == {0}
    removed = await store.prune_count(
        periods=RetentionPeriods.of_days(30, dead_letters=5), workers_unseen_seconds=3600, service_levels=DAY, now=NOW
    )
    assert {name: count for name, count in removed.items() if count} == {"past_rules": 1, "dead_letters": 1}


async def test_tenant_write_stores_the_retention_of_a_tenant(store: Store) -> None:
    id_ = await make_tenant(store, "short")
    (tenant,) = await store.tenant_find(ids=[id_])
    assert tenant.quotas.retention_days is None
    quotas = msgspec.structs.replace(tenant.quotas, retention_days=7.5)
    changed = msgspec.structs.replace(tenant, quotas=quotas, revision=2)
    assert await store.tenant_write([TenantWrite(changed, expected=1)], now=NOW)
    assert await store.tenant_find(names=["short"]) == [changed]
    assert changed in await store.tenant_list(after_name=None, limit=10)
    assert not await store.tenant_write([TenantWrite(tenant, expected=1)], now=NOW)
    assert await store.tenant_find(ids=[id_]) == [changed]
