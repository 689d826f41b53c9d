"""The archiver: writes months past their retention to Parquet files, and removes them only after the files were read back.

The order of the steps makes a crash harmless. A month is set aside, so that nothing writes to it any more. Its rows are
streamed to a file that becomes visible when it is complete. The file is read back, and its number of rows compared with the
database. Then the manifest is written, then the segment is recorded as archived in the database, and only then the rows are
removed. A process that continues after a crash finds in the database how far its predecessor came, and overwrites a file that
is not recorded.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from uuid import uuid4

from everbeat.core.archives import ARCHIVE_COLUMNS, DATASETS, ArchiveManifest, ArchiveSegment
from everbeat.core.errors import ArchiveUnavailable, EverbeatError
from everbeat.core.retention import RetentionPeriods, month_bounds, month_name, next_step_size
from everbeat.services.archive_files import ArchiveFiles, ArchiveWriter, FileSummary
from everbeat.services.events import ArchiveFailed, Emit, MonthArchived, MonthsToArchive, ignore
from everbeat.services.maintenance.singleton import SingletonLoop
from everbeat.services.ownership import Ownership
from everbeat.store.base import Store
from everbeat.version import __version__

_PAGE_ROWS = 1000
_REMOVE_ROWS = 5000
_EMPTY = FileSummary(0, 0, 0, None, None)


class Archive:
    """Archives months, one segment at a time. `pause_ratio`: how long to pause after each page, relative to its duration."""

    def __init__(
        self,
        store: Store,
        files: ArchiveFiles,
        periods: RetentionPeriods,
        *,
        emit: Emit = ignore,
        pause_ratio: float = 1.0,
        page_rows: int = _PAGE_ROWS,
    ) -> None:
        self._store = store
        self._files = files
        self._periods = periods
        self._emit = emit
        self._pause_ratio = pause_ratio
        self._page_rows = page_rows
        self._remove_rows = _REMOVE_ROWS

    async def run(self, now: datetime | None = None) -> bool:
        """Archive and remove the oldest month of each table. Returns whether there are more. After a failure, it stops."""
        months = await self._months(now)
        self._emit(MonthsToArchive(len(months)))
        for table in DATASETS:
            month = next((month for name, month in months if name == table), None)
            if month is None:
                continue
            try:
                await self._archive_month(table, month, now)
            except EverbeatError as error:
                self._emit(ArchiveFailed(table, month, str(error)))
                return False
        left = await self._months(now)
        self._emit(MonthsToArchive(len(left)))
        return bool(left) and left != months

    async def _months(self, now: datetime | None) -> list[tuple[str, str]]:
        """The tables and months that are past their retention as a whole, the oldest first."""
        moment = await self._store.clock(now=now)
        before = {
            table: month_bounds(month_name(at))[0]
            for tables, at in self._periods.month_cutoffs(moment).items()
            for table in tables
        }
        sizes = await self._store.month_sizes(before=before)
        return sorted({(one.table, one.month) for one in sizes}, key=lambda one: one[1])

    async def _archive_month(self, table: str, month: str, now: datetime | None) -> None:
        """Do nothing if the month cannot be archived now, because it is in use or another process works on it."""
        segment = await self._store.archive_begin(table, month, uuid4(), now=now)
        if segment is None or (segment.archived_at is None and not await self._archive_segment(segment, now)):
            return
        while await self._remove(segment, now):
            pass

    async def _archive_segment(self, segment: ArchiveSegment, now: datetime | None) -> bool:
        """Returns False if another process has claimed the segment. A segment without rows gets no file."""
        started = time.monotonic()
        expected = await self._store.archive_count(segment)
        if expected == 0:
            return await self._finish(segment, _EMPTY, now)
        written = await self._write(segment, expected)
        if written is None or not await self._record(segment, written, now):
            return False
        self._emit(MonthArchived(segment.table, segment.month, written.rows, written.bytes, time.monotonic() - started))
        return True

    async def _write(self, segment: ArchiveSegment, expected: int) -> FileSummary | None:
        """Write the file, and read it back. None if another process has claimed the segment."""
        writer = await asyncio.to_thread(self._files.create, segment)
        try:
            if not await self._stream(segment, writer):
                await asyncio.to_thread(writer.abandon)
                return None
            await asyncio.to_thread(writer.close)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(writer.abandon))
            raise
        found = await asyncio.to_thread(self._files.read_back, segment)
        if not found.rows == writer.rows == expected:
            raise ArchiveUnavailable(
                f"{segment.file} has {found.rows} rows; {writer.rows} were written, and the database has {expected}"
            )
        return found

    async def _stream(self, segment: ArchiveSegment, writer: ArchiveWriter) -> bool:
        position: str | None = None
        while True:
            started = time.monotonic()
            page = await self._store.archive_read(segment, position=position, limit=self._page_rows)
            if page is None:
                return False
            await asyncio.to_thread(writer.write, page.rows)
            position = page.position
            if position is None:
                return True
            await asyncio.sleep((time.monotonic() - started) * self._pause_ratio)

    async def _record(self, segment: ArchiveSegment, found: FileSummary, now: datetime | None) -> bool:
        manifest = ArchiveManifest(
            everbeat_version=__version__,
            dataset=DATASETS[segment.table],
            month=segment.month,
            segment=segment.number,
            file=segment.file,
            bytes=found.bytes,
            rows=found.rows,
            row_groups=found.row_groups,
            first_at=found.first_at,
            last_at=found.last_at,
            archived_at=await self._store.clock(now=now),
            columns={name: kind.value for name, kind in ARCHIVE_COLUMNS[segment.table].items()},
        )
        await asyncio.to_thread(self._files.write_manifest, segment, manifest)
        return await self._finish(segment, found, now)

    async def _finish(self, segment: ArchiveSegment, found: FileSummary, now: datetime | None) -> bool:
        return await self._store.archive_finish(
            segment, rows=found.rows, first_at=found.first_at, last_at=found.last_at, file_bytes=found.bytes, now=now
        )

    async def _remove(self, segment: ArchiveSegment, now: datetime | None) -> bool:
        started = time.monotonic()
        has_more = await self._store.archive_remove(segment, limit=self._remove_rows, now=now) > 0
        seconds = time.monotonic() - started
        if self._store.dialect == "sqlite":
            self._remove_rows = next_step_size(self._remove_rows, seconds, _REMOVE_ROWS)
        if has_more:
            await asyncio.sleep(seconds * self._pause_ratio)
        return has_more


class Archiver(SingletonLoop):
    """Archives months on the owner of partition 0. A month can take long, so it is a loop of its own."""

    name = "archiver"
    deadline_seconds = 6 * 3600.0

    def __init__(self, archive: Archive, ownership: Ownership, *, interval_seconds: float = 600) -> None:
        super().__init__(ownership, interval_seconds)
        self._archive = archive

    async def run_once(self, now: datetime | None = None) -> bool:
        return self.is_owner() and await self._archive.run(now)
