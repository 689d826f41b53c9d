"""Schedule verbs of the SQLite store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.changes import ScheduleWrite
from everbeat.core.errors import StoreRefused
from everbeat.core.schedules import Status
from everbeat.core.tasks import (
    TaskChange,
    TaskChangeKind,
)
from everbeat.store.rows import (
    due_from_rows,
    schedule_from_row,
    schedule_to_row,
    text_of,
)
from everbeat.store.shared import Rollback
from everbeat.store.sqlite.audit_log import write_audit_log
from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.sqlite.connections import Row, SqliteSession
from everbeat.store.sqlite.conversions import hex_text
from everbeat.store.sqlite.ticks import write_skips
from everbeat.store.task_changes import (
    waiting_change,
)
from everbeat.store.tenant_rows import ScheduleQuota
from everbeat.store.values import (
    NOT_WRITTEN,
    DueScan,
    FoundSchedules,
    IdempotentResponse,
    ScheduleWriteResult,
)

_NAME_TAKEN = "UNIQUE constraint failed: schedules.tenant_id, schedules.name"


class SqliteSchedules(SqliteBase):
    async def schedule_find(
        self,
        tenant_id: UUID,
        *,
        names: Sequence[str] = (),
        ids: Sequence[UUID] = (),
        key: str | None = None,
        now: datetime | None = None,
    ) -> FoundSchedules:
        moment = self._moment(now)

        def work(session: SqliteSession) -> tuple[list[Row], list[Row]]:
            wanted = {"tenant_id": tenant_id, "names": text_of(list(names)), "ids": hex_text(ids)}
            found = session.rows(self._blocks["schedule_find"], wanted)
            if key is None:
                return found, []
            return found, session.rows(
                self._blocks["idempotent_response_find"], {"tenant_id": tenant_id, "key": key, "now": moment}
            )

        rows, responses = await self._connections.read("schedule_find", work)
        response = IdempotentResponse(**responses[0]) if responses else None
        return FoundSchedules(moment, [schedule_from_row(row) for row in rows], response)

    async def schedule_write(
        self,
        tenant_id: UUID,
        writes: Sequence[ScheduleWrite],
        *,
        response: IdempotentResponse | None = None,
        max_schedules: int | None = None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> ScheduleWriteResult:
        def work(session: SqliteSession) -> list[TaskChange]:
            held: list[Row] = []
            moment = self._moment(now)
            quota = self._schedule_quota(session, tenant_id, writes, max_schedules)
            self._write_rows(session, writes)
            quota.check()
            if paused := [write.schedule.id for write in writes if write.schedule.status is Status.PAUSED]:
                held = session.rows(self._blocks["task_hold"], {"tenant_id": tenant_id, "ids": hex_text(paused)})
            self._write_past(session, writes, moment)
            if response is not None and not self._keep_response(session, tenant_id, response, moment):
                raise Rollback
            write_audit_log(session, self._blocks, audit_log, moment)
            return [waiting_change(row, TaskChangeKind.HELD) for row in held]

        try:
            changes = await self._connections.write("schedule_write", work)
        except Rollback:
            return NOT_WRITTEN
        except StoreRefused as error:
            if _NAME_TAKEN not in str(error):
                raise
            return NOT_WRITTEN
        return ScheduleWriteResult(True, changes)

    def _schedule_quota(
        self, session: SqliteSession, tenant_id: UUID, writes: Sequence[ScheduleWrite], max_schedules: int | None
    ) -> ScheduleQuota:
        new = sum(write.expected is None for write in writes)
        if max_schedules is None or not new:
            return ScheduleQuota(0, 0, None)
        (row,) = session.rows(self._blocks["schedule_quota_count"], {"tenant_id": tenant_id, "max_schedules": max_schedules})
        return ScheduleQuota(row["count"], new, max_schedules)

    def _write_rows(self, session: SqliteSession, writes: Sequence[ScheduleWrite]) -> None:
        new = [schedule_to_row(write.schedule) for write in writes if write.expected is None]
        if session.change_many(self._blocks["schedule_insert"], new) != len(new):
            raise Rollback
        old = [
            {
                **schedule_to_row(write.schedule),
                "expected_revision": write.expected.revision,
                "expected_status": write.expected.status.value,
                "expected_next_tick_at": write.expected.next_tick_at,
            }
            for write in writes
            if write.expected is not None
        ]
        if session.change_many(self._blocks["schedule_replace"], old) != len(old):
            raise Rollback

    def _write_past(self, session: SqliteSession, writes: Sequence[ScheduleWrite], moment: datetime) -> None:
        for write in writes:
            write_skips(session, self._blocks, write.schedule.id, write.skips, moment, None, None)
        past = [
            {
                "schedule_id": write.past_rule.schedule_id,
                "since": write.past_rule.since,
                "until": write.past_rule.until,
                "rule": text_of(write.past_rule.rule),
            }
            for write in writes
            if write.past_rule is not None
        ]
        session.change_many(self._blocks["schedule_past_rule_insert"], past)

    async def schedule_due(
        self, partitions: Sequence[int], *, horizon_seconds: float, limit: int, now: datetime | None = None
    ) -> DueScan:
        moment = self._moment(now)

        def work(session: SqliteSession) -> DueScan:
            scan = DueScan(moment, [], {})
            values = {"now": moment, "horizon_seconds": horizon_seconds, "limit": limit}
            for partition in partitions:
                rows = session.rows(self._blocks["schedule_due"], {**values, "partition": partition})
                schedules, faults = due_from_rows(rows)
                scan.schedules.extend(schedules)
                scan.faults.update(faults)
            return scan

        return await self._connections.read("schedule_due", work)

    async def schedule_fault(self, faults: Mapping[UUID, str], *, now: datetime | None = None) -> int:
        values = [{"id": id_, "fault": fault, "now": self._moment(now)} for id_, fault in faults.items()]
        return await self._connections.write(
            "schedule_fault", lambda session: session.change_many(self._blocks["schedule_fault"], values)
        )
