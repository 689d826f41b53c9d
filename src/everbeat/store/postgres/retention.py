"""Retention in the PostgreSQL store: the sizes of months, and the rows of tenants with a shorter retention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from everbeat.core.errors import StoreUnavailable
from everbeat.core.retention import MONTH_TABLES, TenantPeriods, month_bounds, month_name
from everbeat.store.postgres.base import PostgresBase
from everbeat.store.queries import Query
from everbeat.store.values import MonthSize, TenantPruneStep

# Narrow rows have about 80 rows in a block, wide ones about 20.
_ROWS_IN_A_BLOCK = 50


class PostgresRetention(PostgresBase):
    async def month_sizes(self, *, before: Mapping[str, datetime]) -> list[MonthSize]:
        found = []
        for row in await self._read("month_sizes"):
            table, month, is_detached = _parts(row["name"])
            if table in before and (is_detached or month < month_name(before[table])):
                count = row["row_count"] if row["row_count"] >= 0 else await self._count(table, month, row["is_attached"])
                found.append(MonthSize(table, month, count, row["bytes"]))
        return found

    async def _count(self, table: str, month: str, is_attached: bool) -> int | None:
        """The exact number of rows of a small month. None if it cannot be counted in time."""
        if not is_attached:
            return None
        from_at, to_at = month_bounds(month)
        try:
            rows = await self._read_of(self._on_table("month_row_count", table), from_at=from_at, to_at=to_at)
        except StoreUnavailable:
            return None
        count: int = rows[0]["count"]
        return count

    async def tenant_prune(
        self,
        periods: Mapping[UUID, TenantPeriods],
        *,
        position: str | None,
        limit: int,
        now: datetime,
        is_dry_run: bool = False,
    ) -> TenantPruneStep:
        """The position is the name of a month and the next block."""
        months = await self._months_with_old_rows(periods, now)
        name, _, block = (position or "").partition(":")
        ahead = [row for row in months if row["name"] >= name]
        if not ahead:
            return TenantPruneStep("", 0, None)
        row = ahead[0]
        first = int(block) if row["name"] == name else 0
        table, month, _ = _parts(row["name"])
        last = first + max(1, limit // _ROWS_IN_A_BLOCK)
        count = await self._prune_blocks(table, month, (first, last), periods, now, is_dry_run) if first < row["blocks"] else 0
        if last < row["blocks"]:
            return TenantPruneStep(table, count, f"{row['name']}:{last}")
        return TenantPruneStep(table, count, f"{ahead[1]['name']}:0" if len(ahead) > 1 else None)

    async def _months_with_old_rows(self, periods: Mapping[UUID, TenantPeriods], now: datetime) -> Sequence[asyncpg.Record]:
        newest = {table: max(one.before(table, now) for one in periods.values()) for table in MONTH_TABLES} if periods else {}
        return [
            row
            for row in await self._read("month_sizes")
            if row["is_attached"] and newest and _parts(row["name"])[1] <= month_name(newest[_parts(row["name"])[0]])
        ]

    async def _prune_blocks(
        self,
        table: str,
        month: str,
        blocks: tuple[int, int],
        periods: Mapping[UUID, TenantPeriods],
        now: datetime,
        is_dry_run: bool,
    ) -> int:
        from_at, to_at = month_bounds(month)
        values: dict[str, Any] = {
            "tenant_ids": list(periods),
            "before_at": [one.before(table, now) for one in periods.values()],
            "from_at": from_at,
            "to_at": to_at,
            "first": (blocks[0], 0),
            "last": (blocks[1], 0),
        }
        if is_dry_run:
            (row,) = await self._read_of(self._on_table("tenant_prune_count", table), **values)
            return int(row["count"])
        return await self._connections.execute(self._pool_name, self._on_table("tenant_prune", table), **values)

    def _on_table(self, block: str, table: str) -> Query:
        query = self._queries[block]
        return query._replace(sql=query.sql.replace("parent_table", table).replace("time_column", MONTH_TABLES[table]))

    async def _read_of(self, query: Query, **values: Any) -> list[asyncpg.Record]:
        return await self._connections.fetch(self._pool_name, query, **values)


def _parts(name: str) -> tuple[str, str, bool]:
    """The table, the month and whether it is detached, from the name of a month table such as ticks_2026_07."""
    own = name.removesuffix("_detached")
    table, year, month = own.rsplit("_", 2)
    return table, f"{year}-{month}", own != name
