"""Bulk operations: created by a request, executed page by page by one of the nodes, with progress that survives crashes.

Protocol. The request counts what matches, stores the operation, and returns. A node takes a running operation under a lease
(`bulk_claim`). For each page it first stores the ids of the page, then changes them, and then stores the numbers and the
position (`bulk_advance`), each time on condition that the operation is still its own and unchanged. If the node crashes,
another one takes the operation when the lease has ended, and repeats the stored page. Every action gives the same result when
it is repeated: a retried task and a triggered schedule have an idempotency key made of the operation and their id, and what is
already paused, cancelled or deleted counts as done. Only what existed at the creation of the operation is changed.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from hashlib import blake2b
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import msgspec

from everbeat.core.access import Caller, Scope
from everbeat.core.audit_log import AuditLogAction
from everbeat.core.bulk import (
    MAX_MATCHED,
    BulkAction,
    BulkError,
    BulkOperation,
    BulkProgress,
    BulkState,
    BulkSubject,
)
from everbeat.core.errors import Conflict, EverbeatError, InvalidInput, NotFound, QuotaExceeded, StoreError
from everbeat.core.tasks import LIVE_STATES, TaskKey, TaskState
from everbeat.services.audit_log import new_audit_log_entries
from everbeat.services.backfill import BackfillService
from everbeat.services.ids import new_ids
from everbeat.services.loops import Periodic
from everbeat.services.schedules import ScheduleService
from everbeat.services.tasks import TaskService
from everbeat.store.base import Store
from everbeat.store.values import Notice, ScheduleFilter, TaskMatch

_PAGE_SIZE = 200
_COUNT_PAGE_SIZE = 5000
_LEASE_SECONDS = 20.0
_INTERVAL_SECONDS = 2.0
_WORKERS = 8
_MAX_ERROR_CHARACTERS = 500

BulkFilter = ScheduleFilter | TaskMatch


class BulkRequest(NamedTuple):
    """What a user asks for. `expect_count`: refuse if another number matches."""

    action: BulkAction
    filter: BulkFilter
    note: str | None = None
    expect_count: int | None = None

    @property
    def subject(self) -> BulkSubject:
        return BulkSubject.SCHEDULES if isinstance(self.filter, ScheduleFilter) else BulkSubject.TASKS


class BulkService:
    """The operations of /v1/schedules/bulk, /v1/tasks/bulk and /v1/operations. `now` is None in production."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def count(self, tenant_id: UUID, request: BulkRequest) -> int:
        """Return the number of schedules or tasks that match now."""
        if isinstance(request.filter, ScheduleFilter):
            matched = await self._store.schedule_match_count(tenant_id, request.filter, limit=MAX_MATCHED + 1)
            _check_matched(request, matched)
            return matched
        matched, position = 0, None
        while True:
            page, position = await select(self._store, tenant_id, request, position, _COUNT_PAGE_SIZE)
            matched += len(page)
            _check_matched(request, matched)
            if position is None:
                return matched

    async def create(
        self, tenant_id: UUID, request: BulkRequest, *, key: str | None = None, by: Caller, now: datetime | None = None
    ) -> BulkOperation:
        """Store an operation. A node begins it at once. With a key, a repeated request returns the same operation."""
        (id_,) = new_ids(1)
        if key is not None and (existing := await self._store.bulk_find(tenant_id, [_id_of(tenant_id, key)])):
            if request_of(existing[0]) != request._replace(expect_count=None):
                raise InvalidInput.of("Idempotency-Key", "was used before with another operation; use a new key")
            return existing[0]
        matched = await self.count(tenant_id, request)
        if request.expect_count is not None and request.expect_count != matched:
            raise Conflict(f"{matched} {request.subject} match, not {request.expect_count}; look at the list again")
        selected = {name: value for name, value in request.filter._asdict().items() if value is not None}
        operation = BulkOperation(
            id=id_ if key is None else _id_of(tenant_id, key),
            tenant_id=tenant_id,
            subject=request.subject,
            action=request.action,
            filter=msgspec.json.encode(selected).decode(),
            note=request.note,
            actor=by.actor,
            key_id=by.key_id,
            matched=matched,
            position=None if request.subject is BulkSubject.SCHEDULES else str(id_),
            created_at=await self._store.clock(now=now),
        )
        detail: dict[str, Any] = {"what": f"{operation.action} {operation.subject}"}
        detail |= {"filter": selected, "matched": matched}
        entries = new_audit_log_entries(by, AuditLogAction.BULK_BEGIN, operation.id, **detail)
        await self._store.bulk_write(operation, audit_log=entries, now=now)
        self._store.publish(Notice.BULK)
        return await self.get(tenant_id, operation.id)

    async def get(self, tenant_id: UUID, id_: UUID) -> BulkOperation:
        for operation in await self._store.bulk_find(tenant_id, [id_]):
            return operation
        raise NotFound(f"there is no operation {id_}")

    async def page(self, tenant_id: UUID, *, before: tuple[datetime, UUID] | None, limit: int) -> list[BulkOperation]:
        return await self._store.bulk_list(tenant_id, before=before, limit=limit)

    async def cancel(self, tenant_id: UUID, id_: UUID, *, by: Caller, now: datetime | None = None) -> BulkOperation:
        """Stop an operation after the page that is being handled. What it has changed stays changed."""
        entries = new_audit_log_entries(by, AuditLogAction.BULK_CANCEL, id_)
        if not await self._store.bulk_cancel(tenant_id, id_, audit_log=entries, now=now):
            operation = await self.get(tenant_id, id_)
            if operation.state is not BulkState.CANCELLED:
                raise Conflict(f"the operation has ended ({operation.state}); it cannot be cancelled")
        return await self.get(tenant_id, id_)


