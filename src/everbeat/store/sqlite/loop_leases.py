"""The verb of loop leases of the SQLite store that returns rows of a write."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.values import LoopLease


class SqliteLoopLeases(SqliteBase):
    async def loop_lease_take(
        self, name: str, holder: UUID, *, lease_seconds: float, interval_seconds: float, now: datetime | None = None
    ) -> LoopLease | None:
        values = {"lease_seconds": lease_seconds, "interval_seconds": interval_seconds, "now": self._moment(now)}
        values |= {"name": name, "holder": holder}
        block = self._blocks["loop_lease_take"]
        rows = await self._connections.write("loop_lease_take", lambda session: session.rows(block, values))
        return LoopLease(**rows[0]) if rows else None
