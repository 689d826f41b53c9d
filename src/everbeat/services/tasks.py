"""Operations on tasks: submit, read, cancel, reschedule and retry them. Quotas and tenants are checked here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import uuid_utils.compat

from everbeat.core.access import Caller
from everbeat.core.audit_log import AuditLogAction
from everbeat.core.errors import (
    Conflict,
    EverbeatError,
    FieldError,
    HandoffPaused,
    InvalidInput,
    NotFound,
    StoreLocked,
    TooLarge,
)
from everbeat.core.protocol import MAX_SUBMITTED, TaskInput
from everbeat.core.submissions import new_task, task_as_submitted, task_for_replay
from everbeat.core.tasks import LIVE_STATES, Attempt, LogLine, NewTask, TaskKey, TaskRecord, TaskState
from everbeat.services.audit_log import AuditLogEntries, new_audit_log_entries
from everbeat.services.blobs import BlobStore
from everbeat.services.direct_handoff import DirectHandoff
from everbeat.services.group_commit import GroupCommit
from everbeat.services.ids import ids_from, new_ids
from everbeat.services.locked_writes import retry_while_locked
from everbeat.services.long_polls import LongPolls
from everbeat.services.payloads import LargePayloads
from everbeat.services.publisher import ChangePublisher
from everbeat.services.quotas import QuotaService
from everbeat.services.target_rules import RulesOf, no_rules
from everbeat.services.time_slices import TimeSlices
from everbeat.store.base import Store
from everbeat.store.values import SubmitResult, TaskFilter

_MAX_ROWS = 1000
_MAX_SHARED_TASKS = 100
_TRIES = 5


class _SubmitGroup(NamedTuple):
    """The tasks of one request. With `has_single_key`, the key of the first task applies to all of them."""

    tasks: list[NewTask]
    has_single_key: bool = False

    def count_rows(self) -> int:
        return len(self.tasks)


class _WriteResult(NamedTuple):
    """The result of one request in a group commit."""

    now: datetime
    ids: list[UUID]
    repeated: frozenset[int]
    mismatched: frozenset[int]
    tasks: Sequence[NewTask] = ()  # as written: a task handed over to a waiting worker has its lease
    error: EverbeatError | None = None


class _TenantLock:
    """Held while a large batch of the tenant is written. `users`: how many batches hold it or wait for it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class TaskPage(NamedTuple):
    """A page of tasks. `next_before`: where the next page begins, if there may be one."""

    tasks: list[TaskRecord]
    next_before: UUID | None


