"""Bulk operation verbs of the PostgreSQL store."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from everbeat.core.bulk import BulkOperation, BulkProgress
from everbeat.store.postgres.base import PostgresBase
from everbeat.store.rows import bulk_from_row, bulk_progress_to_row


class PostgresBulkOperations(PostgresBase):
    async def bulk_claim(self, owner: UUID, *, lease_seconds: float, now: datetime | None = None) -> BulkOperation | None:
        rows = await self._read("bulk_claim", owner=owner, lease_seconds=lease_seconds, now=now)
        return bulk_from_row(rows[0]) if rows else None

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
        rows = await self._read("bulk_advance", **values, now=now)
        return bulk_from_row(rows[0]) if rows else None
