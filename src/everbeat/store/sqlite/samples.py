"""Samples of the SQLite store for metrics."""

from __future__ import annotations

from everbeat.store.samples import DatabaseSample, PoolUse, ReadySample
from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.sqlite.connections import SqliteSession


class SqliteSamples(SqliteBase):
    async def sample_ready(self, *, max_queues: int, max_flows: int, limit: int) -> list[ReadySample]:
        def work(session: SqliteSession) -> list[ReadySample]:
            queues = session.rows(self._blocks["sample_ready_queues"], {"max_queues": max_queues})
            values = {"max_flows": max_flows, "limit": limit}
            found = [row for one in queues for row in session.rows(self._blocks["sample_ready"], {**one, **values})]
            return [ReadySample(**row) for row in found if row["oldest_at"] is not None]

        return await self._connections.read("sample_ready", work)

    async def sample_database(self) -> DatabaseSample:
        (row,) = await self._read("sample_database")
        return DatabaseSample(row["bytes"], row["free_bytes"], self._wal_bytes(), None, [])

    def _wal_bytes(self) -> int:
        try:
            return self._path.with_name(f"{self._path.name}-wal").stat().st_size
        except OSError:  # it exists only while the file is open
            return 0

    def pool_use(self) -> list[PoolUse]:
        return self._connections.pool_use()
