"""The verbs of archives: claims, reading in pages, counting, and removal."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from everbeat.core.archives import ARCHIVE_COLUMNS, ArchiveSegment
from everbeat.core.changes import ScheduleWrite
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.queries import load_blocks
from tests.contract.test_retention import TABLES, rows_of, write_rows
from tests.factories import count_rows, execute_raw, make_schedule, minutes, skip

JANUARY, FEBRUARY, MARCH = (datetime(2026, month, 15, tzinfo=UTC) for month in (1, 2, 3))
NOW = datetime(2026, 9, 1, tzinfo=UTC)


async def begin(store: Store, table: str = "ticks", month: str = "2026-01", now: datetime = NOW) -> ArchiveSegment:
    segment = await store.archive_begin(table, month, uuid4(), now=now)
    assert segment is not None
    return segment


async def read_all(store: Store, segment: ArchiveSegment, limit: int = 2) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    position: str | None = None
    for _ in range(100):
        page = await store.archive_read(segment, position=position, limit=limit)
        assert page is not None
        rows += page.rows
        position = page.position
        if position is None:
            return rows
    raise AssertionError("the pages do not end")


async def finish(store: Store, segment: ArchiveSegment, rows: int = 0) -> bool:
    return await store.archive_finish(segment, rows=rows, first_at=JANUARY, last_at=JANUARY, file_bytes=10, now=NOW)


async def write_ticks(store: Store, *moments: datetime, now: datetime = MARCH) -> UUID:
    schedule = make_schedule(f"job-{uuid4()}")
    assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(schedule, skips=tuple(map(skip, moments)))], now=now)
    return schedule.id


async def mark_fired(store: Store, at: datetime) -> None:
    await execute_raw(store, "UPDATE ticks SET fired_at = ?", at)


@pytest.mark.parametrize("table", TABLES)
async def test_archive_read_returns_each_row_of_the_month_once(store: Store, table: str) -> None:
    await write_rows(store, DEFAULT_TENANT, JANUARY, JANUARY + minutes(1), JANUARY + minutes(2), FEBRUARY)
    segment = await begin(store, table)
    rows = await read_all(store, segment)
    keys = [tuple(map(str, row)) for row in rows]
    assert len(set(keys)) == len(keys) == 3 == await store.archive_count(segment)
    assert {len(row) for row in rows} == {len(ARCHIVE_COLUMNS[table])}
    assert DEFAULT_TENANT in rows[0]
    assert JANUARY in {value for row in rows for value in row}


@pytest.mark.parametrize("table", TABLES)
async def test_archive_remove_removes_only_what_the_segment_contains(store: Store, table: str) -> None:
    await write_rows(store, DEFAULT_TENANT, JANUARY, JANUARY + minutes(1), FEBRUARY)
    segment = await begin(store, table)
    assert await finish(store, segment, 2)
    while await store.archive_remove(segment, limit=1, now=NOW):
        pass
    assert await rows_of(store, DEFAULT_TENANT) == {**dict.fromkeys(TABLES, 3), table: 1}
    assert await store.archive_remove(segment, limit=1, now=NOW) == 0


async def test_archive_remove_does_nothing_before_the_segment_is_recorded(store: Store) -> None:
    """The caller removes what archive_begin returns with archived_at. A segment that is not complete is begun again."""
    await write_ticks(store, JANUARY)
    first = await begin(store)
    again = await begin(store)
    assert (first.number, again.number, again.archived_at) == (1, 1, None)
    assert await store.archive_count(again) == 1


async def test_archive_begin_takes_a_segment_over_and_the_former_claim_is_lost(store: Store) -> None:
    await write_ticks(store, JANUARY)
    first, second = await begin(store), await begin(store)
    assert await store.archive_read(first, position=None, limit=10) is None
    assert not await finish(store, first)
    assert len(await read_all(store, second)) == 1
    assert await finish(store, second)
    assert not await finish(store, second)
    assert await store.archive_read(second, position=None, limit=10) is None


async def test_archive_begin_continues_with_the_removal_of_an_archived_segment(store: Store) -> None:
    await write_ticks(store, JANUARY, JANUARY + minutes(1))
    segment = await begin(store)
    assert await finish(store, segment)
    found = await begin(store)
    assert (found.claim, found.archived_at) == (segment.claim, NOW)
    while await store.archive_remove(found, limit=1, now=NOW):
        pass
    assert await count_rows(store, "ticks") == 0


async def test_archive_begin_counts_rows_that_are_written_later_to_the_next_segment(store: Store) -> None:
    await write_ticks(store, JANUARY)
    await mark_fired(store, NOW - timedelta(days=1))
    segment = await begin(store)
    await write_ticks(store, JANUARY + minutes(1), now=NOW + minutes(5))
    assert len(await read_all(store, segment)) == 1 == await store.archive_count(segment)
    assert await finish(store, segment)
    while await store.archive_remove(segment, limit=10, now=NOW):
        pass
    assert await count_rows(store, "ticks") == 1
    late = await begin(store, now=NOW + minutes(10))
    assert (late.number, len(await read_all(store, late))) == (2, 1)


async def test_archive_begin_does_nothing_without_the_month(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, listen=False)
    await write_ticks(store, MARCH)
    assert await store.archive_begin("ticks", "2020-01", uuid4(), now=NOW) is None
    await store.close()


async def test_archive_begin_waits_for_readers_of_the_month_and_continues_later(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, listen=False, timeout_seconds=0.5)
    await write_ticks(store, JANUARY, MARCH)
    reader = await asyncpg.connect(postgres_url)
    async with reader.transaction():
        await reader.fetch("SELECT * FROM ticks")
        assert await store.archive_begin("ticks", "2026-01", uuid4(), now=NOW) is None
    await reader.close()
    assert len(await read_all(store, await begin(store))) == 1
    await store.close()


async def test_archive_count_counts_the_rows_of_the_month_only(store: Store) -> None:
    await write_ticks(store, JANUARY, JANUARY + minutes(1), FEBRUARY)
    assert await store.archive_count(await begin(store)) == 2
    assert await store.archive_count(await begin(store, month="2026-02")) == 1


async def test_archive_finish_of_an_empty_month(store: Store) -> None:
    await write_ticks(store, JANUARY)
    segment = await begin(store, "attempts")
    assert await store.archive_count(segment) == 0
    assert await read_all(store, segment) == []
    assert await finish(store, segment)
    while await store.archive_remove(segment, limit=10, now=NOW):
        pass


@pytest.mark.parametrize("table", TABLES)
def test_the_blocks_read_the_columns_of_the_files(table: str) -> None:
    for dialect in ("sqlite", "postgres"):
        text = load_blocks(f"everbeat.store.{dialect}")[f"archive_read_{table}"]
        match = re.search(r"SELECT (.*?) FROM", text, re.S)
        assert match is not None
        columns = [name for name in re.split(r",\s+", match[1]) if " AS key" not in name]
        assert columns == list(ARCHIVE_COLUMNS[table])
