"""The change publisher: passes changes of tasks to metrics, the event stream, long polls, the overlap releaser and promoters.

Each service that calls a store verb which changes tasks passes the returned changes to `publish`, once, after the commit. The
publisher is built before the services that subscribe to it, so services that cause changes and services that react to them do
not depend on each other.

Nothing that must survive a crash depends on it: the loops find every change that was not published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from everbeat.core.fairness import Flow
from everbeat.core.tasks import FINAL_STATES, Origin, TaskChange, TaskChangeKind, TaskState
from everbeat.services.event_stream import EventStream
from everbeat.services.events import (
    AttemptEnded,
    Emit,
    RowsLocked,
    TasksClaimed,
    TasksFinished,
    TasksPromoted,
    TasksSubmitted,
    ignore,
)
from everbeat.store.base import Store
from everbeat.store.values import Notice

# A task that is due later than this is found by the regular scan of the promoter.
_SOON = timedelta(seconds=5)
# A task of a tick is reported by the event of the tick. The others change nothing that a client waits for.
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
    def __init__(self, store: Store, *, emit: Emit = ignore, event_stream: EventStream | None = None) -> None:
        self._store = store
        self._emit = emit
        self._event_stream = event_stream or EventStream()
        self._listeners: list[EffectsListener] = []

    def subscribe(self, listener: EffectsListener) -> None:
        self._listeners.append(listener)

    def report_locked(self, verb: str, ids: Sequence[UUID], seconds: float = 0.0) -> None:
        """Report rows that a batch skipped because another transaction has locked them, the first of them for this time."""
        if ids:
            self._emit(RowsLocked(verb, len(ids), seconds, ids[0]))

    def publish(self, changes: Sequence[TaskChange], *, now: datetime | None = None) -> None:
        """Publish committed changes. With `now`, the promoters are woken only for new tasks that are due soon."""
        if not changes:
            return
        self._count(changes)
        if self._event_stream.has_subscribers:
            for change in changes:
                self._stream(change)
        effects = effects_of(changes)
        for listener in self._listeners:
            listener(effects)
        soon = None if now is None else now + _SOON
        if any(_wakes_promoters(change, soon) for change in changes):
            self._store.publish(Notice.DELAYED)

    def _count(self, changes: Sequence[TaskChange]) -> None:
        kinds = Counter(change.kind for change in changes)
        cancelled = kinds[TaskChangeKind.REPLACED]
        submitted = handed_over = 0
        for change in changes:
            if change.kind is TaskChangeKind.SUBMITTED:
                submitted += change.origin is not Origin.TICK
                handed_over += change.state is TaskState.RUNNING
            elif change.outcome is not None and change.kind is not TaskChangeKind.COMPLETED:
                self._emit(AttemptEnded(change.outcome.value, change.state.value))
            elif change.kind is TaskChangeKind.CANCELLED:
                cancelled += 1
        if submitted:
            self._emit(TasksSubmitted(submitted))
        if claimed := kinds[TaskChangeKind.CLAIMED] + handed_over:
            self._emit(TasksClaimed(claimed))
        if promoted := kinds[TaskChangeKind.PROMOTED]:
            self._emit(TasksPromoted(promoted))
        if completed := kinds[TaskChangeKind.COMPLETED]:
            self._emit(TasksFinished(TaskState.COMPLETED.value, completed))
        if cancelled:
            self._emit(TasksFinished(TaskState.CANCELLED.value, cancelled))

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
    for change in changes:
        if change.state is TaskState.READY:
            if change.kind is TaskChangeKind.SUBMITTED and change.origin is not Origin.TICK:
                flows.add(Flow(change.queue, change.tenant_id, change.priority or 0, change.fair_key or "", change.type))
            else:
                queues.add(change.queue)
        elif change.kind is TaskChangeKind.RESCHEDULED:
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
    if change.kind is TaskChangeKind.RESCHEDULED:
        return True
    if change.state is not TaskState.SCHEDULED:
        return False
    is_later = (
        change.kind is TaskChangeKind.SUBMITTED and soon is not None and change.run_at is not None and change.run_at > soon
    )
    return not is_later
