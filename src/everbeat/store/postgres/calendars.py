"""Calendar verbs of the PostgreSQL store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.calendars import Calendar
from everbeat.store.postgres.audit_log import write_audit_log
from everbeat.store.postgres.base import PostgresBase
from everbeat.store.postgres.connections import fetch_on
from everbeat.store.rows import (
    text_of,
)


class PostgresCalendars(PostgresBase):
    async def calendar_write(
        self, tenant_id: UUID, calendar: Calendar, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> bool:
        values = {
            "now": now,
            "tenant_id": tenant_id,
            "name": calendar.name,
            "revision": calendar.revision,
            "definition": text_of(calendar.to_definition()),
        }

        async def write() -> bool:
            async with self._transaction("calendar_write") as connection:
                (row,) = await fetch_on(connection, self._queries["calendar_write"], **values)
                await write_audit_log(connection, self._queries, audit_log, now)
            return bool(row["is_new"])

        return await self._retry(write)
