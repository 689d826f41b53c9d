"""month_ensure and month_prune: retention by month tables on PostgreSQL, by rows on SQLite."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import pytest

from everbeat.core.changes import ScheduleWrite
from everbeat.core.errors import StoreLocked
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, TaskState
from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.values import HeartbeatWrite
from tests.factories import (
    claim,
    complete,
    count_rows,
    execute_raw,
    firing_of,
    insert,
    lease_of,
    ledger,
    make_schedule,
    make_task,
    minutes,
    own_all_partitions,
    skip,
)

NODE = UUID(int=1)
TABLES = ("ticks", "task_history", "attempts", "task_log")
JANUARY, FEBRUARY, MARCH = (datetime(2026, month, 15, tzinfo=UTC) for month in (1, 2, 3))


async def record(store: Store, *moments: datetime) -> UUID:
    schedule = make_schedule()
    writes = [ScheduleWrite(schedule, skips=tuple(skip(at) for at in moments))]
    assert await store.schedule_write(DEFAULT_TENANT, writes, now=moments[-1])
    return schedule.id


def tables_of(*names: str) -> list[str]:
    """Return the names of the month tables of these months."""
    return sorted(f"{table}_{name}" for table in TABLES for name in names)


async def months(store: Store) -> list[str]:
    listed = (
        "SELECT c.relname FROM pg_class AS c WHERE c.relname ~ '^(ticks|task_history|attempts|task_log)_[0-9_]+$' ORDER BY 1"
    )
    return [name for (name,) in await execute_raw(store, listed)]


async def test_month_prune_removes_older_rows_and_keeps_the_rest(store: Store) -> None:
    id_ = await record(store, JANUARY, FEBRUARY, MARCH)
    while await store.month_prune(before=datetime(2026, 3, 1, tzinfo=UTC), limit=1):
        pass
    assert [tick.scheduled_for for tick in await ledger(store, id_)] == [MARCH]


async def test_month_prune_removes_finished_tasks(store: Store) -> None:
    for number, moment in enumerate((JANUARY, MARCH)):
        schedule = make_schedule(f"job-{number}", at=moment)
        await insert(store, schedule)
        await own_all_partitions(store, NODE, now=moment)
        await store.tick_fire(NODE, [firing_of(schedule)], now=moment)
        await complete(store, *await claim(store, now=moment), now=moment)
    while await store.month_prune(before=datetime(2026, 3, 1, tzinfo=UTC), limit=10):
        pass
    assert await count_rows(store, "task_history") == await count_rows(store, "ticks") == 1


async def test_month_prune_removes_attempts_and_log_lines(store: Store) -> None:
    await store.task_submit([make_task()], now=JANUARY)
    for moment in (JANUARY, FEBRUARY, MARCH):
        (task,) = await claim(store, now=moment, total_seconds=1e8)
        await store.task_heartbeat([HeartbeatWrite(lease_of(task), log="line")], now=moment)
        back = AttemptEnd(task.id, DEFAULT_TENANT, task.fence, AttemptOutcome.RELEASED, TaskState.READY, None, None)
        await store.task_end([back], is_expired=False, now=moment)
    while await store.month_prune(before=datetime(2026, 3, 1, tzinfo=UTC), limit=1):
        pass
    assert [attempt.ended_at for attempt in await store.task_attempts(DEFAULT_TENANT, task.id)] == [MARCH]
    assert [line.at for line in await store.task_log(DEFAULT_TENANT, task.id, after=None, limit=10)] == [MARCH]


async def test_month_prune_works_in_batches_of_rows_or_months(store: Store) -> None:
    await record(store, *(JANUARY + minutes(number) for number in range(5)))
    removed = await store.month_prune(before=MARCH, limit=1)
    assert removed == 1
    if store.dialect == "sqlite":
        assert await count_rows(store, "ticks") == 4


async def test_month_prune_drops_old_month_tables_only(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, listen=False)
    await record(store, JANUARY, FEBRUARY, MARCH)
    assert await store.month_prune(before=MARCH, limit=100) == 8
    assert await months(store) == tables_of("2026_03")
    # A later tick in a removed month creates its tables again.
    assert sorted(await store.month_ensure([FEBRUARY])) == tables_of("2026_02")
    await store.close()


async def test_month_prune_drops_tables_that_an_earlier_run_detached(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, listen=False)
    await record(store, JANUARY, MARCH)
    await execute_raw(store, "ALTER TABLE ticks DETACH PARTITION ticks_2026_01")
    assert await store.month_prune(before=MARCH, limit=100) == 4
    assert await months(store) == tables_of("2026_03")
    await store.close()


async def test_month_prune_continues_after_a_reader_blocked_it(postgres_url: str) -> None:
    """Detaching a table waits for its readers. After a timeout the month stays half detached until a later run finishes it."""
    store = PostgresStore(postgres_url, listen=False, timeout_seconds=0.5)
    id_ = await record(store, JANUARY, MARCH)
    reader = await asyncpg.connect(postgres_url)
    async with reader.transaction():
        await reader.fetch("SELECT * FROM ticks")
        with pytest.raises(StoreLocked):
            await store.month_prune(before=MARCH, limit=100)
    await reader.close()
    while await store.month_prune(before=MARCH, limit=100):
        pass
    assert await months(store) == tables_of("2026_03")
    assert len(await ledger(store, id_)) == 1
    await store.close()


async def test_month_prune_under_concurrency_succeeds(postgres_url: str) -> None:
    one, other = (PostgresStore(postgres_url, listen=False) for _ in range(2))
    try:
        for _ in range(3):
            assert sorted(await one.month_ensure([JANUARY, FEBRUARY])) == tables_of("2026_01", "2026_02")
            await asyncio.gather(*(store.month_prune(before=MARCH, limit=100) for store in (one, other)))
            while await one.month_prune(before=MARCH, limit=100):
                pass
            assert not set(await months(one)) & set(tables_of("2026_01", "2026_02"))
    finally:
        await one.close()
        await other.close()


async def test_month_ensure_creates_each_month_once_under_concurrency(postgres_url: str) -> None:
    stores = [PostgresStore(postgres_url, listen=False) for _ in range(4)]
    made = await asyncio.gather(*(store.month_ensure([MARCH, FEBRUARY, MARCH + minutes(1)]) for store in stores))
    names = [name for one in made for name in one]
    assert sorted(names) == tables_of("2026_02", "2026_03")
    for store in stores:
        with contextlib.suppress(Exception):
            await store.close()


async def test_month_ensure_does_nothing_without_month_tables(store: Store) -> None:
    made = await store.month_ensure([MARCH])
    assert sorted(made) == ([] if store.dialect == "sqlite" else tables_of("2026_03"))
    assert await store.month_ensure([MARCH]) == []
