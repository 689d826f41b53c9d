"""The verbs on dead letters of the PostgreSQL store: each runs the block of its name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.tasks import DeadLetter
from everbeat.store.postgres.audit_log import write_audit_log
from everbeat.store.postgres.connections import Connection, fetch_on
from everbeat.store.postgres.tasks import PostgresTasks, Rollback, key_columns, task_columns
from everbeat.store.rows import (
    EARLIEST,
    LAST_ID,
    LATEST,
    dead_letter_from_row,
    deduplicate,
    group_by_key,
)
from everbeat.store.values import (
    DeadFilter,
    Replay,
)


class PostgresDeadLetters(PostgresTasks):
    async def dead_find(self, tenant_id: UUID, task_ids: Sequence[UUID]) -> list[DeadLetter]:
        rows = await self._fetch("dead_find", tenant_id=tenant_id, task_ids=list(task_ids))
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
        rows = await self._fetch(
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
        try:
            async with self._transaction("dead_replay") as connection:
                done = await self._replay_on(connection, tenant_id, replays, again, now)
                if done:
                    await write_audit_log(connection, self._queries, audit_log, now)
        except Rollback:
            return []
        return [one.task_id for one in replays if one.task_id in done]

    async def _replay_on(
        self, connection: Connection, tenant_id: UUID, replays: Sequence[Replay], again: bool, now: datetime | None
    ) -> set[UUID]:
        keyed = group_by_key([one.task for one in replays])
        if keyed.firsts and await self._take_keys(connection, [one.task for one in replays], keyed.firsts, now):
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
        done: set[UUID] = {row["task_id"] for row in rows}
        if keyed.firsts and len(done) < len(replays):  # a key must not stand for a task that was not made
            raise Rollback
        tasks = [one.task for one in replays if one.task_id in done]
        if tasks:
            await fetch_on(connection, self._queries["task_submit"], now=now, **task_columns(tasks), **key_columns(tasks, {}))
        return done

    async def dead_purge(
        self,
        tenant_id: UUID,
        filter_: DeadFilter,
        *,
        limit: int,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> int:
        values = {**_dead_filter(filter_), "tenant_id": tenant_id, "limit": limit, "now": now}
        return await self._change_with_audit_log("dead_purge", audit_log, now, **values)


def _dead_filter(filter_: DeadFilter) -> dict[str, Any]:
    task_ids = None if filter_.task_ids is None else list(filter_.task_ids)
    from_at, to_at = filter_.from_at or EARLIEST, filter_.to_at or LATEST
    return {**filter_._asdict(), "from_at": from_at, "to_at": to_at, "task_ids": task_ids}
