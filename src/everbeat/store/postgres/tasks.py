"""Task verbs of the PostgreSQL store: submit, promote, release held tasks, cancel, reschedule."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any
from uuid import UUID

import asyncpg

from everbeat.core.access import AuditLogEntry
from everbeat.core.errors import KeyTaken
from everbeat.core.tasks import (
    NewTask,
    TaskChange,
    TaskChangeKind,
)
from everbeat.store.postgres.audit_log import write_audit_log
from everbeat.store.postgres.base import PostgresBase
from everbeat.store.postgres.connections import Connection, fetch_on, retry_on_serialization_failure
from everbeat.store.rows import (
    CANCEL_REASONS,
    KeyedTasks,
    group_in_steps,
    mismatched_keys,
    schedule_ids_of,
    submit_result,
)
from everbeat.store.shared import Rollback
from everbeat.store.task_changes import (
    SLICE,
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


class PostgresTasks(PostgresBase):
    async def task_submit(
        self,
        tasks: Sequence[NewTask],
        *,
        requires_new_keys: bool = False,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> SubmitResult:
        keyed = await group_in_steps(tasks)
        if not tasks:
            return submit_result(tasks, [], keyed, await self.clock(now=now), {}, set())
        if not keyed.repeats and not audit_log:
            with contextlib.suppress(KeyTaken):
                # Not repeated while a key is locked: other requests may share this write.
                moment = await retry_on_serialization_failure(lambda: self._submit_new(tasks, keyed, now))
                return submit_result(tasks, await submitted_in_steps(tasks, moment), keyed, moment, {}, set())
        return await self._submit_some(tasks, keyed, requires_new_keys, audit_log, now)

    async def _submit_new(self, tasks: Sequence[NewTask], keyed: KeyedTasks, now: datetime | None) -> datetime:
        """Submit tasks whose keys are all new. Raises KeyTaken otherwise."""
        if len(tasks) <= SLICE:
            values = {**task_columns(tasks), **key_columns(tasks, keyed.firsts)}
            (row,) = await self._connections.fetch_once(self._pool_name, self._queries["task_submit"], now=now, **values)
            moment: datetime = row["moment"]
            return moment
        async with self._transaction("task_submit") as connection:
            return await self._insert_slices(connection, tasks, tasks, keyed.firsts, now)

    async def _insert_slices(
        self,
        connection: Connection,
        tasks: Sequence[NewTask],
        keyed_tasks: Sequence[NewTask],
        firsts: Mapping[tuple[UUID, str], int],
        now: datetime | None,
    ) -> datetime:
        """Insert tasks, and the keys of `keyed_tasks`, by several statements.

        To encode the values of one statement for a large batch would block the event loop.
        """
        parts = _key_parts(firsts)
        for number, start in enumerate(range(0, len(tasks), SLICE)):
            part = tasks[start : start + SLICE]
            keys = key_columns(keyed_tasks, parts[number] if number < len(parts) else {})
            (row,) = await fetch_on(connection, self._queries["task_submit"], **task_columns(part), **keys, now=now)
        moment: datetime = row["moment"]
        return moment

    async def _submit_some(
        self,
        tasks: Sequence[NewTask],
        keyed: KeyedTasks,
        requires_new_keys: bool,
        audit_log: Sequence[AuditLogEntry],
        now: datetime | None,
    ) -> SubmitResult:
        """Submit tasks whose keys may be taken: find the taken keys, and write the new tasks unless a fingerprint differs."""
        mismatched = set(keyed.mismatched)
        taken: dict[int, tuple[UUID, bytes]] = {}
        written: list[NewTask] = []
        moment = await self.clock(now=now)
        try:
            async with self._transaction("task_submit") as connection:
                taken = await self._insert_keys(connection, tasks, keyed.firsts, now)
                mismatched = mismatched_keys(tasks, keyed, taken)
                if mismatched or (requires_new_keys and (taken or keyed.repeats)):
                    raise Rollback
                new = sorted([*keyed.unkeyed, *(index for index in keyed.firsts.values() if index not in taken)])
                if new:
                    new_tasks = [tasks[index] for index in new]
                    moment = await self._insert_slices(connection, new_tasks, tasks, {}, now)
                    await write_audit_log(connection, self._queries, audit_log, now)
                    written = new_tasks
        except Rollback:
            pass
        return submit_result(tasks, await submitted_in_steps(written, moment), keyed, moment, taken, mismatched)

    async def _insert_keys(
        self, connection: Connection, tasks: Sequence[NewTask], firsts: Mapping[tuple[UUID, str], int], now: datetime | None
    ) -> dict[int, tuple[UUID, bytes]]:
        """Insert the free keys. For each taken key, returns the earlier task and fingerprint, by the index of the new task."""
        inserted: set[UUID] = set()
        for part in _key_parts(firsts):
            rows = await fetch_on(connection, self._queries["task_key_insert"], now=now, **key_columns(tasks, part))
            inserted |= {row["task_id"] for row in rows}
        taken = {pair: index for pair, index in firsts.items() if tasks[index].id not in inserted}
        if not taken:
            return {}
        found: dict[int, tuple[UUID, bytes]] = {}
        pairs = list(taken)
        for start in range(0, len(pairs), SLICE):
            keys = pairs[start : start + SLICE]
            values = {"tenant_ids": [tenant_id for tenant_id, _ in keys], "keys": [key for _, key in keys]}
            rows = await fetch_on(connection, self._queries["task_key_find"], **values)
            found |= {taken[row["tenant_id"], row["key"]]: (row["task_id"], row["fingerprint"]) for row in rows}
        return found

    async def task_promote(self, *, limit: int, now: datetime | None = None) -> PromoteResult:
        rows = await self._read("task_promote", limit=limit, now=now)
        changes = [waiting_change(row, TaskChangeKind.PROMOTED) for row in rows if row["id"] is not None]
        queues = frozenset(change.queue for change in changes)
        return PromoteResult(rows[0]["moment"], queues, len(changes), rows[0]["next_at"], changes, rows[0]["has_more"])

    async def task_release_held(
        self, schedule_ids: Sequence[UUID] | None, *, limit: int, now: datetime | None = None
    ) -> HeldReleaseResult:
        if schedule_ids is None:
            held = await self._read("task_release_held_any", limit=limit)
        else:
            held = await self._read("task_release_held_candidates", ids=list(schedule_ids), limit=limit)
        if not held:
            return HeldReleaseResult(frozenset(), [])

        async def write() -> HeldReleaseResult:
            async with self._transaction("task_release_held") as connection:
                wanted = [row["schedule_id"] for row in held if row["is_there"]]
                schedules = await fetch_on(connection, self._queries["task_release_held_schedules"], ids=wanted)
                locked_ids = frozenset[UUID]()
                if len(schedules) < len(wanted):
                    found = await fetch_on(connection, self._queries["task_release_held_locked"], ids=wanted)
                    locked_ids = frozenset(row["id"] for row in found) - {row["id"] for row in schedules}
                replacing = [row["id"] for row in schedules if row["overlap"] == "cancel_previous"]
                changes = await self._replace_previous(connection, replacing, now) if replacing else []
                concurrencies = {row["id"]: row["concurrency"] for row in schedules}
                concurrencies |= {row["schedule_id"]: 1 for row in held if not row["is_there"]}
                values = {"ids": list(concurrencies), "concurrencies": list(concurrencies.values()), "now": now}
                rows = await fetch_on(connection, self._queries["task_release_held"], **values)
                changes += [waiting_change(row, TaskChangeKind.RELEASED_FROM_HOLD) for row in rows]
                return HeldReleaseResult(frozenset(row["queue"] for row in rows), changes, locked_ids)

        return await self._with_current_month(now, write)

    async def _replace_previous(
        self, connection: Connection, schedule_ids: list[UUID], now: datetime | None
    ) -> list[TaskChange]:
        changes: list[TaskChange] = []
        rows = await fetch_on(connection, self._queries["task_release_held_replaced"], ids=schedule_ids)
        for tenant_id in {row["tenant_id"] for row in rows}:
            ids = [row["id"] for row in rows if row["tenant_id"] == tenant_id]
            changes += (await self._cancel(connection, tenant_id, ids, TaskChangeKind.REPLACED, now)).changes
        return changes

    async def task_cancel(
        self, tenant_id: UUID, ids: Sequence[UUID], *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> CancelResult:
        async def write() -> CancelResult:
            async with self._transaction("task_cancel") as connection:
                cancelled = await self._cancel(connection, tenant_id, list(ids), TaskChangeKind.CANCELLED, now)
                if cancelled.ended or cancelled.requested:
                    await write_audit_log(connection, self._queries, audit_log, now)
                return cancelled

        return await self._with_current_month(now, write)

    async def _cancel(
        self, connection: Connection, tenant_id: UUID, ids: list[UUID], kind: TaskChangeKind, now: datetime | None
    ) -> CancelResult:
        values = {"tenant_id": tenant_id, "ids": ids}
        # Locked first, so that a task that is claimed or put back meanwhile is not missed by both statements.
        locked = await fetch_on(connection, self._queries["task_cancel_lock"], **values)
        known = {row["id"] for row in locked if row["cancel_requested"]}
        ended = await fetch_on(connection, self._queries["task_cancel"], reason=CANCEL_REASONS[kind], now=now, **values)
        requested = await fetch_on(connection, self._queries["task_cancel_running"], **values)
        changes = [cancelled_change(row, kind) for row in ended]
        changes += [cancel_requested_change(row) for row in requested if row["id"] not in known]
        return CancelResult(
            frozenset(row["id"] for row in ended), frozenset(row["id"] for row in requested), schedule_ids_of(ended), changes
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
        values = {"tenant_id": tenant_id, "id": id_, "run_at": run_at, "now": now}

        async def write() -> list[asyncpg.Record]:
            async with self._transaction("task_reschedule") as connection:
                rows = await fetch_on(connection, self._queries["task_reschedule"], **values)
                if rows:
                    await write_audit_log(connection, self._queries, audit_log, now)
                return rows

        rows = await self._retry(write)
        return [waiting_change(row, TaskChangeKind.RESCHEDULED) for row in rows]


def _key_parts(firsts: Mapping[tuple[UUID, str], int]) -> list[Mapping[tuple[UUID, str], int]]:
    """Split the keys of a batch. Sorted, so that two batches with the same keys insert them in about the same order."""
    if len(firsts) <= SLICE:
        return [firsts]
    pairs = sorted(firsts.items(), key=lambda pair: pair[0][1])
    return [dict(pairs[start : start + SLICE]) for start in range(0, len(pairs), SLICE)]


def key_columns(tasks: Sequence[NewTask], firsts: Mapping[tuple[UUID, str], int]) -> dict[str, list[Any]]:
    keyed = [tasks[index] for index in firsts.values()]
    return {
        "key_tenant_ids": [tenant_id for tenant_id, _ in firsts],
        "keys": [key for _, key in firsts],
        "key_task_ids": [task.id for task in keyed],
        "fingerprints": [task.key.fingerprint for task in keyed if task.key is not None],
    }


_SHAPE = {
    "tenant_ids": "tenant_id",
    "queues": "queue",
    "types": "type",
    "targets": "target",
    "origins": "origin",
    "priorities": "priority",
    "max_attempts": "max_attempts",
    "retries": "retry",
    "timeouts": "timeout_seconds",
    "labels": "labels",
    "fair_keys": "fair_key",
    "hooks": "hooks",
    "run_ats": "run_at",
    "delays": "delay_seconds",
    "schedule_ids": "schedule_id",
    "schedule_names": "schedule_name",
    "scheduled_fors": "scheduled_for",
    "traceparents": "traceparent",
    "lease_owners": "lease_owner",
    "lease_seconds": "lease_seconds",
    "total_seconds": "total_seconds",
}


_shape_of = itemgetter(*(NewTask._fields.index(field) for field in _SHAPE.values()))


def task_columns(tasks: Sequence[NewTask]) -> dict[str, Sequence[Any]]:
    """New tasks as columns.

    The fields in _SHAPE are mostly equal within a batch. Each distinct combination, a shape, is sent once; a task refers to its
    shape by number. SQL arrays begin at 1.
    """
    shapes: dict[tuple[Any, ...], int] = {}
    numbers, last, number = [], None, 0
    for task in tasks:
        shape = _shape_of(task)
        if shape != last:  # adjacent tasks are mostly equal, and comparing is cheaper than hashing
            number, last = shapes.setdefault(shape, len(shapes) + 1), shape
        numbers.append(number)
    return {
        "ids": [task.id for task in tasks],
        "partitions": [task.partition for task in tasks],
        "payloads": [task.payload.decode() for task in tasks],
        "payload_refs": [task.payload_ref for task in tasks],
        "shapes": numbers,
        **dict(zip(_SHAPE, zip(*shapes, strict=True), strict=True)),
    }
