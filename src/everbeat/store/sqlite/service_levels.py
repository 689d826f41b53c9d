"""Service level verbs of the SQLite store."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from everbeat.core.service_levels import LevelBucket
from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.sqlite.connections import SqliteSession


class SqliteServiceLevels(SqliteBase):
    async def service_level_write(self, node_id: UUID, buckets: Sequence[LevelBucket]) -> int:
        def work(session: SqliteSession) -> int:
            rows = ({**one._asdict(), "node": node_id} for one in buckets)
            return sum(session.change(self._blocks["service_level_write"], row) for row in rows)

        return await self._connections.write("service_level_write", work)
