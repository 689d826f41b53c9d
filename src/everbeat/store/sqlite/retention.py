"""Retention in the SQLite store: the sizes of months, and the rows of tenants with a shorter retention."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from everbeat.core.retention import MONTH_TABLES, TenantPeriods
from everbeat.store.rows import EARLIEST, FIRST_ID
from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.sqlite.connections import SqliteSession
from everbeat.store.sqlite.conversions import to_microseconds
from everbeat.store.values import MonthSize, TenantPruneStep

_TENANT_BLOCKS = {
    "ticks": ("tenant_prune_ticks_page", "tenant_prune_ticks"),
    "task_history": ("tenant_prune_task_history_page", "tenant_prune_task_history"),
    "attempts": ("tenant_prune_attempts_page", "tenant_prune_attempts"),
    "task_log": ("tenant_prune_task_log_page", "tenant_prune_task_log"),
}


class SqliteRetention(SqliteBase):
    async def month_sizes(self, *, before: Mapping[str, datetime]) -> list[MonthSize]:
        limits = {f"{table}_before": before.get(table, EARLIEST) for table in MONTH_TABLES}
        rows = await self._read("month_sizes", **limits)
        return [MonthSize(row["table_name"], row["month"], row["row_count"], None) for row in rows]

    async def tenant_prune(
        self,
        periods: Mapping[UUID, TenantPeriods],
        *,
        position: str | None,
        limit: int,
        now: datetime,
        is_dry_run: bool = False,
    ) -> TenantPruneStep:
        """The position is the name of a table, and the time and key of the last row that was read."""
        if not periods:
            return TenantPruneStep("", 0, None)
        table, at, key = (position or f"{next(iter(MONTH_TABLES))}:0:").split(":")
        page_block, delete_block = _TENANT_BLOCKS[table]
        before = {tenant: one.before(table, now) for tenant, one in periods.items()}
        page = await self._read(
            page_block,
            after_at=int(at),
            after_key=_key(table, key),
            before_at=max(before.values()),
            limit=limit,
        )
        old = [row for row in page if row["at"] < before.get(row["tenant_id"], EARLIEST)]
        if old and not is_dry_run:
            await self._delete(delete_block, old)
        if len(page) == limit:
            return TenantPruneStep(table, len(old), f"{table}:{to_microseconds(page[-1]['at'])}:{page[-1]['first_key']}")
        tables = list(MONTH_TABLES)
        following = tables[tables.index(table) + 1 :]
        return TenantPruneStep(table, len(old), f"{following[0]}:0:" if following else None)

    async def _delete(self, block: str, rows: list[dict[str, Any]]) -> None:
        many = [{"tenant_id": row["tenant_id"], "at": row["at"], "key": row["first_key"]} for row in rows]

        def work(session: SqliteSession) -> int:
            return session.change_many(self._blocks[block], many)

        await self._connections.write("tenant_prune", work)


def _key(table: str, text: str) -> UUID | int:
    """The ledger has no row ids: the id of the schedule is the key of a row at one time."""
    return UUID(text or FIRST_ID.hex) if table == "ticks" else int(text or 0)
