"""Dead letter verbs of the PostgreSQL store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.store.postgres.audit_log import write_audit_log
from everbeat.store.postgres.connections import Connection, fetch_on
from everbeat.store.postgres.tasks import PostgresTasks, key_columns, task_columns
from everbeat.store.rows import (
    deduplicate,
    group_by_key,
)
from everbeat.store.shared import Rollback
from everbeat.store.task_changes import (
    submitted_changes,
)
from everbeat.store.values import (
    Replay,
    ReplayResult,
)


class PostgresDeadLetters(PostgresTasks):
    async def dead_replay(
        self,
        tenant_id: UUID,
        replays: Sequence[Replay],
        *,
        again: bool,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> ReplayResult:
        replays = deduplicate(replays, lambda one: one.task_id)

        async def write() -> ReplayResult:
            async with self._transaction("dead_replay") as connection:
                done = await self._replay_on(connection, tenant_id, replays, again, now)
                if done.changes:
                    await write_audit_log(connection, self._queries, audit_log, now)
            return done

        try:
            return await self._retry(write)
        except Rollback:
            return ReplayResult([], [])

    async def _replay_on(
        self, connection: Connection, tenant_id: UUID, replays: Sequence[Replay], again: bool, now: datetime | None
    ) -> ReplayResult:
        keyed = group_by_key([one.task for one in replays])
        if keyed.firsts and await self._insert_keys(connection, [one.task for one in replays], keyed.firsts, now):
            raise Rollback
        rows = await fetch_on(
            connection,
            self._queries["dead_replay"],
            tenant_id=tenant_id,
            task_ids=[one.task_id for one in replays],
            replayed_as=[one.task.id for one in replays],
            again=again,
            now=now,
        )
        recorded: set[UUID] = {row["task_id"] for row in rows}
        if keyed.firsts and len(recorded) < len(replays):  # a key must not refer to a task that was not created
            raise Rollback
        done = [one for one in replays if one.task_id in recorded]
        if not done:
            return ReplayResult([], [])
        tasks = [one.task for one in done]
        values = {**task_columns(tasks), **key_columns(tasks, {}), "now": now}
        (row,) = await fetch_on(connection, self._queries["task_submit"], **values)
        return ReplayResult([one.task_id for one in done], submitted_changes(tasks, row["moment"]))
