"""Check verbs of the SQLite store that write several tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.checks import CheckChange
from everbeat.store.check_rows import check_to_row, ping_rows, position_to_row, tick_rows, transition_rows
from everbeat.store.check_verbs import CheckVerbs
from everbeat.store.sqlite.audit_log import write_audit_log
from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.sqlite.connections import SqliteSession
from everbeat.store.tenant_rows import ScheduleQuota


class SqliteChecks(CheckVerbs, SqliteBase):
    async def check_write(
        self,
        change: CheckChange,
        *,
        max_schedules: int | None = None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> bool:
        row = check_to_row(change.check)

        def work(session: SqliteSession) -> bool:
            if change.expected is None:
                self._check_quota(session, change.check.tenant_id, max_schedules)
                written = session.change(self._blocks["check_insert"], row) == 1
            else:
                written = session.change(self._blocks["check_replace"], {**row, "expected": change.expected}) == 1
            if written:
                self._write_records(session, [change])
                write_audit_log(session, self._blocks, audit_log, self._moment(now))
            return written

        return await self._connections.write("check_write", work)

    def _check_quota(self, session: SqliteSession, tenant_id: UUID, max_schedules: int | None) -> None:
        if max_schedules is not None:
            values = {"tenant_id": tenant_id, "max_schedules": max_schedules}
            (row,) = session.rows(self._blocks["schedule_quota_count"], values)
            ScheduleQuota(row["count"], 1, max_schedules).check()

    async def check_advance(self, changes: Sequence[CheckChange], *, now: datetime | None = None) -> set[UUID]:
        rows = [
            {
                "id": change.check.id,
                "expected": change.expected,
                "version": change.check.version,
                **position_to_row(change.check.position),
            }
            for change in changes
        ]

        def work(session: SqliteSession) -> set[UUID]:
            written = {row["id"] for row in rows if session.change(self._blocks["check_advance"], row)}
            self._write_records(session, [change for change in changes if change.check.id in written])
            return written

        return await self._connections.write("check_advance", work)

    def _write_records(self, session: SqliteSession, changes: Sequence[CheckChange]) -> None:
        session.change_many(self._blocks["check_ping_insert"], ping_rows(changes))
        session.change_many(self._blocks["check_tick_insert"], tick_rows(changes))
        session.change_many(self._blocks["check_transition_insert"], transition_rows(changes))
