"""The change publisher: passes changes of tasks to metrics, traces, the event stream and the services that react to them.

Each service that calls a store verb which changes tasks passes the returned changes to `publish`, once, after the commit. The
publisher is built before the services that subscribe to it, so services that cause changes and services that react to them do
not depend on each other.

Nothing that must survive a crash depends on it: the loops find every change that was not published.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from everbeat.core.fairness import Flow
from everbeat.core.tasks import FINAL_STATES, Origin, TaskChange, TaskChangeKind, TaskState
from everbeat.services.event_stream import EventStream
from everbeat.services.events import (
    AttemptEnded,
    AttemptRun,
    AttemptsRan,
    Emit,
    GroupCommitted,
    LeasesExpired,
    RowsLocked,
    StaleWritesRefused,
    TasksClaimed,
    TasksFinished,
    TasksPromoted,
    TasksSubmitted,
    ignore,
)
from everbeat.services.tracing import TaskTracer
from everbeat.store.base import Store
from everbeat.store.values import Notice

# A task that is due later than this is found by the regular scan of the promoter.
_SOON = timedelta(seconds=5)
# A task of a tick is reported by the event of the tick. The others change nothing that a client waits for.
# Members of enums as variables of the module, compared by identity: finding one by its name, or its hash, is a call of a Python
# function for each task of a batch.
_READY, _RUNNING, _SCHEDULED = TaskState.READY, TaskState.RUNNING, TaskState.SCHEDULED
_SUBMITTED, _CLAIMED, _COMPLETED = TaskChangeKind.SUBMITTED, TaskChangeKind.CLAIMED, TaskChangeKind.COMPLETED
_RESCHEDULED = TaskChangeKind.RESCHEDULED
_TICK = Origin.TICK
_NOT_STREAMED = frozenset({TaskChangeKind.PROMOTED, TaskChangeKind.HELD, TaskChangeKind.RELEASED_FROM_HOLD})


class ChangeEffects(NamedTuple):
    """What a batch of changes means for long polls and for the overlap releaser.

    `ready_queues` and `ready_flows` have new ready tasks. Attempts of `freed_tenants` have ended. Held tasks of `schedule_ids`
    may be released now.
    """

    ready_queues: Collection[str] = ()
    ready_flows: Collection[Flow] = ()
    freed_tenants: Collection[UUID] = ()
    schedule_ids: Collection[UUID] = ()


EffectsListener = Callable[[ChangeEffects], None]


class ChangePublisher:
    def __init__(
        self,
        store: Store,
        *,
        emit: Emit = ignore,
        event_stream: EventStream | None = None,
        tracer: TaskTracer | None = None,
    ) -> None:
        self._store = store
        self._emit = emit
        self._event_stream = event_stream or EventStream()
        self._tracer = tracer
        self._listeners: list[EffectsListener] = []

    def subscribe(self, listener: EffectsListener) -> None:
        self._listeners.append(listener)

    def report_locked(self, verb: str, ids: Sequence[UUID], seconds: float = 0.0) -> None:
        """Report rows that a batch skipped because another transaction has locked them, the first of them for this time."""
        if ids:
            self._emit(RowsLocked(verb, len(ids), seconds, ids[0]))

    def report_stale(self, operation: str, count: int) -> None:
        """Report writes that were refused, because their leases were lost."""
        if count:
            self._emit(StaleWritesRefused(operation, count))

    def report_expired(self, count: int) -> None:
        """Report attempts that were ended because their lease had expired."""
        if count:
            self._emit(LeasesExpired(count))

    def report_group_commit(self, operation: str) -> Callable[[int], None]:
        """Return a function that reports the rows of each batch of a group commit."""
        return lambda rows: self._emit(GroupCommitted(operation, rows))

    def publish(self, changes: Sequence[TaskChange], *, now: datetime | None = None) -> None:
        """Publish committed changes. With `now`, the promoters are woken only for new tasks that are due soon."""
        if not changes:
            return
        self._count(changes)
        if self._tracer is not None:
            self._tracer.on_changes(changes)
        if self._event_stream.has_subscribers:
            for change in changes:
                self._stream(change)
        effects = effects_of(changes)
        for listener in self._listeners:
            listener(effects)
        soon = None if now is None else now + _SOON
        delayed = [one for one in changes if one.state is _SCHEDULED or one.kind is _RESCHEDULED]
        if any(_wakes_promoters(change, soon) for change in delayed):
            self._store.publish(Notice.DELAYED)

    def _count(self, changes: Sequence[TaskChange]) -> None:
        submitted = claimed = promoted = completed = cancelled = 0
        waited: list[float] = []
        self._measure(changes)
        for change in changes:
            kind = change.kind
            if kind is _COMPLETED:
                completed += 1
            elif kind is _CLAIMED:
                claimed += 1
                if change.waited_seconds is not None:
                    waited.append(change.waited_seconds)
            elif kind is _SUBMITTED:
                submitted += change.origin is not _TICK
                if change.state is _RUNNING:  # a direct handoff
                    claimed += 1
                    waited.append(0.0)
            elif kind is TaskChangeKind.PROMOTED:
                promoted += 1
            elif kind is TaskChangeKind.REPLACED or (kind is TaskChangeKind.CANCELLED and change.outcome is None):
                cancelled += 1
            if change.outcome is not None and kind is not _COMPLETED:
                self._emit(AttemptEnded(change.outcome.value, change.state.value))
        for event, count in (
            (TasksSubmitted(submitted), submitted),
            (TasksClaimed(claimed, waited), claimed),
            (TasksPromoted(promoted), promoted),
            (TasksFinished(TaskState.COMPLETED.value, completed), completed),
            (TasksFinished(TaskState.CANCELLED.value, cancelled), cancelled),
        ):
            if count:
                self._emit(event)

    def _measure(self, changes: Sequence[TaskChange]) -> None:
        runs = [
            AttemptRun(change.outcome.value, change.ran_seconds, change.timeout_seconds)
            for change in changes
            if change.outcome is not None and change.ran_seconds is not None and change.timeout_seconds is not None
        ]
        if runs:
            self._emit(AttemptsRan(runs))

    def _stream(self, change: TaskChange) -> None:
        if change.kind in _NOT_STREAMED or change.origin is Origin.TICK:
            return
        data: dict[str, Any] = {"type": change.type, "queue": change.queue, "state": change.state.value}
        if change.origin is not None:
            data["origin"] = change.origin.value
        if change.worker is not None:
            data |= {"worker": change.worker, "attempt": change.attempt}
        kind = TaskChangeKind.CANCELLED if change.kind is TaskChangeKind.REPLACED else change.kind
        self._event_stream.publish_task(kind.value, change.tenant_id, change.id, **data)
        if change.kind is TaskChangeKind.SUBMITTED and change.state is TaskState.RUNNING:
            # Written as running, under the lease of a worker that was waiting.
            del data["origin"]
            self._event_stream.publish_task(TaskChangeKind.CLAIMED.value, change.tenant_id, change.id, **data)


def effects_of(changes: Sequence[TaskChange]) -> ChangeEffects:
    queues: set[str] = set()
    flows: set[Flow] = set()
    tenants: set[UUID] = set()
    schedules: set[UUID] = set()
    last_flow: Flow | None = None
    for change in changes:
        if change.state is _READY:
            if change.fair_key is not None and change.origin is not _TICK:  # the change of a tick does not have the fair key
                flow = Flow(change.queue, change.tenant_id, change.priority or 0, change.fair_key, change.type)
                if flow != last_flow:  # adjacent tasks are mostly of one flow, and comparing is cheaper than hashing
                    flows.add(flow)
                    last_flow = flow
            else:
                queues.add(change.queue)
        elif change.kind is _RESCHEDULED:
            queues.add(change.queue)
        if change.outcome is not None:
            tenants.add(change.tenant_id)
        if change.schedule_id is not None and _may_release(change):
            schedules.add(change.schedule_id)
    return ChangeEffects(queues, flows, tenants, schedules)


def _may_release(change: TaskChange) -> bool:
    """Whether held tasks of the schedule may be released now. The verb that replaces a task releases the next one itself."""
    is_new_and_held = change.kind is TaskChangeKind.SUBMITTED and change.state is TaskState.HELD
    return is_new_and_held or (change.state in FINAL_STATES and change.kind is not TaskChangeKind.REPLACED)


def _wakes_promoters(change: TaskChange, soon: datetime | None) -> bool:
    if change.kind is _RESCHEDULED:
        return True
    is_later = change.kind is _SUBMITTED and soon is not None and change.run_at is not None and change.run_at > soon
    return not is_later
