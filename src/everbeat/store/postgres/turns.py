"""The verb of turns of the PostgreSQL store that returns rows of a write."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from everbeat.store.postgres.base import PostgresBase
from everbeat.store.values import Turn


class PostgresTurns(PostgresBase):
    async def turn_take(
        self, name: str, holder: UUID, *, lease_seconds: float, interval_seconds: float, now: datetime | None = None
    ) -> Turn | None:
        values = {"lease_seconds": lease_seconds, "interval_seconds": interval_seconds, "now": now}
        rows = await self._read("turn_take", name=name, holder=holder, **values)
        return Turn(**rows[0]) if rows else None
