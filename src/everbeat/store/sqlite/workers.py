"""Worker verbs of the SQLite store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from everbeat.core.workers import WorkerSighting
from everbeat.store.rows import text_of
from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.sqlite.connections import SqliteSession


class SqliteWorkers(SqliteBase):
    async def worker_write(self, node: str, sightings: Sequence[WorkerSighting], *, now: datetime | None = None) -> int:
        def work(session: SqliteSession) -> int:
            moment = self._moment(now)
            changed = 0
            for one in sightings:
                values = {
                    **one._asdict(),
                    "id": one.id,
                    "node": node,
                    "state": one.state.value,
                    "queues": text_of(one.queues),
                    "types": None if one.types is None else text_of(one.types),
                    "seen_at": moment - timedelta(seconds=one.age_seconds),
                }
                block = "worker_write_seen" if one.queues is None else "worker_write"
                changed += session.change(self._blocks[block], values)
            return changed

        return await self._connections.write("worker_write", work)
