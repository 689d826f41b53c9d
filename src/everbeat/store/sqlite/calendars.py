"""Calendar verbs of the SQLite store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.calendars import Calendar
from everbeat.store.rows import (
    text_of,
)
from everbeat.store.sqlite.audit_log import write_audit_log
from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.sqlite.connections import SqliteSession


class SqliteCalendars(SqliteBase):
    async def calendar_write(
        self, tenant_id: UUID, calendar: Calendar, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> bool:
        values = {
            "tenant_id": tenant_id,
            "name": calendar.name,
            "revision": calendar.revision,
            "definition": text_of(calendar.to_definition()),
            "now": self._moment(now),
        }

        def work(session: SqliteSession) -> bool:
            is_new = not session.rows(self._blocks["calendar_exists"], values)
            session.change(self._blocks["calendar_write"], values)
            write_audit_log(session, self._blocks, audit_log, self._moment(now))
            return is_new

        return await self._connections.write("calendar_write", work)
