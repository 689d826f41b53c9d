"""Pause verbs of the PostgreSQL store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.pauses import Pause
from everbeat.store.postgres.audit_log import write_audit_log
from everbeat.store.postgres.base import PostgresBase
from everbeat.store.postgres.connections import execute_on, fetch_on
from everbeat.store.rows import pause_from_row, pause_to_row


class PostgresPauses(PostgresBase):
    async def pause_write(self, pause: Pause, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None) -> Pause:
        async with self._transaction("pause_write") as connection:
            await execute_on(connection, self._queries["pause_expire"], now=now)
            (row,) = await fetch_on(connection, self._queries["pause_write"], **pause_to_row(pause), now=now)
            await write_audit_log(connection, self._queries, audit_log, now)
        return pause_from_row(row)

    async def pause_end(
        self,
        tenant_id: UUID | None,
        queue: str | None,
        ended_by: str,
        *,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> list[Pause]:
        values = {"tenant_id": tenant_id, "queue": queue, "ended_by": ended_by, "now": now}
        async with self._transaction("pause_end") as connection:
            await execute_on(connection, self._queries["pause_expire"], now=now)
            rows = await fetch_on(connection, self._queries["pause_end"], **values)
            if rows:
                await write_audit_log(connection, self._queries, audit_log, now)
        return [pause_from_row(row) for row in rows]
