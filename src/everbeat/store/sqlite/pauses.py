"""Pause verbs of the SQLite store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.pauses import Pause
from everbeat.store.rows import pause_from_row, pause_to_row
from everbeat.store.sqlite.audit_log import write_audit_log
from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.sqlite.connections import SqliteSession


class SqlitePauses(SqliteBase):
    async def pause_write(self, pause: Pause, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None) -> Pause:
        def work(session: SqliteSession) -> Pause:
            moment = self._moment(now)
            session.change(self._blocks["pause_expire"], {"now": moment})
            (row,) = session.rows(self._blocks["pause_write"], {**pause_to_row(pause), "now": moment})
            write_audit_log(session, self._blocks, audit_log, moment)
            return pause_from_row(row)

        return await self._connections.write("pause_write", work)

    async def pause_end(
        self,
        tenant_id: UUID | None,
        queue: str | None,
        ended_by: str,
        *,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> list[Pause]:
        def work(session: SqliteSession) -> list[Pause]:
            moment = self._moment(now)
            session.change(self._blocks["pause_expire"], {"now": moment})
            values = {"tenant_id": tenant_id, "queue": queue, "ended_by": ended_by, "now": moment}
            rows = session.rows(self._blocks["pause_end"], values)
            if rows:
                write_audit_log(session, self._blocks, audit_log, moment)
            return [pause_from_row(row) for row in rows]

        return await self._connections.write("pause_end", work)
