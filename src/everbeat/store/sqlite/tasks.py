"""Task verbs of the SQLite store: submit, promote, release held tasks, cancel, reschedule."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.errors import HandoffPaused
from everbeat.core.tasks import (
    NewTask,
    TaskChange,
    TaskChangeKind,
)
from everbeat.store.rows import (
    CANCEL_REASONS,
    KeyedTasks,
    group_in_steps,
    mismatched_keys,
    submit_result,
    text_of,
)
from everbeat.store.sqlite.audit_log import write_audit_log
from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.sqlite.connections import SqliteSession
from everbeat.store.sqlite.conversions import hex_text, to_microseconds
from everbeat.store.sqlite.submits import MIN_ROWS, Insert, inserts_of, prepare_inserts, run_inserts, run_time
from everbeat.store.task_changes import (
    cancel_requested_change,
    cancelled_change,
    submitted_in_steps,
    waiting_change,
)
from everbeat.store.values import (
    CancelResult,
    HeldReleaseResult,
    PromoteResult,
    SubmitResult,
)

Values = tuple[Any, ...]


class _Submitted(NamedTuple):
    """What a submit has written, and for each taken key the earlier task, by the index of the new one."""

    moment: datetime
    written: Sequence[NewTask]
    taken: dict[int, tuple[UUID, bytes]]
    mismatched: set[int]


class SqliteTasks(SqliteBase):
    async def task_submit(
        self,
        tasks: Sequence[NewTask],
        *,
        requires_new_keys: bool = False,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> SubmitResult:
        keyed = await group_in_steps(tasks)
        has_leases = any(task.lease_owner is not None for task in tasks)
        is_large = len(tasks) >= MIN_ROWS and not has_leases
        prepared = await prepare_inserts(tasks) if is_large else None

        def work(session: SqliteSession) -> _Submitted:
            moment = self._moment(now)
            taken = self._taken_keys(session, tasks, keyed, moment) if keyed.firsts else {}
            mismatched = mismatched_keys(tasks, keyed, taken)
            new: Sequence[NewTask] = []
            if not mismatched and not (requires_new_keys and (taken or keyed.repeats)):
                has_repeated = bool(taken or keyed.repeats)
                new = tasks
                if has_repeated:
                    new = [task for index, task in enumerate(tasks) if index not in taken and index not in keyed.repeats]
                self._check_handoffs(session, new, moment)
                inserts = inserts_of(new) if is_large and has_repeated else prepared
                self._insert(session, new, to_microseconds(moment), inserts)
                if new:
                    write_audit_log(session, self._blocks, audit_log, moment)
            return _Submitted(moment, new, taken, mismatched)

        moment, new, taken, mismatched = await self._connections.write("task_submit", work)
        return submit_result(tasks, await submitted_in_steps(new, moment), keyed, moment, taken, mismatched)

    def _taken_keys(
        self, session: SqliteSession, tasks: Sequence[NewTask], keyed: KeyedTasks, moment: datetime
    ) -> dict[int, tuple[UUID, bytes]]:
        """For each taken key, the earlier task and its fingerprint, by the index of the new task."""
        wanted = text_of([[tenant_id.hex, key] for tenant_id, key in keyed.firsts])
        rows = session.rows(self._blocks["task_key_find"], {"keys": wanted, "now": moment})
        return {keyed.firsts[row["tenant_id"], row["key"]]: (row["task_id"], row["fingerprint"]) for row in rows}

    def _check_handoffs(self, session: SqliteSession, tasks: Sequence[NewTask], moment: datetime) -> None:
        for tenant_id, queue in {(task.tenant_id, task.queue) for task in tasks if task.lease_owner is not None}:
            values = {"tenant_id": tenant_id, "queue": queue, "now": moment}
            ((is_paused,),) = session.tuples(self._blocks["task_submit_paused"], values)
            if is_paused:
                raise HandoffPaused(f"the queue {queue} is paused")

    def _insert(
        self, session: SqliteSession, tasks: Sequence[NewTask], now: int, prepared: Sequence[Insert] | None = None
    ) -> None:
        """Insert tasks and their keys: by prepared statements, or else one by one."""
        keys = [
            [task.tenant_id.hex, task.key.key, task.id.hex, task.key.fingerprint.hex()]
            for task in tasks
            if task.key is not None
        ]
        if keys:
            session.change(self._blocks["task_key_insert"], {"keys": text_of(keys), "now": now})
        if prepared is None:
            session.change_many(self._blocks["task_submit"], [_new_row(task, now) for task in tasks])
        else:
            run_inserts(session, self._blocks, prepared, now)

    async def task_promote(self, *, limit: int, now: datetime | None = None) -> PromoteResult:
        def work(session: SqliteSession) -> PromoteResult:
            moment = self._moment(now)
            rows = session.rows(self._blocks["task_promote"], {"limit": limit, "now": moment})
            changes = [waiting_change(row, TaskChangeKind.PROMOTED) for row in rows]
            (following,) = session.rows(self._blocks["task_promote_next"], {"now": moment})
            queues = frozenset(change.queue for change in changes)
            return PromoteResult(moment, queues, len(changes), following["next_at"], changes)

        return await self._connections.write("task_promote", work)

    async def task_release_held(
        self, schedule_ids: Sequence[UUID] | None, *, limit: int, now: datetime | None = None
    ) -> HeldReleaseResult:
        def work(session: SqliteSession) -> HeldReleaseResult:
            if schedule_ids is None:
                held = session.rows(self._blocks["task_release_held_any"], {"limit": limit})
            else:
                held = session.rows(
                    self._blocks["task_release_held_candidates"], {"ids": hex_text(schedule_ids), "limit": limit}
                )
            wanted = hex_text([row["schedule_id"] for row in held if row["is_there"]])
            schedules = session.rows(self._blocks["task_release_held_schedules"], {"ids": wanted})
            moment = self._moment(now)
            changes = self._replace_previous(
                session, [row["id"] for row in schedules if row["overlap"] == "cancel_previous"], moment
            )
            concurrencies = {row["id"]: row["concurrency"] for row in schedules}
            concurrencies |= {row["schedule_id"]: 1 for row in held if not row["is_there"]}
            values = [(id_.bytes, concurrency, to_microseconds(moment)) for id_, concurrency in concurrencies.items()]
            rows = session.rows_many(self._blocks["task_release_held"], values)
            changes += [waiting_change(row, TaskChangeKind.RELEASED_FROM_HOLD) for row in rows]
            return HeldReleaseResult(frozenset(row["queue"] for row in rows), changes)

        return await self._connections.write("task_release_held", work)

    def _replace_previous(self, session: SqliteSession, schedule_ids: Sequence[UUID], moment: datetime) -> list[TaskChange]:
        rows = session.rows(self._blocks["task_release_held_replaced"], {"ids": hex_text(schedule_ids)}) if schedule_ids else []
        changes: list[TaskChange] = []
        for tenant_id in {row["tenant_id"] for row in rows}:
            ids = [row["id"] for row in rows if row["tenant_id"] == tenant_id]
            changes += self._cancel(session, tenant_id, ids, TaskChangeKind.REPLACED, moment).changes
        return changes

    async def task_cancel(
        self, tenant_id: UUID, ids: Sequence[UUID], *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> CancelResult:
        def work(session: SqliteSession) -> CancelResult:
            moment = self._moment(now)
            cancelled = self._cancel(session, tenant_id, ids, TaskChangeKind.CANCELLED, moment)
            if cancelled.ended or cancelled.requested:
                write_audit_log(session, self._blocks, audit_log, moment)
            return cancelled

        return await self._connections.write("task_cancel", work)

    def _cancel(
        self, session: SqliteSession, tenant_id: UUID, ids: Sequence[UUID], kind: TaskChangeKind, moment: datetime
    ) -> CancelResult:
        values = {"tenant_id": tenant_id, "ids": hex_text(ids)}
        known = {row["id"] for row in session.rows(self._blocks["task_cancel_lock"], values) if row["cancel_requested"]}
        session.change(self._blocks["task_cancel_insert"], {**values, "reason": CANCEL_REASONS[kind], "now": moment})
        ended = session.rows(self._blocks["task_cancel"], values)
        requested = session.rows(self._blocks["task_cancel_running"], values)
        schedule_ids = frozenset(row["schedule_id"] for row in ended if row["schedule_id"] is not None)
        changes = [cancelled_change(row, kind) for row in ended]
        changes += [cancel_requested_change(row) for row in requested if row["id"] not in known]
        return CancelResult(
            frozenset(row["id"] for row in ended), frozenset(row["id"] for row in requested), schedule_ids, changes
        )

    async def task_reschedule(
        self,
        tenant_id: UUID,
        id_: UUID,
        run_at: datetime,
        *,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> list[TaskChange]:
        def work(session: SqliteSession) -> list[TaskChange]:
            moment = self._moment(now)
            values = {"tenant_id": tenant_id, "id": id_, "run_at": run_at, "now": moment}
            rows = session.rows(self._blocks["task_reschedule"], values)
            if rows:
                write_audit_log(session, self._blocks, audit_log, moment)
            return [waiting_change(row, TaskChangeKind.RESCHEDULED) for row in rows]

        return await self._connections.write("task_reschedule", work)


def _new_row(task: NewTask, now: int) -> Values:
    """The parameters of task_submit for a new task, by position. Binding by name would cost more than the insert."""
    run_at = run_time(task, now)
    return (
        task.id.bytes,
        task.tenant_id.bytes,
        task.partition,
        task.queue,
        task.type,
        task.target,
        task.payload.decode(),
        task.payload_ref,
        task.origin.value,
        None if task.schedule_id is None else task.schedule_id.bytes,
        None if task.scheduled_for is None else to_microseconds(task.scheduled_for),
        task.priority,
        task.max_attempts,
        task.retry,
        task.timeout_seconds,
        task.labels,
        task.fair_key,
        task.hooks,
        task.schedule_name,
        run_at,
        "running" if task.lease_owner is not None else "scheduled" if run_at > now else "ready",
        task.traceparent,
        now,
        task.lease_owner,
        task.lease_seconds,
        None if task.lease_owner is None else now,
        task.total_seconds,
    )
