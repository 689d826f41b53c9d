"""Archives: months are written to a directory or a bucket, read back and removed; also after crashes and failures."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import duckdb
import pytest

from everbeat.core.archives import ArchiveSegment
from everbeat.core.changes import ScheduleWrite
from everbeat.core.errors import SettingsError, StoreUnavailable
from everbeat.core.retention import RetentionPeriods
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.archive_files import ArchiveFiles, ArchiveWriter
from everbeat.services.events import ArchiveFailed, Event, MonthArchived, MonthsToArchive
from everbeat.services.maintenance.archiver import Archive, Archiver
from everbeat.services.maintenance.pruner import Pruner
from everbeat.store.base import Store
from tests.contract.test_retention import TABLES, rows_of, write_rows
from tests.factories import SteppedNode, count_rows, execute_raw, make_schedule, minutes, seconds, skip
from tests.support.seaweedfs import CREDENTIALS, S3Server

NOW = datetime(2026, 9, 20, tzinfo=UTC)
JANUARY, FEBRUARY = datetime(2026, 1, 15, 12, 30, 15, 123456, tzinfo=UTC), datetime(2026, 2, 15, tzinfo=UTC)
# Rows that were written less than a minute ago are left for the next run.
RUN_AT = NOW + timedelta(hours=1)
PERIODS = RetentionPeriods.of_days(30)


def archive_of(store: Store, files: ArchiveFiles, events: list[Event] | None = None, **more: Any) -> Archive:
    emit = ([] if events is None else events).append
    return Archive(store, files, PERIODS, emit=emit, pause_ratio=0.0, **more)


@pytest.fixture
def files(tmp_path: Path) -> ArchiveFiles:
    return ArchiveFiles((tmp_path / "archive").as_uri())


async def run_all(archive: Archive) -> None:
    for _ in range(100):
        if not await archive.run(RUN_AT):
            return
    raise AssertionError("the archive does not end")


def query(sql: str, folder: Path) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        return connection.execute(sql.replace("ARCHIVE", str(folder))).fetchall()


def micros(at: datetime | int) -> int:
    """Microseconds since 1970. A time of SQLite is stored so."""
    return at if isinstance(at, int) else (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


async def write_ticks(store: Store, *moments: datetime, fired_at: datetime | None = None) -> UUID:
    schedule = make_schedule(f"job-{uuid4()}")
    skips = tuple(map(skip, moments))
    assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(schedule, skips=skips)], now=fired_at or moments[-1])
    return schedule.id


async def test_duckdb_reads_what_was_archived_from_a_directory(store: Store, files: ArchiveFiles, tmp_path: Path) -> None:
    await write_rows(store, DEFAULT_TENANT, JANUARY, JANUARY + seconds(1), FEBRUARY, NOW)
    rows = await execute_raw(store, "SELECT schedule_id, scheduled_for FROM ticks ORDER BY scheduled_for")
    expected = [(row[0] if isinstance(row[0], UUID) else UUID(bytes=row[0]), row[1]) for row in rows]
    events: list[Event] = []
    await run_all(archive_of(store, files, events))
    assert await rows_of(store, DEFAULT_TENANT) == dict.fromkeys(TABLES, 1)
    folder = tmp_path / "archive"
    ledger = query(
        "SELECT schedule_id, epoch_us(scheduled_for), epoch_us(fired_at), outcome, reason, count, month FROM "
        "read_parquet('ARCHIVE/ledger/*/*.parquet', hive_partitioning = true) ORDER BY scheduled_for",
        folder,
    )
    assert [row[3:] for row in ledger] == [("skipped", "misfire", 1, f"2026-0{month}") for month in (1, 1, 2)]
    assert [(UUID(row[0]), row[1], row[2]) for row in ledger] == [(id_, micros(at), micros(NOW)) for id_, at in expected[:3]]
    history = query("SELECT state, type, payload, tenant_id FROM 'ARCHIVE/history/*/*.parquet' ORDER BY finished_at", folder)
    assert [row[:2] for row in history] == [("completed", "work")] * 3
    assert {UUID(row[3]) for row in history} == {DEFAULT_TENANT}
    joined = query(
        "SELECT count(*) FROM 'ARCHIVE/attempts/*/*.parquet' AS a JOIN 'ARCHIVE/history/*/*.parquet' AS h ON h.id = a.task_id "
        "JOIN 'ARCHIVE/log/*/*.parquet' AS l ON l.task_id = h.id",
        folder,
    )
    assert joined == [(3,)]
    archived = [(one.table, one.month, one.rows) for one in events if isinstance(one, MonthArchived)]
    assert sorted(archived) == [(table, f"2026-0{month}", 3 - month) for table in sorted(TABLES) for month in (1, 2)]
    assert events[0] == MonthsToArchive(8)


async def test_duckdb_reads_what_was_archived_from_a_bucket(store: Store, s3_server: S3Server, s3_url: str) -> None:
    await write_rows(store, DEFAULT_TENANT, JANUARY, FEBRUARY, NOW)
    files = ArchiveFiles(f"{s3_url}/deep", endpoint=s3_server.endpoint)
    await run_all(archive_of(store, files))
    assert await rows_of(store, DEFAULT_TENANT) == dict.fromkeys(TABLES, 1)
    connection = duckdb.connect()
    try:
        connection.execute("LOAD httpfs")
    except duckdb.Error:
        copied = await _download(s3_url, s3_server)
        assert connection.execute(f"SELECT count(*) FROM '{copied}/*.parquet'").fetchall() == [(2,)]
        shutil.rmtree(copied)
        return
    host = s3_server.endpoint.removeprefix("http://")
    connection.execute(
        f"CREATE SECRET (TYPE s3, KEY_ID '{CREDENTIALS['AWS_ACCESS_KEY_ID']}', SECRET '{CREDENTIALS['AWS_SECRET_ACCESS_KEY']}',"
        f" ENDPOINT '{host}', USE_SSL false, URL_STYLE 'path', REGION 'us-east-1')"
    )
    assert connection.execute(f"SELECT count(*) FROM '{s3_url}/deep/ledger/*/*.parquet'").fetchall() == [(2,)]


async def _download(url: str, server: S3Server) -> str:
    """Copy the ledger from the bucket, for an environment in which DuckDB cannot load its extension for S3."""
    import tempfile

    import obstore

    from everbeat.services.blobs import open_bucket

    store, folder = open_bucket(f"{url}/deep", server.endpoint, 30), tempfile.mkdtemp()
    for batch in obstore.list(store, "ledger"):
        for found in batch:
            if found["path"].endswith(".parquet"):
                data = bytes((await obstore.get_async(store, found["path"])).bytes())
                Path(folder, Path(found["path"]).name).write_bytes(data)
    return folder


async def test_the_manifest_describes_the_file(store: Store, files: ArchiveFiles, tmp_path: Path) -> None:
    await write_ticks(store, JANUARY, JANUARY + minutes(1))
    await run_all(archive_of(store, files))
    folder = tmp_path / "archive/ledger/month=2026-01"
    manifest = json.loads((folder / "ledger-2026-01-1.json").read_text())
    assert manifest["rows"] == 2
    assert manifest["file"] == "ledger/month=2026-01/ledger-2026-01-1.parquet"
    assert manifest["bytes"] == (folder / "ledger-2026-01-1.parquet").stat().st_size
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert (manifest["format"], manifest["schema_version"], manifest["segment"]) == ("everbeat-archive", 1, 1)
    assert datetime.fromisoformat(manifest["first_at"]) == JANUARY
    assert datetime.fromisoformat(manifest["last_at"]) == JANUARY + minutes(1)
    assert manifest["columns"]["scheduled_for"] == "time"


async def test_secrets_of_targets_are_not_archived(store: Store, files: ArchiveFiles, tmp_path: Path) -> None:
    await write_rows(store, DEFAULT_TENANT, JANUARY)
    target = '{"kind":"http","url":"https://example.com","headers":{"Authorization":"Bearer s3cret","Accept":"*/*"}}'
    await execute_raw(store, "UPDATE task_history SET target = ?", target)
    await run_all(archive_of(store, files))
    ((text,),) = query("SELECT target FROM 'ARCHIVE/history/*/*.parquet'", tmp_path / "archive")
    assert "s3cret" not in text
    assert json.loads(text)["headers"]["Accept"] == "*/*"


async def test_months_that_are_not_past_their_retention_are_kept(store: Store, files: ArchiveFiles, tmp_path: Path) -> None:
    await write_ticks(store, NOW - timedelta(days=40), NOW)
    events: list[Event] = []
    await run_all(archive_of(store, files, events))
    assert await count_rows(store, "ticks") == 2
    assert set(map(type, events)) == {MonthsToArchive}
    assert events[-1] == MonthsToArchive(0)
    assert list((tmp_path / "archive").rglob("*.parquet")) == []


async def test_rows_that_are_written_after_their_month_was_archived_get_a_file_of_their_own(
    store: Store, files: ArchiveFiles, tmp_path: Path
) -> None:
    await write_ticks(store, JANUARY)
    await run_all(archive_of(store, files))
    await write_ticks(store, JANUARY + minutes(1), fired_at=NOW - timedelta(hours=1))
    await run_all(archive_of(store, files))
    assert await count_rows(store, "ticks") == 0
    folder = tmp_path / "archive/ledger/month=2026-01"
    assert sorted(path.name for path in folder.glob("*.parquet")) == ["ledger-2026-01-1.parquet", "ledger-2026-01-2.parquet"]
    assert query("SELECT count(DISTINCT scheduled_for), count(*) FROM 'ARCHIVE/ledger/*/*.parquet'", tmp_path / "archive") == [
        (2, 2)
    ]


async def test_many_pages_and_row_groups_keep_each_row_once(
    store: Store, files: ArchiveFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everbeat.services.archive_files._ROW_GROUP_ROWS", 40)
    moments = [JANUARY + seconds(number) for number in range(300)]
    await write_ticks(store, *moments)
    await run_all(archive_of(store, files, page_rows=7 if store.dialect == "sqlite" else 64))
    manifest = json.loads((tmp_path / "archive/ledger/month=2026-01/ledger-2026-01-1.json").read_text())
    assert manifest["rows"] == 300
    assert 2 <= manifest["row_groups"] <= 8
    found = query("SELECT epoch_us(scheduled_for) FROM 'ARCHIVE/ledger/*/*.parquet' ORDER BY 1", tmp_path / "archive")
    assert [row[0] for row in found] == [micros(at) for at in moments]


class Crash(BaseException):
    """The process ends here."""


def crash(*_args: object, **_more: object) -> Any:
    raise Crash


CRASHES: dict[str, Callable[[pytest.MonkeyPatch, Store], None]] = {
    "while rows are read": lambda patch, _: patch.setattr(ArchiveWriter, "write", crash),
    "before the file is complete": lambda patch, _: patch.setattr(ArchiveWriter, "close", crash),
    "before the file is read back": lambda patch, _: patch.setattr(ArchiveFiles, "read_back", crash),
    "before the manifest": lambda patch, _: patch.setattr(ArchiveFiles, "write_manifest", crash),
    "before the segment is recorded": lambda patch, store: patch.setattr(store, "archive_finish", crash),
    "before the rows are removed": lambda patch, store: patch.setattr(store, "archive_remove", crash),
}


@pytest.mark.parametrize("point", list(CRASHES))
async def test_after_a_crash_nothing_is_lost_or_doubled(
    store: Store, files: ArchiveFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    await write_ticks(store, JANUARY, JANUARY + minutes(1), JANUARY + minutes(2))
    with monkeypatch.context() as patch:
        CRASHES[point](patch, store)
        with contextlib.suppress(Crash):
            await archive_of(store, files).run(RUN_AT)
            raise AssertionError("it did not crash")
    await run_all(archive_of(store, files))
    assert await count_rows(store, "ticks") == 0
    assert query("SELECT count(DISTINCT scheduled_for), count(*) FROM 'ARCHIVE/ledger/*/*.parquet'", tmp_path / "archive") == [
        (3, 3)
    ]
    assert [path.name for path in (tmp_path / "archive").rglob("*#*")] == []


async def test_a_crash_in_the_middle_of_the_removal_is_continued(store: Store, files: ArchiveFiles, tmp_path: Path) -> None:
    await write_ticks(store, *(JANUARY + minutes(number) for number in range(5)))
    archive = archive_of(store, files)
    archive._remove_rows = 2
    remove, calls = store.archive_remove, 0

    async def crash_after_one(segment: ArchiveSegment, *, limit: int, now: datetime | None = None) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise Crash
        return await remove(segment, limit=limit, now=now)

    store.archive_remove = crash_after_one  # type: ignore[method-assign]
    with contextlib.suppress(Crash):
        await archive.run(RUN_AT)
    store.archive_remove = remove  # type: ignore[method-assign]
    await run_all(archive_of(store, files))
    assert await count_rows(store, "ticks") == 0
    assert query("SELECT count(*) FROM 'ARCHIVE/ledger/*/*.parquet'", tmp_path / "archive") == [(5,)]


async def test_a_failure_is_reported_and_nothing_is_removed(
    store: Store, files: ArchiveFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_ticks(store, JANUARY, NOW)
    events: list[Event] = []
    folder = tmp_path / "archive"
    shutil.rmtree(folder)
    folder.write_text("a file where the directory was")
    assert not await archive_of(store, files, events).run(RUN_AT)
    (failed,) = [one for one in events if isinstance(one, ArchiveFailed)]
    assert (failed.table, failed.month) == ("ticks", "2026-01")
    assert "the archive cannot be written" in failed.error
    folder.unlink()
    folder.mkdir()
    await run_all(archive_of(store, files, events))
    assert query("SELECT count(*) FROM 'ARCHIVE/ledger/*/*.parquet'", folder) == [(1,)]
    assert await count_rows(store, "ticks") == 1


async def test_rows_are_kept_if_the_file_has_fewer_than_the_database(
    store: Store, files: ArchiveFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_ticks(store, JANUARY, JANUARY + minutes(1))
    events: list[Event] = []
    with monkeypatch.context() as patch:
        write = ArchiveWriter.write
        patch.setattr(ArchiveWriter, "write", lambda writer, rows: write(writer, rows[1:]))
        assert not await archive_of(store, files, events).run(RUN_AT)
    (failed,) = [one for one in events if isinstance(one, ArchiveFailed)]
    assert "has 1 rows; 1 were written, and the database has 2" in failed.error
    found: list[Event] = []
    await run_all(archive_of(store, files, found))
    assert [one.rows for one in found if isinstance(one, MonthArchived)] == [2]


async def test_a_database_failure_is_reported_and_the_file_does_not_become_visible(
    store: Store, files: ArchiveFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_ticks(store, JANUARY)
    events: list[Event] = []

    async def fail(*_args: object, **_more: object) -> None:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(store, "archive_read", fail)
        assert not await archive_of(store, files, events).run(RUN_AT)
    assert [one.error for one in events if isinstance(one, ArchiveFailed)] == ["gone"]
    assert list((tmp_path / "archive").rglob("*.parquet*")) == []


async def test_a_process_that_lost_its_claim_stops_and_writes_no_file(
    store: Store, files: ArchiveFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_ticks(store, JANUARY)
    read = store.archive_read

    async def read_after_takeover(segment: ArchiveSegment, **more: Any) -> Any:
        await store.archive_begin(segment.table, segment.month, uuid4(), now=RUN_AT)
        return await read(segment, **more)

    with monkeypatch.context() as patch:
        patch.setattr(store, "archive_read", read_after_takeover)
        await archive_of(store, files).run(RUN_AT)
    assert list((tmp_path / "archive").rglob("*.parquet*")) == []
    await run_all(archive_of(store, files))
    assert query("SELECT count(*) FROM 'ARCHIVE/ledger/*/*.parquet'", tmp_path / "archive") == [(1,)]


async def test_the_archiver_works_on_the_owner_and_the_pruner_leaves_the_months_to_it(
    store: Store, files: ArchiveFiles
) -> None:
    node = SteppedNode(store)
    await write_ticks(store, JANUARY)
    archiver = Archiver(archive_of(store, files), node.ownership)
    pruner = Pruner(store, node.ownership, PERIODS, drops_months=False)
    assert not await archiver.run_once(NOW)
    assert await count_rows(store, "ticks") == 1
    await node.renew()
    await pruner.run_once(NOW)
    assert await count_rows(store, "ticks") == 1
    await archiver.run_once(NOW)
    assert await count_rows(store, "ticks") == 0


def test_a_directory_that_cannot_be_written_is_refused_at_start(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SettingsError, match="archive_url"):
        ArchiveFiles((file / "below").as_uri())


def test_the_extra_is_named_if_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SettingsError, match=r"pip install 'everbeat\[archive\]'"):
        ArchiveFiles(tmp_path.as_uri())
