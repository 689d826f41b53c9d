"""Operations on tasks: submit, read, cancel, reschedule, do again. Quotas and tenancy belong here too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import uuid_utils.compat

from everbeat.core.access import Caller
from everbeat.core.audit_log import AuditLogAction
from everbeat.core.errors import Conflict, EverbeatError, FieldError, InvalidInput, NotFound, TooLarge
from everbeat.core.protocol import MAX_SUBMITTED, TaskInput
from everbeat.core.submissions import new_task, task_as_submitted, task_for_replay
from everbeat.core.tasks import LIVE_STATES, Attempt, LogLine, NewTask, TaskKey, TaskRecord, TaskState
from everbeat.services.audit_log import AuditLogEntries, new_audit_log_entries
from everbeat.services.blobs import BlobStore
from everbeat.services.group_commit import GroupCommit
from everbeat.services.ids import ids_from, new_ids
from everbeat.services.long_polls import DirectHandoff, LongPolls
from everbeat.services.payloads import LargePayloads
from everbeat.services.publisher import ChangePublisher
from everbeat.services.quotas import QuotaService
from everbeat.store.base import Store
from everbeat.store.values import SubmitResult, TaskFilter

_MAX_ROWS = 1000
_ALONE = 100
_SLICE = 250
_TRIES = 5


class _WriteResult(NamedTuple):
    """What became of one request's tasks in a shared write."""

    now: datetime
    ids: list[UUID]
    repeated: frozenset[int]
    mismatched: frozenset[int]
    tasks: Sequence[NewTask] = ()  # as they were written: a task that was handed to a waiting worker has its lease
    error: EverbeatError | None = None


class TaskPage(NamedTuple):
    """`next_before`: where the next page begins, if there may be more."""

    tasks: list[TaskRecord]
    next_before: UUID | None


