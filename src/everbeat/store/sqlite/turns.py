"""The verb of turns of the SQLite store that returns rows of a write."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.values import Turn


class SqliteTurns(SqliteBase):
    async def turn_take(
        self, name: str, holder: UUID, *, lease_seconds: float, interval_seconds: float, now: datetime | None = None
    ) -> Turn | None:
        values = {"lease_seconds": lease_seconds, "interval_seconds": interval_seconds, "now": self._moment(now)}
        values |= {"name": name, "holder": holder}
        rows = await self._connections.write("turn_take", lambda session: session.rows(self._blocks["turn_take"], values))
        return Turn(**rows[0]) if rows else None
