"""Retention in steps: which tables have which period, tenants with a shorter one, dry runs, and the steps on SQLite."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from everbeat.core.changes import ScheduleWrite
from everbeat.core.retention import RetentionPeriods, TenantPeriods, month_bounds, next_step_size
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.events import Event, Pruned
from everbeat.services.maintenance.retention import Removable, Retention
from everbeat.store.base import Store
from everbeat.store.values import TenantWrite
from tests.factories import NOW, claim, complete, count_rows, make_schedule, make_task, skip

DAY = timedelta(days=1)


async def write_rows(store: Store, *ages: int) -> None:
    """Write a ledger row and a finished task of these ages in days."""
    skips = tuple(skip(NOW - age * DAY) for age in ages)
    assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(make_schedule(), skips=skips)], now=NOW)
    for age in ages:
        await store.task_submit([make_task()], now=NOW - age * DAY)
        await complete(store, *await claim(store, now=NOW - age * DAY), now=NOW - age * DAY)


async def set_retention(store: Store, days: float) -> None:
    (tenant,) = await store.tenant_find(ids=[DEFAULT_TENANT])
    quotas = msgspec.structs.replace(tenant.quotas, retention_days=days)
    changed = msgspec.structs.replace(tenant, quotas=quotas, revision=tenant.revision + 1)
    assert await store.tenant_write([TenantWrite(changed, expected=tenant.revision)], now=NOW)


async def run(retention: Retention) -> None:
    for _ in range(100):
        if not await retention.step(NOW):
            return
    raise AssertionError("the steps do not end")


async def counts(store: Store) -> tuple[int, int]:
    return await count_rows(store, "ticks"), await count_rows(store, "task_history")


async def test_the_ledger_and_the_history_have_their_own_periods(store: Store) -> None:
    await write_rows(store, 200, 100, 0)
    await run(Retention(store, RetentionPeriods.of_days(50, history=150)))
    assert await counts(store) == (1, 2)
    await run(Retention(store, RetentionPeriods.of_days(50)))
    assert await counts(store) == (1, 1)


async def test_a_tenant_can_have_a_shorter_retention_but_not_a_longer_one(store: Store) -> None:
    await write_rows(store, 200, 60, 20, 0)
    await set_retention(store, 400)
    await run(Retention(store, RetentionPeriods.of_days(90)))
    assert await counts(store) == (3, 3)
    await set_retention(store, 30)
    events: list[Event] = []
    await run(Retention(store, RetentionPeriods.of_days(90), emit=events.append, batch_size=1))
    assert await counts(store) == (2, 2)
    assert {(one.what, one.count) for one in events if isinstance(one, Pruned)} == {
        ("ticks of tenants", 1),
        ("task_history of tenants", 1),
    }


async def test_the_rows_of_tenants_are_read_once_a_day(store: Store) -> None:
    await write_rows(store, 60, 0)
    retention = Retention(store, RetentionPeriods.of_days(90))
    await run(retention)
    await set_retention(store, 30)
    await run(retention)
    assert await counts(store) == (2, 2)
    while await retention.step(NOW + DAY):
        pass
    assert await counts(store) == (1, 1)


async def test_removable_lists_what_a_run_removes_and_changes_nothing(store: Store) -> None:
    await write_rows(store, 200, 60, 0)
    await set_retention(store, 30)
    retention = Retention(store, RetentionPeriods.of_days(90))
    found = await retention.removable(NOW)
    assert await counts(store) == (3, 3)
    months = [(one.table, one.month, one.rows) for one in found if one.month is not None and one.rows]
    month = f"{NOW - 200 * DAY:%Y-%m}"
    assert sorted(months) == [("task_history", month, 1), ("ticks", month, 1)]
    of_tenants = {one.table: one.rows for one in found if one.reason == "retention of a tenant"}
    # On PostgreSQL a month that is dropped as a whole is also read for tenants.
    assert set(of_tenants) == {"ticks", "task_history"}
    assert all(rows in (1, 2) for rows in of_tenants.values())
    await run(retention)
    assert await counts(store) == (1, 1)
    assert await retention.removable(NOW) == [] or store.dialect == "postgres"


async def test_dead_letters_are_kept_unless_a_period_is_set(store: Store) -> None:
    assert RetentionPeriods.of_days(1).dead_letters is None
    periods = RetentionPeriods.of_days(1, dead_letters=10)
    await run(Retention(store, periods))
    assert [one for one in await Retention(store, periods).removable(NOW) if isinstance(one, Removable) and one.rows] == []


@pytest.mark.parametrize(
    ("size", "seconds", "expected"),
    [(1000, 0.2, 500), (60, 0.2, 50), (50, 9.0, 50), (1000, 0.03, 1000), (1000, 0.001, 2000), (4000, 0.001, 5000)],
)
def test_the_size_of_a_step_follows_its_duration(size: int, seconds: float, expected: int) -> None:
    assert next_step_size(size, seconds, 5000) == expected


def test_the_period_of_a_tenant_is_at_most_that_of_the_cluster() -> None:
    periods = RetentionPeriods.of_days(90, ledger=30)
    assert periods.of_tenant(None) is None
    assert periods.of_tenant(90) is None
    assert periods.of_tenant(60) == TenantPeriods(30 * DAY, 60 * DAY)
    assert periods.of_tenant(7) == TenantPeriods(7 * DAY, 7 * DAY)


def test_a_month_ends_where_the_next_one_begins() -> None:
    assert [at.isoformat()[:10] for at in month_bounds("2026-12")] == ["2026-12-01", "2027-01-01"]
    assert month_bounds("2026-01")[1] == month_bounds("2026-02")[0]
