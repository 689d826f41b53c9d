"""Dead letter verbs of the SQLite store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.store.rows import (
    deduplicate,
    group_by_key,
)
from everbeat.store.shared import Rollback
from everbeat.store.sqlite.audit_log import write_audit_log
from everbeat.store.sqlite.connections import SqliteSession
from everbeat.store.sqlite.conversions import from_microseconds, to_microseconds
from everbeat.store.sqlite.tasks import SqliteTasks
from everbeat.store.task_changes import (
    submitted_changes,
)
from everbeat.store.values import (
    Replay,
    ReplayResult,
)


class SqliteDeadLetters(SqliteTasks):
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

        def work(session: SqliteSession) -> ReplayResult:
            at = self._moment(now)
            moment = to_microseconds(at)
            keyed = group_by_key([one.task for one in replays])
            if keyed.firsts and self._taken_keys(session, [one.task for one in replays], keyed, at):
                return ReplayResult([], [])
            rows = [(one.task_id.bytes, tenant_id.bytes, one.task.id.bytes, moment, again) for one in replays]
            recorded = {id_ for (id_,) in session.tuples_many(self._blocks["dead_replay"], rows)}
            done = [one for one in replays if one.task_id.bytes in recorded]
            if keyed.firsts and len(done) < len(replays):
                raise Rollback
            self._insert(session, [one.task for one in done], moment)
            if done:
                write_audit_log(session, self._blocks, audit_log, from_microseconds(moment))
            tasks = [one.task for one in done]
            return ReplayResult([one.task_id for one in done], submitted_changes(tasks, at))

        try:
            return await self._connections.write("dead_replay", work)
        except Rollback:
            return ReplayResult([], [])
