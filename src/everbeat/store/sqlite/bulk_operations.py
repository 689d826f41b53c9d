"""Bulk operation verbs of the SQLite store."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from everbeat.core.bulk import BulkOperation, BulkProgress
from everbeat.store.rows import bulk_from_row, bulk_progress_to_row
from everbeat.store.sqlite.base import SqliteBase


class SqliteBulkOperations(SqliteBase):
    async def bulk_claim(self, owner: UUID, *, lease_seconds: float, now: datetime | None = None) -> BulkOperation | None:
        return await self._changed("bulk_claim", {"owner": owner, "lease_seconds": lease_seconds, "now": now})

    async def bulk_advance(
        self,
        operation: BulkOperation,
        progress: BulkProgress,
        owner: UUID,
        *,
        lease_seconds: float,
        now: datetime | None = None,
    ) -> BulkOperation | None:
        values = {**bulk_progress_to_row(operation, progress), "owner": owner, "lease_seconds": lease_seconds}
        return await self._changed("bulk_advance", {**values, "now": now})

    async def _changed(self, block: str, values: dict[str, Any]) -> BulkOperation | None:
        bound = self._bound(values)
        rows = await self._connections.write(block, lambda session: session.rows(self._blocks[block], bound))
        return bulk_from_row(rows[0]) if rows else None