class TaskService:
    """The operations of /v1/tasks. `now` is None in production: the database's clock decides."""

    def __init__(
        self,
        store: Store,
        long_polls: LongPolls,
        publisher: ChangePublisher,
        *,
        payloads: LargePayloads | None = None,
        quotas: QuotaService | None = None,
        rules_of: RulesOf = no_rules,
    ) -> None:
        self._store = store
        self._rules_of = rules_of
        self.quotas = quotas or QuotaService(store)
        self._long_polls = long_polls
        self._publisher = publisher
        self._payloads = payloads or LargePayloads(BlobStore(None))
        self._tenant_locks: dict[UUID, _TenantLock] = {}
        self._submits: GroupCommit[_SubmitGroup, _WriteResult] = GroupCommit(
            self._write_together,
            max_rows=_MAX_ROWS,
            count_rows=_SubmitGroup.count_rows,
            on_batch=publisher.report_group_commit("task_submit"),
        )

    # Submitting

    async def submit(
        self,
        tenant_id: UUID,
        task_input: TaskInput,
        *,
        key: str | None = None,
        traceparent: str | None = None,
        now: datetime | None = None,
    ) -> tuple[TaskRecord, bool]:
        """Submit a task. Returns the task and whether it is new. If `key` was used before, this is the task that it created."""
        task = new_task(
            task_input, uuid_utils.compat.uuid7(), tenant_id, key=key, traceparent=traceparent, rules=self._rules_of(tenant_id)
        )
        await self.quotas.check_payloads(tenant_id, [task.payload])
        return await self.add_one(task, now=now)

    async def add_one(
        self, task: NewTask, *, audit_log: AuditLogEntries = (), now: datetime | None = None
    ) -> tuple[TaskRecord, bool]:
        """Write a task that the caller has built. Returns the task, or the existing task of its key, and whether it is new."""
        (task,) = await self.quotas.with_allowed_priority(task.tenant_id, [task])
        async with self.quotas.reserve(task.tenant_id, [task], now=now):
            (task,) = await self._payloads.keep([task])
            result = await self._write(_SubmitGroup([task]), now, audit_log)
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
        task_inputs: Sequence[TaskInput],
        *,
        key: TaskKey | None = None,
        traceparent: str | None = None,
        now: datetime | None = None,
    ) -> list[UUID]:
        """Submit all tasks or none. Errors name the index of the task. `key` applies to tasks without a key of their own."""
        if not 1 <= len(task_inputs) <= MAX_SUBMITTED:
            raise InvalidInput.of("tasks", f"must have 1 to {MAX_SUBMITTED} items, has {len(task_inputs)}")
        tasks: list[NewTask] = []
        errors: list[FieldError] = []
        has_single_key = key is not None and all(one.idempotency_key is None for one in task_inputs)
        ids = new_ids(len(task_inputs))
        rules = self._rules_of(tenant_id)
        slices = TimeSlices()
        for index, one in enumerate(task_inputs):
            await slices.pause()  # the tick loop of this process must not wait for a large batch
            try:
                task = new_task(one, ids[index], tenant_id, key=one.idempotency_key, traceparent=traceparent, rules=rules)
                self._payloads.check(task)
                tasks.append(task)
            except TooLarge as error:
                raise error.under(f"tasks[{index}]") from None
            except InvalidInput as error:
                errors.extend(error.under(f"tasks[{index}]").errors)
        if errors:
            raise InvalidInput(*errors[:100])
        await self.quotas.check_payloads(tenant_id, [task.payload for task in tasks])
        tasks = await self.quotas.with_allowed_priority(tenant_id, tasks)
        async with self.quotas.reserve(tenant_id, tasks, now=now):
            return await self._submit_all(await self._payloads.keep(tasks), key, has_single_key, now)

    async def _submit_all(
        self, tasks: list[NewTask], key: TaskKey | None, has_single_key: bool, now: datetime | None
    ) -> list[UUID]:
        if has_single_key and key is not None:
            return await self._write_one(tasks, key, now)
        result = await self._write(_SubmitGroup(tasks if key is None else _with_keys(key, tasks)), now)
        unwritten = range(len(tasks)) if result.mismatched else result.repeated
        await self._payloads.discard(tasks[index] for index in unwritten)
        if result.mismatched:
            if key is not None and any(tasks[at].key is None for at in result.mismatched):
                raise InvalidInput.of("Idempotency-Key", "was used before with another batch; use a new key")
            message = "was used before with another task; no task of the batch was submitted"
            raise InvalidInput(*(FieldError(f"tasks[{at}].idempotency_key", message) for at in sorted(result.mismatched)[:100]))
        return result.ids

    async def _write_one(self, tasks: list[NewTask], key: TaskKey, now: datetime | None) -> list[UUID]:
        """Write a batch under one key. Its ids are consecutive, so only the first one is stored with the key."""
        tasks[0] = tasks[0]._replace(key=key)
        result = await self._write(_SubmitGroup(tasks, has_single_key=True), now)
        if result.mismatched or result.repeated:
            await self._payloads.discard(tasks)
        if result.mismatched:
            raise InvalidInput.of("Idempotency-Key", "was used before with another batch; use a new key")
        return ids_from(result.ids[0], len(tasks)) if result.repeated else result.ids

    async def add(
        self, tasks: Sequence[NewTask], *, audit_log: AuditLogEntries = (), now: datetime | None = None
    ) -> SubmitResult:
        """Write tasks that the caller has built and has reserved quota for."""
        submitted = await retry_while_locked(lambda: self._store.task_submit(tasks, audit_log=audit_log, now=now))
        self._publisher.publish(submitted.changes, now=submitted.now)
        return submitted

    async def _write(self, group: _SubmitGroup, now: datetime | None, audit_log: AuditLogEntries = ()) -> _WriteResult:
        if audit_log:
            submitted = await self.add(group.tasks, audit_log=audit_log, now=now)
            return _WriteResult(submitted.now, submitted.ids, submitted.repeated, submitted.mismatched, group.tasks)
        if now is None and len(group.tasks) <= _MAX_SHARED_TASKS:
            result = await self._submits.add(group)
        else:
            async with self._alone_if_large(group):
                (result,) = await retry_while_locked(lambda: self._write_together([group], now))
        if result.error is not None:
            raise result.error
        return result

    @contextlib.asynccontextmanager
    async def _alone_if_large(self, group: _SubmitGroup) -> AsyncIterator[None]:
        """Write the large batches of a tenant one after the other, so that one tenant does not occupy the database."""
        if len(group.tasks) <= _MAX_ROWS:
            yield
            return
        tenant_id = group.tasks[0].tenant_id
        held = self._tenant_locks.setdefault(tenant_id, _TenantLock())
        held.users += 1
        try:
            async with held.lock:
                yield
        finally:
            held.users -= 1
            if not held.users:
                del self._tenant_locks[tenant_id]

    async def _publish(self, submitted: SubmitResult) -> None:
        """Publish the changes of a batch in steps, between which other work runs on the event loop."""
        for start in range(0, len(submitted.changes), _MAX_ROWS):
            if start:
                await asyncio.sleep(0)
            self._publisher.publish(submitted.changes[start : start + _MAX_ROWS], now=submitted.now)

    async def _write_together(
        self, groups: list[_SubmitGroup], now: datetime | None = None, *, hand_over: bool = True
    ) -> list[_WriteResult]:
        """Write many requests together. Requests whose key was used for something else fail, and the others are written."""
        flat = [task for group in groups for task in group.tasks]
        requires_new_keys = any(group.has_single_key for group in groups)
        handoff = DirectHandoff(self._long_polls)
        if hand_over and now is None and len(flat) <= _MAX_SHARED_TASKS:
            flat = [handoff.reserve(task) if task.run_at is None and task.delay_seconds is None else task for task in flat]
        try:
            submitted = await self._store.task_submit(flat, requires_new_keys=requires_new_keys, now=now)
        except HandoffPaused:  # the queue was paused a moment ago
            await handoff.deliver((), None)
            return await self._write_together(groups, now, hand_over=False)
        except BaseException:
            await handoff.deliver((), None)
            raise
        if submitted.mismatched or (requires_new_keys and submitted.repeated):
            await handoff.deliver((), None)
            return await self._write_apart(groups, submitted, now)
        await handoff.deliver({change.id for change in submitted.changes}, submitted.now)
        await self._publish(submitted)
        results, start = [], 0
        for group in groups:
            end = start + len(group.tasks)
            repeated = frozenset(index - start for index in submitted.repeated if start <= index < end)
            results.append(_WriteResult(submitted.now, submitted.ids[start:end], repeated, frozenset(), flat[start:end]))
            start = end
        return results

    async def _write_apart(
        self, groups: list[_SubmitGroup], submitted: SubmitResult, now: datetime | None
    ) -> list[_WriteResult]:
        """Write the groups after a conflict of keys, because of which nothing was written.

        The conflict may be between two requests of this write, and not with a stored key. So each group with a conflict is
        written alone, after the others.
        """
        if len(groups) == 1:
            return [_WriteResult(submitted.now, submitted.ids, submitted.repeated, submitted.mismatched)]
        apart: set[int] = set()
        start = 0
        for number, group in enumerate(groups):
            indexes = range(start, start + len(group.tasks))
            if any(index in indexes for index in (*submitted.mismatched, *submitted.repeated)):
                apart.add(number)
            start += len(group.tasks)
        others = [group for number, group in enumerate(groups) if number not in apart]
        written = iter(await self._write_together(others, now) if others else [])
        return [
            await self._write_alone(group, submitted.now, now) if number in apart else next(written)
            for number, group in enumerate(groups)
        ]

    async def _write_alone(self, group: _SubmitGroup, moment: datetime, now: datetime | None) -> _WriteResult:
        try:
            return (await self._write_together([group], now))[0]
        except EverbeatError as error:  # only this request fails: the others have been written
            return _WriteResult(moment, [], frozenset(), frozenset(), error=error)

    # Reading

    async def get(self, tenant_id: UUID, id_: UUID) -> TaskRecord:
        """Return a task as its row has it, without a large payload."""
        for task in await self._store.task_find(tenant_id, [id_]):
            return task
        raise NotFound(f"there is no task {id_}")

    async def read(self, tenant_id: UUID, id_: UUID) -> TaskRecord:
        """Return a task with its payload, even if that is in the blob store."""
        return await self._payloads.read(await self.get(tenant_id, id_))

    async def page(self, tenant_id: UUID, filter_: TaskFilter, *, before: UUID | None, limit: int) -> TaskPage:
        """Return live and finished tasks, newest first. If the filter matches few tasks, a page may be short or empty."""
        state = None if filter_.state is None else TaskState(filter_.state)
        found: dict[UUID, TaskRecord] = {}
        ends: list[UUID] = []
        # Finished tasks are read last, so a task that ends between the two reads is found twice, and never missed.
        for live in (True, False):
            if state is not None and (state in LIVE_STATES) != live:
                continue
            scan = await self._store.task_list(tenant_id, filter_, before=before, limit=limit + 1, live=live)
            found.update({task.id: task for task in scan.tasks})
            if scan.scanned_to is not None:
                ends.append(scan.scanned_to)
            elif len(scan.tasks) > limit:
                ends.append(scan.tasks[limit].id)
        end = max(ends, default=None)
        tasks = [found[id_] for id_ in sorted(found, reverse=True) if end is None or id_ >= end]
        if len(tasks) > limit:
            return TaskPage(tasks[:limit], tasks[limit - 1].id)
        return TaskPage(tasks, end)

    async def attempts(self, tenant_id: UUID, id_: UUID) -> list[Attempt]:
        """Return the attempts, oldest first: those that did not end the task, and the one that did or that is running."""
        task = await self.get(tenant_id, id_)
        attempts = await self._store.task_attempts(tenant_id, id_)
        is_running = task.state is TaskState.RUNNING
        if task.started_at is not None and (is_running or task.outcome is not None):
            attempts.append(_last_attempt(task))
        return attempts

    async def log(self, tenant_id: UUID, id_: UUID, *, after: UUID | None, limit: int) -> list[LogLine]:
        await self.get(tenant_id, id_)
        return await self._store.task_log(tenant_id, id_, after=after, limit=limit)

    # Changing

    async def cancel(self, tenant_id: UUID, id_: UUID, *, by: Caller | None = None, now: datetime | None = None) -> TaskRecord:
        """Cancel a task immediately if it has not started.

        The worker of a running task gets the request with its next heartbeat. If it does not end the attempt, the reaper does,
        when the lease has expired.
        """
        for _ in range(_TRIES):
            audit_log = new_audit_log_entries(by, AuditLogAction.TASK_CANCEL, id_, tenant_id=tenant_id)
            cancelled = await self._store.task_cancel(tenant_id, [id_], audit_log=audit_log, now=now)
            self._publisher.publish(cancelled.changes)
            task = await self.get(tenant_id, id_)
            if cancelled.ended or cancelled.requested or task.state is TaskState.CANCELLED:
                return task
            if task.state not in LIVE_STATES:
                raise Conflict(f"the task is already {task.state.value}; it cannot be cancelled")
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
            raise Conflict(f"the task is {task.state.value}; only a finished task can be retried")
        new = task_for_replay(task, uuid_utils.compat.uuid7())._replace(key=key)
        audit_log = new_audit_log_entries(by, AuditLogAction.TASK_RETRY, id_, tenant_id=tenant_id, task_id=new.id)
        return (await self.add_one(new, audit_log=audit_log, now=now))[0]

    async def cancel_many(self, tenant_id: UUID, ids: Sequence[UUID], *, now: datetime | None = None) -> None:
        """Cancel those of the tasks that have not ended, as `cancel` does."""
        waiting = list(ids)
        for _ in range(_TRIES):
            cancelled = await self._store.task_cancel(tenant_id, waiting, now=now)
            self._publisher.publish(cancelled.changes)
            done = {*cancelled.ended, *cancelled.requested}
            waiting = [id_ for id_ in waiting if id_ not in done]
            live = {task.id for task in await self._store.task_find(tenant_id, waiting) if task.state in LIVE_STATES}
            waiting = [id_ for id_ in waiting if id_ in live]
            if not waiting:
                return
        raise StoreLocked("tasks are locked or were changed by other requests too many times; try again")

    async def retry_many(self, tenant_id: UUID, keys: Mapping[UUID, TaskKey], *, now: datetime | None = None) -> list[UUID]:
        """Run finished tasks again as new tasks, each under its key. Returns the ids of those that are not finished."""
        found = await self._store.task_find(tenant_id, list(keys))
        finished = [task for task in found if task.state not in LIVE_STATES]
        new = [task_for_replay(task, uuid_utils.compat.uuid7())._replace(key=keys[task.id]) for task in finished]
        new = await self.quotas.with_allowed_priority(tenant_id, new)
        async with self.quotas.reserve(tenant_id, new, now=now):
            await self.add(new, now=now)
        return sorted(set(keys) - {task.id for task in finished})

    async def reschedule(
        self, tenant_id: UUID, id_: UUID, run_at: datetime, *, by: Caller | None = None, now: datetime | None = None
    ) -> TaskRecord:
        audit_log = new_audit_log_entries(by, AuditLogAction.TASK_RESCHEDULE, id_, tenant_id=tenant_id, run_at=run_at)
        for _ in range(_TRIES):
            before = await self.get(tenant_id, id_)
            async with self.quotas.reserve_move(tenant_id, before.run_at, run_at, now=now):
                changes = await self._store.task_reschedule(tenant_id, id_, run_at, audit_log=audit_log, now=now)
            self._publisher.publish(changes)
            task = await self.get(tenant_id, id_)
            if changes:
                return task
            if task.state not in (TaskState.SCHEDULED, TaskState.READY):
                raise Conflict(f"the task is {task.state.value}; only a scheduled or ready task can be rescheduled")
        raise _too_many_conflicts(id_)


def _with_keys(key: TaskKey, tasks: list[NewTask]) -> list[NewTask]:
    """Give tasks without a key one derived from the key of the request. The space keeps it distinct from keys of clients."""
    return [
        task._replace(key=TaskKey(f"{key.key} {index}", key.fingerprint)) if task.key is None else task
        for index, task in enumerate(tasks)
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
        response=task.response,
    )


def _too_many_conflicts(id_: UUID) -> Conflict:
    return Conflict(f"the task {id_} was changed by other requests too many times; try again")
