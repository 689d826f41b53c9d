"""Archives in the PostgreSQL store: detach a month, read it by blocks, and drop it."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any
from uuid import UUID

from everbeat.core.archives import ArchivePage, ArchiveSegment
from everbeat.core.errors import StoreError, StoreLocked
from everbeat.store.archive_rows import latest_segment, segment_key
from everbeat.store.postgres.connections import fetch_on
from everbeat.store.postgres.maintenance import MONTH_TABLE, PRUNE_LOCK, PostgresMaintenance
from everbeat.store.queries import Query

_COUNT_SECONDS = 3600
# Narrow rows have about 80 rows in a block. Wide ones have about 20, but each can have 64 KiB outside of the table.
_ROWS_IN_A_BLOCK = 64
_READ_BLOCKS = {
    "ticks": "archive_read_ticks",
    "task_history": "archive_read_task_history",
    "attempts": "archive_read_attempts",
    "task_log": "archive_read_task_log",
}


class PostgresArchives(PostgresMaintenance):
    async def archive_begin(self, table: str, month: str, claim: UUID, *, now: datetime | None = None) -> ArchiveSegment | None:
        values = {"table_name": table, "month": month}
        latest, number = latest_segment(await self._read("archive_latest", **values))
        if latest is not None and latest.archived_at is not None:
            return latest
        if not await self._detach_month(table, month):
            return None
        moment = await self.clock(now=now)
        begin = {**values, "segment": number, "claim": claim, "recorded_until": moment, "now": moment}
        if await self._change("archive_insert" if latest is None else "archive_claim", **begin) != 1:
            return None
        return ArchiveSegment(table, month, number, claim, moment)

    async def _detach_month(self, table: str, month: str) -> bool:
        """Detach the month, unless a part of it is detached already. False if there is no such month, or it is in use."""
        name = _name(table, month)
        found = {row["name"]: row for row in await self._read("month_list")}
        if f"{name}_detached" in found:
            return True
        if name not in found:
            return False
        match = MONTH_TABLE.fullmatch(name)
        assert match is not None
        self._database.months.clear()
        try:
            if found[name]["is_mine"]:
                await self._detach_own_month(match, found[name], rename=True)
            else:
                await self._detach_as_owner(table, name)
        except StoreLocked:
            return False
        return True

    async def _detach_as_owner(self, table: str, name: str) -> None:
        async def detach() -> None:
            async with self._connections.transaction(self._pool_name, "archive_begin", lock_timeout=PRUNE_LOCK) as connection:
                await fetch_on(connection, self._queries["month_detach_as_owner"], parent=table, child=name)

        await self._retry_when_locked(detach)

    async def archive_read(self, segment: ArchiveSegment, *, position: str | None, limit: int) -> ArchivePage | None:
        """The position is the next block."""
        name = _detached(segment)
        held = await self._read("archive_held", **segment_key(segment))
        if not held or held[0]["claim"] != segment.claim:
            return None
        (size,) = await self._read("archive_blocks", name=name)
        first = int(position or 0)
        last = first + max(1, limit // _ROWS_IN_A_BLOCK)
        rows = await self._read_month(_READ_BLOCKS[segment.table], name, first=(first, 0), last=(last, 0))
        return ArchivePage([tuple(row) for row in rows], str(last) if last < size["blocks"] else None)

    async def archive_count(self, segment: ArchiveSegment) -> int:
        async with self._connections.transaction(
            self._pool_name, "archive_count", timeout_seconds=_COUNT_SECONDS, statement_timeout=f"{_COUNT_SECONDS}s"
        ) as connection:
            query = self._on_month("archive_count", _detached(segment))
            return int(await connection.fetchval(query.sql, timeout=_COUNT_SECONDS))

    async def archive_remove(self, segment: ArchiveSegment, *, limit: int, now: datetime | None = None) -> int:
        """Drop the detached month. `limit` is not used: a table is dropped as a whole."""
        name = _detached(segment)
        row = next((row for row in await self._read("month_list") if row["name"] == name), None)
        match = re.fullmatch(MONTH_TABLE, name)
        if row is not None and match is not None:
            try:
                if not await (self._drop_month(match, row) if row["is_mine"] else self._drop_month_as_owner(match)):
                    return 1
            except StoreError as error:
                if not self._is_dropped_by_others(error):
                    raise
        await self._change("archive_removed", **segment_key(segment), now=now)
        return 0

    async def _read_month(self, block: str, name: str, **values: Any) -> list[Any]:
        return await self._connections.fetch(self._pool_name, self._on_month(block, name), **values)

    def _on_month(self, block: str, name: str) -> Query:
        query = self._queries[block]
        return query._replace(sql=query.sql.replace("month_table", name))


def _name(table: str, month: str) -> str:
    return f"{table}_{month.replace('-', '_')}"


def _detached(segment: ArchiveSegment) -> str:
    return f"{_name(segment.table, segment.month)}_detached"
