"""The verbs on dead letters of the SQLite store: each runs the block of its name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.tasks import (
    DeadLetter,
)
from everbeat.store.rows import (
    EARLIEST,
    LAST_ID,
    LATEST,
    dead_letter_from_row,
    deduplicate,
    group_by_key,
)
from everbeat.store.sqlite.audit_log import write_audit_log
from everbeat.store.sqlite.connections import SqliteSession, from_microseconds, hex_text, to_microseconds
from everbeat.store.sqlite.tasks import Rollback, SqliteTasks
from everbeat.store.values import (
    DeadFilter,
    Replay,
)


class SqliteDeadLetters(SqliteTasks):
    async def dead_find(self, tenant_id: UUID, task_ids: Sequence[UUID]) -> list[DeadLetter]:
        rows = await self._read("dead_find", tenant_id=tenant_id, task_ids=hex_text(task_ids))
        return [dead_letter_from_row(row) for row in rows]

    async def dead_list(
        self,
        tenant_id: UUID,
        filter_: DeadFilter,
        *,
        before: tuple[datetime, UUID] | None,
        limit: int,
        only_never_replayed: bool = False,
    ) -> list[DeadLetter]:
        before_at, before_id = before or (LATEST, LAST_ID)
        rows = await self._read(
            "dead_list",
            **_dead_filter(filter_),
            tenant_id=tenant_id,
            before_at=before_at,
            before_id=before_id,
            limit=limit,
            only_never_replayed=only_never_replayed,
        )
        return [dead_letter_from_row(row) for row in rows]

    async def dead_replay(
        self,
        tenant_id: UUID,
        replays: Sequence[Replay],
        *,
        again: bool,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> list[UUID]:
        replays = deduplicate(replays, lambda one: one.task_id)

        def work(session: SqliteSession) -> list[UUID]:
            at = self._moment(now)
            moment = to_microseconds(at)
            keyed = group_by_key([one.task for one in replays])
            if keyed.firsts and self._taken_keys(session, [one.task for one in replays], keyed, at):
                return []
            notes = [(one.task_id.bytes, tenant_id.bytes, one.task.id.bytes, moment, again) for one in replays]
            noted = {id_ for (id_,) in session.tuples_many(self._sql["dead_replay"], notes)}
            done = [one for one in replays if one.task_id.bytes in noted]
            if keyed.firsts and len(done) < len(replays):
                raise Rollback
            self._insert(session, [one.task for one in done], moment)
            if done:
                write_audit_log(session, self._sql, audit_log, from_microseconds(moment))
            return [one.task_id for one in done]

        try:
            return await self._connections.write("dead_replay", work)
        except Rollback:
            return []

    async def dead_purge(
        self,
        tenant_id: UUID,
        filter_: DeadFilter,
        *,
        limit: int,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> int:
        values = {**_dead_filter(filter_), "tenant_id": tenant_id, "limit": limit, "now": self._moment(now)}
        return await self._change_with_audit_log("dead_purge", audit_log, now, **values)


def _dead_filter(filter_: DeadFilter) -> dict[str, Any]:
    task_ids = None if filter_.task_ids is None else hex_text(filter_.task_ids)
    from_at, to_at = filter_.from_at or EARLIEST, filter_.to_at or LATEST
    return {**filter_._asdict(), "from_at": from_at, "to_at": to_at, "task_ids": task_ids}