def _id_of(tenant_id: UUID, key: str) -> UUID:
    digest = blake2b(tenant_id.bytes + key.encode(), digest_size=16).digest()
    return UUID(bytes=digest, version=4)


def _check_matched(request: BulkRequest, matched: int) -> None:
    if matched > MAX_MATCHED:
        message = f"matches more than {MAX_MATCHED:,} {request.subject}; narrow it, for example by from and to"
        raise InvalidInput.of("filter", message)


async def select(
    store: Store, tenant_id: UUID, request: BulkRequest, position: str | None, limit: int
) -> tuple[list[str], str | None]:
    """Return the next names of schedules or ids of tasks after a position, and the next position; None at the end."""
    if isinstance(request.filter, ScheduleFilter):
        found = await store.schedule_list(tenant_id, request.filter, after_name=position, limit=min(limit, 1000))
        names = [schedule.spec.name for schedule in found]
        return names, names[-1] if len(names) == min(limit, 1000) else None
    return await _select_tasks(store, tenant_id, request.action, request.filter, position, limit)


async def _select_tasks(
    store: Store, tenant_id: UUID, action: BulkAction, filter_: TaskMatch, position: str | None, limit: int
) -> tuple[list[str], str | None]:
    before = None if position is None else UUID(position)
    scan = await store.task_match(tenant_id, filter_, before=before, limit=limit, live=action is BulkAction.CANCEL)
    return [str(id_) for id_ in scan.ids], None if scan.scanned_to is None else str(scan.scanned_to)


