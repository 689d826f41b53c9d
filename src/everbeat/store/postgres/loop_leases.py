"""The verb of loop leases of the PostgreSQL store that returns rows of a write."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from everbeat.store.postgres.base import PostgresBase
from everbeat.store.values import LoopLease


class PostgresLoopLeases(PostgresBase):
    async def loop_lease_take(
        self, name: str, holder: UUID, *, lease_seconds: float, interval_seconds: float, now: datetime | None = None
    ) -> LoopLease | None:
        values = {"lease_seconds": lease_seconds, "interval_seconds": interval_seconds, "now": now}
        rows = await self._read("loop_lease_take", name=name, holder=holder, **values)
        return LoopLease(**rows[0]) if rows else None
