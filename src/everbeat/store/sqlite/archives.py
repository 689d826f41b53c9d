"""Archives in the SQLite store: months are ranges of rows, which are read and deleted in the order of time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from everbeat.core.archives import ARCHIVE_COLUMNS, ArchivePage, ArchiveSegment
from everbeat.core.retention import MONTH_TABLES, month_bounds
from everbeat.store.archive_rows import latest_segment, segment_key
from everbeat.store.rows import FIRST_ID
from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.sqlite.conversions import to_microseconds

# Rows that are being written have the time at which their write was requested.
_WRITE_MARGIN = timedelta(minutes=1)
_BLOCKS = {
    "ticks": ("archive_read_ticks", "archive_count_ticks", "archive_remove_ticks"),
    "task_history": ("archive_read_task_history", "archive_count_task_history", "archive_remove_task_history"),
    "attempts": ("archive_read_attempts", "archive_count_attempts", "archive_remove_attempts"),
    "task_log": ("archive_read_task_log", "archive_count_task_log", "archive_remove_task_log"),
}


class SqliteArchives(SqliteBase):
    async def archive_begin(self, table: str, month: str, claim: UUID, *, now: datetime | None = None) -> ArchiveSegment | None:
        values = {"table_name": table, "month": month}
        latest, number = latest_segment(await self._read("archive_latest", **values))
        if latest is not None and latest.archived_at is not None:
            return latest
        moment = self._moment(now)
        begin = {**values, "segment": number, "claim": claim, "recorded_until": moment - _WRITE_MARGIN, "now": moment}
        if await self._change("archive_insert" if latest is None else "archive_claim", **begin) != 1:
            return None
        return ArchiveSegment(table, month, number, claim, moment - _WRITE_MARGIN)

    async def archive_read(self, segment: ArchiveSegment, *, position: str | None, limit: int) -> ArchivePage | None:
        """The position is the time and the key of the last row."""
        held = await self._read("archive_held", **segment_key(segment))
        if not held or held[0]["claim"] != segment.claim:
            return None
        at, _, key = (position or "0:").partition(":")
        is_ledger = segment.table == "ticks"
        found = await self._read(
            _BLOCKS[segment.table][0],
            **_range(segment),
            after_at=int(at),
            after_key=UUID(key or FIRST_ID.hex) if is_ledger else int(key or 0),
            limit=limit,
        )
        names = list(ARCHIVE_COLUMNS[segment.table])
        rows = [tuple(row[name] for name in names) for row in found]
        if len(found) < limit:
            return ArchivePage(rows, None)
        last = found[-1]
        return ArchivePage(rows, f"{to_microseconds(last[MONTH_TABLES[segment.table]])}:{last['key']}")

    async def archive_count(self, segment: ArchiveSegment) -> int:
        (row,) = await self._read(_BLOCKS[segment.table][1], **_range(segment))
        count: int = row["count"]
        return count

    async def archive_remove(self, segment: ArchiveSegment, *, limit: int, now: datetime | None = None) -> int:
        removed = await self._change(_BLOCKS[segment.table][2], **_range(segment), limit=limit)
        if removed == 0:
            await self._change("archive_removed", **segment_key(segment), now=now)
        return removed


def _range(segment: ArchiveSegment) -> dict[str, Any]:
    from_at, to_at = month_bounds(segment.month)
    return {"from_at": from_at, "to_at": to_at, "recorded_until": segment.recorded_until}