class BulkRunner(Periodic):
    """The loop that executes bulk operations, one step per iteration."""

    name = "bulk"
    deadline_seconds = 60.0

    def __init__(
        self,
        store: Store,
        schedules: ScheduleService,
        tasks: TaskService,
        backfill: BackfillService,
        *,
        page_size: int = _PAGE_SIZE,
        lease_seconds: float = _LEASE_SECONDS,
    ) -> None:
        super().__init__(_INTERVAL_SECONDS)
        self._store = store
        self._schedules = schedules
        self._tasks = tasks
        self._backfill = backfill
        self._page_size = page_size
        self._lease_seconds = lease_seconds
        self._owner = uuid4()
        self._current: BulkOperation | None = None
        store.subscribe(self._on_notice)

    def _on_notice(self, notice: Notice) -> None:
        if notice is Notice.BULK:
            self.wake()

    async def run_once(self, now: datetime | None = None) -> bool:
        operation = self._current or await self._store.bulk_claim(self._owner, lease_seconds=self._lease_seconds, now=now)
        if operation is None:
            return False
        self._current = operation
        try:
            progress = await self._step(operation, now)
        except QuotaExceeded as error:
            if error.retry_after_seconds is not None:
                return False  # the page is tried again after the interval
            progress = _failure(operation, error)
        except (InvalidInput, NotFound, ValueError) as error:
            progress = _failure(operation, error)
        advanced = await self._store.bulk_advance(operation, progress, self._owner, lease_seconds=self._lease_seconds, now=now)
        self._current = advanced if advanced is not None and advanced.state is BulkState.RUNNING else None
        return True

    async def _step(self, operation: BulkOperation, now: datetime | None) -> BulkProgress:
        """Select and store the next page, or handle the stored one."""
        request = request_of(operation)
        if operation.page:
            errors = await self._handle(operation, request, now)
            return BulkProgress(operation.page[-1], (), len(operation.page) - len(errors), len(errors), tuple(errors))
        page, following = await select(self._store, operation.tenant_id, request, operation.position, self._page_size)
        if page:
            return BulkProgress(operation.position, tuple(page))
        if following is not None:  # the scan of the tasks ended before it found any
            return BulkProgress(following, ())
        return BulkProgress(operation.position, (), state=BulkState.DONE)

    # Actions

    async def _handle(self, operation: BulkOperation, request: BulkRequest, now: datetime | None) -> list[BulkError]:
        caller = Caller(operation.tenant_id, frozenset({Scope.MANAGE}), key_id=operation.key_id, actor=operation.actor)
        if request.action is BulkAction.RETRY:
            return await self._retry(operation, now)
        if request.action is BulkAction.CANCEL:
            return await self._cancel(operation, now)
        waiting = list(reversed(operation.page))
        errors: list[BulkError] = []

        async def work() -> None:
            while waiting:
                name = waiting.pop()
                try:
                    await self._change_schedule(operation, name, caller, now)
                except (StoreError, QuotaExceeded):
                    raise
                except EverbeatError as error:
                    errors.append(_error(name, error))

        await asyncio.gather(*(work() for _ in range(_WORKERS)))
        return errors

    async def _change_schedule(self, operation: BulkOperation, name: str, caller: Caller, now: datetime | None) -> None:
        tenant_id = operation.tenant_id
        try:
            schedule = await self._schedules.get(tenant_id, name)
        except NotFound:  # deleted by the step before a crash, or by another request
            if operation.action is BulkAction.DELETE:
                return
            raise
        if schedule.created_at > operation.created_at:
            return
        match operation.action:
            case BulkAction.PAUSE:
                await self._schedules.pause(tenant_id, name, note=operation.note, by=caller, now=now)
            case BulkAction.RESUME:
                await self._schedules.resume(tenant_id, name, by=caller, now=now)
            case BulkAction.DELETE:
                await self._schedules.delete(tenant_id, name, by=caller, now=now)
            case BulkAction.TRIGGER:
                key = _key(operation, schedule.id)
                await self._backfill.trigger(tenant_id, name, key=key, by=caller, now=now)
            case _:
                raise InvalidInput.of("action", f"{operation.action} is not an action on schedules")

    async def _cancel(self, operation: BulkOperation, now: datetime | None) -> list[BulkError]:
        ids = [UUID(id_) for id_ in operation.page]
        await self._tasks.cancel_many(operation.tenant_id, ids, now=now)
        found = {task.id: task for task in await self._store.task_find(operation.tenant_id, ids)}
        errors = []
        for id_ in ids:
            task = found.get(id_)
            if task is None:
                errors.append(BulkError(str(id_), "the task was removed after the retention period"))
            elif task.state not in LIVE_STATES and task.state is not TaskState.CANCELLED:
                errors.append(BulkError(str(id_), f"the task was already {task.state}"))
        return errors

    async def _retry(self, operation: BulkOperation, now: datetime | None) -> list[BulkError]:
        ids = [UUID(id_) for id_ in operation.page]
        keys = {id_: _key(operation, id_) for id_ in ids}
        missing = await self._tasks.retry_many(operation.tenant_id, keys, now=now)
        return [BulkError(str(id_), "the task is not finished, or was removed after the retention period") for id_ in missing]


def request_of(operation: BulkOperation) -> BulkRequest:
    kind: type[ScheduleFilter] | type[TaskMatch] = ScheduleFilter if operation.subject is BulkSubject.SCHEDULES else TaskMatch
    filter_ = kind(**_decoded(operation.filter))
    return BulkRequest(operation.action, filter_, operation.note)


def _decoded(text: str) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.json.decode(text)
    for name in ("from_at", "to_at"):
        if name in values:
            values[name] = msgspec.convert(values[name], datetime)
    if "schedule_id" in values:
        values["schedule_id"] = UUID(str(values["schedule_id"]))
    return values


def _key(operation: BulkOperation, id_: UUID) -> TaskKey:
    """Return the idempotency key of what the operation creates for a schedule or a task. Clients cannot send a space."""
    return TaskKey(f"bulk {operation.id} {id_}", b"bulk")


def _failure(operation: BulkOperation, error: Exception) -> BulkProgress:
    errors = (_error("operation", error),)
    return BulkProgress(operation.position, operation.page, errors=errors, state=BulkState.FAILED)


def _error(subject: str, error: Exception) -> BulkError:
    return BulkError(subject, str(error)[:_MAX_ERROR_CHARACTERS])
