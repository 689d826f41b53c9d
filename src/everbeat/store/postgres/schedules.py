"""Schedule verbs of the PostgreSQL store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import asyncpg

from everbeat.core.access import AuditLogEntry
from everbeat.core.changes import ScheduleWrite
from everbeat.core.errors import StoreUnavailable
from everbeat.core.schedules import Status
from everbeat.core.tasks import (
    TaskChangeKind,
)
from everbeat.store.postgres.audit_log import write_audit_log
from everbeat.store.postgres.base import PostgresBase
from everbeat.store.postgres.connections import Connection, execute_on, fetch_on, is_serialization_failure
from everbeat.store.rows import (
    SkipColumns,
    due_from_rows,
    schedule_from_row,
    schedule_to_row,
    text_of,
)
from everbeat.store.shared import Rollback
from everbeat.store.task_changes import (
    waiting_change,
)
from everbeat.store.tenant_rows import (
    ScheduleQuota,
)
from everbeat.store.values import (
    NOT_WRITTEN,
    DueScan,
    FoundSchedules,
    IdempotentResponse,
    ScheduleWriteResult,
)

_SLICE = 500
# While a batch waits for one schedule, those that it has written do not fire.
_BATCH_LOCK = "20ms"


class PostgresSchedules(PostgresBase):
    async def schedule_find(
        self,
        tenant_id: UUID,
        *,
        names: Sequence[str] = (),
        ids: Sequence[UUID] = (),
        key: str | None = None,
        now: datetime | None = None,
    ) -> FoundSchedules:
        async with self._connections.use(self._pool_name, "schedule_find") as connection:
            (moment,) = await fetch_on(connection, self._queries["clock"], now=now)
            rows = await fetch_on(
                connection, self._queries["schedule_find"], tenant_id=tenant_id, names=list(names), ids=list(ids)
            )
            responses = (
                await fetch_on(connection, self._queries["idempotent_response_find"], now=now, tenant_id=tenant_id, key=key)
                if key is not None
                else []
            )
        response = IdempotentResponse(**dict(responses[0])) if responses else None
        return FoundSchedules(moment["moment"], [schedule_from_row(row) for row in rows], response)

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
        wait = {"lock_timeout": _BATCH_LOCK} if len(writes) > 1 else {}

        async def write() -> ScheduleWriteResult:
            held: list[asyncpg.Record] = []
            try:
                async with self._transaction("schedule_write", **wait) as connection:
                    quota = await self._schedule_quota(connection, tenant_id, writes, max_schedules)
                    await self._write_rows(connection, writes)
                    quota.check()
                    if paused := [write.schedule.id for write in writes if write.schedule.status is Status.PAUSED]:
                        held = await fetch_on(connection, self._queries["task_hold"], tenant_id=tenant_id, ids=paused)
                    await self._write_past(connection, writes, now)
                    if response is not None and not await self._keep_response(connection, tenant_id, response, now):
                        raise Rollback
                    await write_audit_log(connection, self._queries, audit_log, now)
            except Rollback:
                return NOT_WRITTEN
            except StoreUnavailable as error:
                if not is_serialization_failure(error):
                    raise
                return NOT_WRITTEN
            return ScheduleWriteResult(True, [waiting_change(row, TaskChangeKind.HELD) for row in held])

        return await self._with_months([skip.first for write in writes for skip in write.skips], lambda: self._retry(write))

    async def _schedule_quota(
        self, connection: Connection, tenant_id: UUID, writes: Sequence[ScheduleWrite], max_schedules: int | None
    ) -> ScheduleQuota:
        """Lock the tenant and count its schedules, so that concurrent writes cannot exceed the quota together."""
        new = sum(write.expected is None for write in writes)
        if max_schedules is None or not new:
            return ScheduleQuota(0, 0, None)
        await fetch_on(connection, self._queries["tenant_lock"], tenant_id=tenant_id)
        (row,) = await fetch_on(
            connection, self._queries["schedule_quota_count"], tenant_id=tenant_id, max_schedules=max_schedules
        )
        return ScheduleQuota(row["count"], new, max_schedules)

    async def _write_rows(self, connection: Connection, writes: Sequence[ScheduleWrite]) -> None:
        new = [schedule_to_row(write.schedule) for write in writes if write.expected is None]
        if new and await execute_on(connection, self._queries["schedule_insert"], rows=text_of(new)) != len(new):
            raise Rollback
        old = [write for write in writes if write.expected is not None]
        if not old:
            return
        expected = [write.expected for write in old if write.expected is not None]
        try:
            changed = await execute_on(
                connection,
                self._queries["schedule_replace"],
                rows=text_of([schedule_to_row(write.schedule) for write in old]),
                ids=[schedule.id for schedule in expected],
                revisions=[schedule.revision for schedule in expected],
                next_ticks=[schedule.next_tick_at for schedule in expected],
                statuses=[schedule.status.value for schedule in expected],
            )
        except asyncpg.UniqueViolationError:  # a new name is taken
            raise Rollback from None
        if changed != len(old):
            raise Rollback

    async def _write_past(self, connection: Connection, writes: Sequence[ScheduleWrite], now: datetime | None) -> None:
        if skips := SkipColumns.of_writes(writes):
            await execute_on(connection, self._queries["tick_skip"], now=now, **skips.columns)
        past = [write.past_rule for write in writes if write.past_rule is not None]
        if past:
            await execute_on(
                connection,
                self._queries["schedule_past_rule_insert"],
                ids=[rule.schedule_id for rule in past],
                since=[rule.since for rule in past],
                until=[rule.until for rule in past],
                rules=[text_of(rule.rule) for rule in past],
            )

    async def schedule_due(
        self, partitions: Sequence[int], *, horizon_seconds: float, limit: int, now: datetime | None = None
    ) -> DueScan:
        rows = await self._read(
            "schedule_due", now=now, partitions=list(partitions), horizon_seconds=horizon_seconds, limit=limit
        )
        scan = DueScan(rows[0]["moment"], [], {})
        for start in range(0, len(rows), _SLICE):
            schedules, faults = due_from_rows(row for row in rows[start : start + _SLICE] if row["id"] is not None)
            scan.schedules.extend(schedules)
            scan.faults.update(faults)
            await asyncio.sleep(0)  # decoding many rows must not delay firing
        return scan

    async def schedule_fault(self, faults: Mapping[UUID, str], *, now: datetime | None = None) -> int:
        return await self._change("schedule_fault", now=now, ids=list(faults), faults=list(faults.values()))
