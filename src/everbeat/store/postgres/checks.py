"""Check verbs of the PostgreSQL store that write several tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.checks import CheckChange
from everbeat.store.check_rows import check_to_row, columns, ping_rows, position_to_row, tick_rows, transition_rows
from everbeat.store.check_verbs import CheckVerbs
from everbeat.store.postgres.audit_log import write_audit_log
from everbeat.store.postgres.base import PostgresBase
from everbeat.store.postgres.connections import Connection, execute_on, fetch_on
from everbeat.store.tenant_rows import ScheduleQuota


class PostgresChecks(CheckVerbs, PostgresBase):
    async def check_write(
        self,
        change: CheckChange,
        *,
        max_schedules: int | None = None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> bool:
        row = check_to_row(change.check)

        async def write() -> bool:
            async with self._transaction("check_write") as connection:
                if change.expected is None:
                    await self._check_quota(connection, change.check.tenant_id, max_schedules)
                    written = await execute_on(connection, self._queries["check_insert"], **row) == 1
                else:
                    values = {**row, "expected": change.expected}
                    written = await execute_on(connection, self._queries["check_replace"], **values) == 1
                if written:
                    await self._write_records(connection, [change])
                    await write_audit_log(connection, self._queries, audit_log, now)
                return written

        return await self._retry(write)

    async def _check_quota(self, connection: Connection, tenant_id: UUID, max_schedules: int | None) -> None:
        """Lock the tenant and count, so that concurrent writes cannot exceed the quota together."""
        if max_schedules is not None:
            await fetch_on(connection, self._queries["tenant_lock"], tenant_id=tenant_id)
            values = {"tenant_id": tenant_id, "max_schedules": max_schedules}
            (row,) = await fetch_on(connection, self._queries["schedule_quota_count"], **values)
            ScheduleQuota(row["count"], 1, max_schedules).check()

    async def check_advance(self, changes: Sequence[CheckChange], *, now: datetime | None = None) -> set[UUID]:
        # In the order of the ids, so that concurrent batches lock the rows in the same order.
        ordered = sorted(changes, key=lambda change: change.check.id)
        rows = [
            {
                "id": change.check.id,
                "expected": change.expected,
                "version": change.check.version,
                **position_to_row(change.check.position),
            }
            for change in ordered
        ]
        if not rows:
            return set()

        async def write() -> set[UUID]:
            async with self._transaction("check_advance") as connection:
                found = await fetch_on(connection, self._queries["check_advance"], **columns(rows))
                written = {row["id"] for row in found}
                await self._write_records(connection, [change for change in ordered if change.check.id in written])
            return written

        return await self._retry(write)

    async def _write_records(self, connection: Connection, changes: Sequence[CheckChange]) -> None:
        for block, rows in (
            ("check_ping_insert", ping_rows(changes)),
            ("check_tick_insert", tick_rows(changes)),
            ("check_transition_insert", transition_rows(changes)),
        ):
            if rows:
                await execute_on(connection, self._queries[block], **columns(rows))