class TaskService:
    """The room behind /v1/tasks. `now` is None in production: the database's clock decides."""

    def __init__(
        self,
        store: Store,
        long_polls: LongPolls,
        publisher: ChangePublisher,
        *,
        payloads: LargePayloads | None = None,
        quotas: QuotaService | None = None,
    ) -> None:
        self._store = store
        self.quotas = quotas or QuotaService(store)
        self._long_polls = long_polls
        self._publisher = publisher
        self._payloads = payloads or LargePayloads(BlobStore(None))
        self._submits: GroupCommit[list[NewTask], _WriteResult] = GroupCommit(
            self._write_together, max_rows=_MAX_ROWS, count_rows=len
        )

    # Submitting

    async def submit(
        self,
        tenant_id: UUID,
        given: TaskInput,
        *,
        key: str | None = None,
        traceparent: str | None = None,
        now: datetime | None = None,
    ) -> tuple[TaskRecord, bool]:
        """The task, and whether it is new: a key that was used before stands for the task it made then."""
        task = new_task(given, uuid_utils.compat.uuid7(), tenant_id, key=key, traceparent=traceparent)
        await self.quotas.check_payloads(tenant_id, [task.payload])
        return await self.add_one(task, now=now)

    async def add_one(
        self, task: NewTask, *, audit_log: AuditLogEntries = (), now: datetime | None = None
    ) -> tuple[TaskRecord, bool]:
        """A task that is made already, under its key if it has one; and whether it is new."""
        async with self.quotas.reserve(task.tenant_id, [task], now=now):
            (task,) = await self._payloads.keep([task])
            result = await self._write([task], now, audit_log)
        if result.mismatched or result.repeated:
            await self._payloads.discard([task])
        if result.mismatched:
            raise InvalidInput.of("Idempotency-Key", "was used before with another task; use a new key")
        if result.repeated:
            return await self.get(task.tenant_id, result.ids[0]), False
        return task_as_submitted(result.tasks[0], result.now), True

    async def submit_batch(
        self,
        tenant_id: UUID,
        given: Sequence[TaskInput],
        *,
        key: TaskKey | None = None,
        traceparent: str | None = None,
        now: datetime | None = None,
    ) -> list[UUID]:
        """All or nothing; a task that is wrong is named by its place. `key` is for tasks that have none of their own."""
        if not 1 <= len(given) <= MAX_SUBMITTED:
            raise InvalidInput.of("tasks", f"must have 1 to {MAX_SUBMITTED} items, has {len(given)}")
        tasks: list[NewTask] = []
        errors: list[FieldError] = []
        has_single_key = key is not None and all(one.idempotency_key is None for one in given)
        ids = new_ids(len(given))
        for index, one in enumerate(given):
            if index % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)  # the tick loop of this process must not wait for a big batch
            try:
                task = new_task(one, ids[index], tenant_id, key=one.idempotency_key, traceparent=traceparent)
                self._payloads.check(task)
                tasks.append(task)
            except TooLarge as error:
                raise error.under(f"tasks[{index}]") from None
            except InvalidInput as error:
                errors.extend(error.under(f"tasks[{index}]").errors)
        if errors:
            raise InvalidInput(*errors[:100])
        await self.quotas.check_payloads(tenant_id, [task.payload for task in tasks])
        async with self.quotas.reserve(tenant_id, tasks, now=now):
            return await self._submit_all(await self._payloads.keep(tasks), key, has_single_key, now)

    async def _submit_all(
        self, tasks: list[NewTask], key: TaskKey | None, has_single_key: bool, now: datetime | None
    ) -> list[UUID]:
        if has_single_key and key is not None:
            return await self._write_one(tasks, key, now)
        result = await self._write(tasks if key is None else _under(key, tasks), now)
        unwritten = range(len(tasks)) if result.mismatched else result.repeated
        await self._payloads.discard(tasks[place] for place in unwritten)
        if result.mismatched:
            if key is not None and any(tasks[at].key is None for at in result.mismatched):
                raise InvalidInput.of("Idempotency-Key", "was used before with another batch; use a new key")
            message = "was used before with another task; nothing of the batch was submitted"
            raise InvalidInput(*(FieldError(f"tasks[{at}].idempotency_key", message) for at in sorted(result.mismatched)[:100]))
        return result.ids

    async def _write_one(self, tasks: list[NewTask], key: TaskKey, now: datetime | None) -> list[UUID]:
        """A batch under one key. Its ids follow from the first one, so that the key need remember no other."""
        tasks[0] = tasks[0]._replace(key=key)
        submitted = await self._store.task_submit(tasks, has_single_key=True, now=now)
        if submitted.mismatched or submitted.repeated:
            await self._payloads.discard(tasks)
        if submitted.mismatched:
            raise InvalidInput.of("Idempotency-Key", "was used before with another batch; use a new key")
        if submitted.repeated:
            return ids_from(submitted.ids[0], len(tasks))
        self._publisher.publish(submitted.changes, now=submitted.now)
        return submitted.ids

    async def add(
        self, tasks: Sequence[NewTask], *, audit_log: AuditLogEntries = (), now: datetime | None = None
    ) -> SubmitResult:
        """Write tasks that others have made and have room for."""
        submitted = await self._store.task_submit(tasks, audit_log=audit_log, now=now)
        self._publisher.publish(submitted.changes, now=submitted.now)
        return submitted

    async def _write(self, tasks: list[NewTask], now: datetime | None, audit_log: AuditLogEntries = ()) -> _WriteResult:
        if audit_log:
            submitted = await self.add(tasks, audit_log=audit_log, now=now)
            return _WriteResult(submitted.now, submitted.ids, submitted.repeated, submitted.mismatched, tasks)
        if now is None and len(tasks) <= _ALONE:
            result = await self._submits.add(tasks)
        else:
            (result,) = await self._write_together([tasks], now)
        if result.error is not None:
            raise result.error
        return result

    async def _write_together(self, groups: list[list[NewTask]], now: datetime | None = None) -> list[_WriteResult]:
        """One write for many requests; one whose key stands for something else is left out, and the rest is written."""
        flat = [task for group in groups for task in group]
        handoff = DirectHandoff(self._long_polls)
        if now is None and len(flat) <= _ALONE:
            flat = [handoff.reserve(task) if task.run_at is None and task.delay_seconds is None else task for task in flat]
        try:
            submitted = await self._store.task_submit(flat, now=now)
        except BaseException:
            await handoff.deliver((), None)
            raise
        if submitted.mismatched:
            await handoff.deliver((), None)
            return await self._write_apart(groups, submitted, now)
        await handoff.deliver({change.id for change in submitted.changes}, submitted.now)
        self._publisher.publish(submitted.changes, now=submitted.now)
        results, start = [], 0
        for group in groups:
            end = start + len(group)
            repeated = frozenset(index - start for index in submitted.repeated if start <= index < end)
            results.append(_WriteResult(submitted.now, submitted.ids[start:end], repeated, frozenset(), flat[start:end]))
            start = end
        return results

    async def _write_apart(
        self, groups: list[list[NewTask]], submitted: SubmitResult, now: datetime | None
    ) -> list[_WriteResult]:
        """Nothing was written yet. Beside others a key can seem to stand for what only they meant by it: asked alone, it is
        told what it does stand for."""
        wrong: dict[int, frozenset[int]] = {}
        start = 0
        for place, group in enumerate(groups):
            if at := frozenset(index - start for index in submitted.mismatched if start <= index < start + len(group)):
                wrong[place] = at
            start += len(group)
        if len(groups) == 1:
            return [_WriteResult(submitted.now, [], frozenset(), wrong[0])]
        rest = [group for place, group in enumerate(groups) if place not in wrong]
        written = iter(await self._write_together(rest, now) if rest else [])
        return [
            await self._write_alone(group, submitted.now, now) if place in wrong else next(written)
            for place, group in enumerate(groups)
        ]

    async def _write_alone(self, group: list[NewTask], moment: datetime, now: datetime | None) -> _WriteResult:
        try:
            return (await self._write_together([group], now))[0]
        except EverbeatError as error:  # only this one: the others are written already
            return _WriteResult(moment, [], frozenset(), frozenset(), error=error)

    # Reading

    async def get(self, tenant_id: UUID, id_: UUID) -> TaskRecord:
        """As its row has it; a large payload is not part of that."""
        for task in await self._store.task_find(tenant_id, [id_]):
            return task
        raise NotFound(f"there is no task {id_}")

    async def read(self, tenant_id: UUID, id_: UUID) -> TaskRecord:
        """With its payload, also if that is a large one."""
        return await self._payloads.read(await self.get(tenant_id, id_))

    async def page(self, tenant_id: UUID, filter_: TaskFilter, *, before: UUID | None, limit: int) -> TaskPage:
        """Newest first, live and finished in one order; a page of a filter that matches little may be short, or empty."""
        state = None if filter_.state is None else TaskState(filter_.state)
        found: dict[UUID, TaskRecord] = {}
        reached: list[UUID] = []
        # Finished tasks last: one that ends in between is then found twice, never missed.
        for live in (True, False):
            if state is not None and (state in LIVE_STATES) != live:
                continue
            scan = await self._store.task_list(tenant_id, filter_, before=before, limit=limit + 1, live=live)
            found.update({task.id: task for task in scan.tasks})
            if scan.scanned_to is not None:
                reached.append(scan.scanned_to)
            elif len(scan.tasks) > limit:
                reached.append(scan.tasks[limit].id)
        floor = max(reached, default=None)
        tasks = [found[id_] for id_ in sorted(found, reverse=True) if floor is None or id_ >= floor]
        if len(tasks) > limit:
            return TaskPage(tasks[:limit], tasks[limit - 1].id)
        return TaskPage(tasks, floor)

    async def attempts(self, tenant_id: UUID, id_: UUID) -> list[Attempt]:
        """Oldest first: those that did not end the task, and the one that did or is under way."""
        task = await self.get(tenant_id, id_)
        attempts = await self._store.task_attempts(tenant_id, id_)
        is_under_way = task.state is TaskState.RUNNING
        if task.started_at is not None and (is_under_way or task.outcome is not None):
            attempts.append(_last_attempt(task))
        return attempts

    async def log(self, tenant_id: UUID, id_: UUID, *, after: UUID | None, limit: int) -> list[LogLine]:
        await self.get(tenant_id, id_)
        return await self._store.task_log(tenant_id, id_, after=after, limit=limit)

    # Changing

    async def cancel(self, tenant_id: UUID, id_: UUID, *, by: Caller | None = None, now: datetime | None = None) -> TaskRecord:
        """Gone if it has not started; else told with the next heartbeat, and fenced when its lease runs out."""
        for _ in range(_TRIES):
            audit_log = new_audit_log_entries(by, AuditLogAction.TASK_CANCEL, id_, tenant_id=tenant_id)
            cancelled = await self._store.task_cancel(tenant_id, [id_], audit_log=audit_log, now=now)
            self._publisher.publish(cancelled.changes)
            task = await self.get(tenant_id, id_)
            if cancelled.ended or cancelled.requested or task.state is TaskState.CANCELLED:
                return task
            if task.state not in LIVE_STATES:
                raise Conflict(f"the task is {task.state.value} already; there is nothing to cancel")
        raise _too_many_conflicts(id_)

    async def retry(
        self,
        tenant_id: UUID,
        id_: UUID,
        *,
        key: TaskKey | None = None,
        by: Caller | None = None,
        now: datetime | None = None,
    ) -> TaskRecord:
        task = await self.get(tenant_id, id_)
        if task.state in LIVE_STATES:
            raise Conflict(f"the task is {task.state.value}; only a finished one can be done again")
        again = task_for_replay(task, uuid_utils.compat.uuid7())._replace(key=key)
        audit_log = new_audit_log_entries(by, AuditLogAction.TASK_RETRY, id_, tenant_id=tenant_id, task_id=again.id)
        return (await self.add_one(again, audit_log=audit_log, now=now))[0]

    async def reschedule(
        self, tenant_id: UUID, id_: UUID, run_at: datetime, *, by: Caller | None = None, now: datetime | None = None
    ) -> TaskRecord:
        audit_log = new_audit_log_entries(by, AuditLogAction.TASK_RESCHEDULE, id_, tenant_id=tenant_id, run_at=run_at)
        for _ in range(_TRIES):
            changes = await self._store.task_reschedule(tenant_id, id_, run_at, audit_log=audit_log, now=now)
            self._publisher.publish(changes)
            task = await self.get(tenant_id, id_)
            if changes:
                return task
            if task.state not in (TaskState.SCHEDULED, TaskState.READY):
                raise Conflict(f"the task is {task.state.value}; only one that waits for its time can be rescheduled")
        raise _too_many_conflicts(id_)


def _under(key: TaskKey, tasks: list[NewTask]) -> list[NewTask]:
    """Each task under a key of its own, made of that of the request; the space keeps it apart from keys that users give."""
    return [
        task._replace(key=TaskKey(f"{key.key} {place}", key.fingerprint)) if task.key is None else task
        for place, task in enumerate(tasks)
    ]


def _last_attempt(task: TaskRecord) -> Attempt:
    assert task.started_at is not None
    return Attempt(
        attempt=task.attempt,
        fence=task.fence,
        worker=task.worker,
        started_at=task.started_at,
        ended_at=task.finished_at,
        outcome=task.outcome,
        error=None if task.outcome is None else task.error,
    )


def _too_many_conflicts(id_: UUID) -> Conflict:
    return Conflict(f"the task {id_} is being changed by others again and again; try once more")
