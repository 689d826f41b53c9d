"""Turns changes of tasks into spans: submit or fire, claim, delivery and end, all in the trace of the task.

Nothing here runs if traces are not exported. Spans of a node that is killed may be lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from everbeat.core.tasks import AttemptOutcome, ClaimedTask, Origin, TaskChange, TaskChangeKind, TaskState
from everbeat.core.tracing import SpanKind, TaskSpan, TraceContext, child_context, parse_traceparent, task_context

ExportSpan = Callable[[TaskSpan], None]

_ENDS = frozenset(
    {
        TaskChangeKind.RELEASED,
        TaskChangeKind.RETRIED,
        TaskChangeKind.COMPLETED,
        TaskChangeKind.FAILED,
        TaskChangeKind.DEAD,
        TaskChangeKind.CANCELLED,
        TaskChangeKind.REPLACED,
    }
)
_SUCCESSES = frozenset({AttemptOutcome.COMPLETED, AttemptOutcome.RELEASED, AttemptOutcome.CANCELLED})


class TaskTracer:
    def __init__(self, export: ExportSpan, *, ratio: float = 1.0, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._export = export
        self._ratio = ratio
        self._clock_ns = clock_ns

    def with_context(self, task: ClaimedTask) -> ClaimedTask:
        """Return a claimed task with the context to which its worker adds spans."""
        context = task_context(task.id, task.traceparent, self._ratio)
        return msgspec.structs.replace(task, traceparent=context.traceparent)

    def on_changes(self, changes: Sequence[TaskChange]) -> None:
        now = self._clock_ns()
        for change in changes:
            context = task_context(change.id, change.traceparent, self._ratio)
            if not context.is_sampled:
                continue
            if change.kind is TaskChangeKind.SUBMITTED:
                self._begin(change, context, now)
                if change.state is TaskState.RUNNING:
                    self._claim(change, context, now)
            elif change.kind is TaskChangeKind.CLAIMED:
                self._claim(change, context, now)
            elif change.kind in _ENDS:
                self._end(change, context, now)

    def delivery_context(self, task: ClaimedTask) -> TraceContext:
        """Return the context of the delivery of a claimed task, which its message carries to the destination."""
        return child_context(task_context(task.id, task.traceparent, self._ratio), task.id, f"deliver {task.fence}")

    def on_delivery(self, task: ClaimedTask, kind: str, destination: str, started_ns: int, error: str | None) -> None:
        context = self.delivery_context(task)
        if not context.is_sampled:
            return
        attributes = {
            **_attributes(task.id, task.tenant_id, task.queue, task.type, task.attempt),
            "everbeat.target.kind": kind,
            "everbeat.destination": destination,
        }
        parent = task_context(task.id, task.traceparent, self._ratio).span_id
        self._export(
            TaskSpan(f"deliver {task.type}", SpanKind.CLIENT, context, parent, started_ns, self._clock_ns(), attributes, error)
        )

    def _begin(self, change: TaskChange, context: TraceContext, now: int) -> None:
        is_tick = change.origin is Origin.TICK
        parent = parse_traceparent(change.traceparent)
        attributes = _attributes_of(change)
        if change.origin is not None:
            attributes["everbeat.origin"] = change.origin.value
        # The span of a firing begins when the tick was due, so its duration is the lag.
        start = min(now, _nanoseconds(change.run_at)) if is_tick and change.run_at is not None else now
        name = f"{'fire' if is_tick else 'submit'} {change.type}"
        self._export(
            TaskSpan(name, SpanKind.PRODUCER, context, None if parent is None else parent.span_id, start, now, attributes)
        )

    def _claim(self, change: TaskChange, context: TraceContext, now: int) -> None:
        child = child_context(context, change.id, f"claim {change.attempt}")
        self._export(
            TaskSpan(f"claim {change.type}", SpanKind.INTERNAL, child, context.span_id, now, now, _attributes_of(change))
        )

    def _end(self, change: TaskChange, context: TraceContext, now: int) -> None:
        child = child_context(context, change.id, f"{change.kind.value} {change.attempt} {now}")
        attributes = _attributes_of(change)
        attributes["everbeat.state"] = change.state.value
        error = None
        if change.outcome is not None:
            attributes["everbeat.outcome"] = change.outcome.value
            error = None if change.outcome in _SUCCESSES else f"the attempt ended as {change.outcome.value}"
        name = f"{_VERBS[change.kind]} {change.type}"
        self._export(TaskSpan(name, SpanKind.INTERNAL, child, context.span_id, now, now, attributes, error))


_VERBS = {
    TaskChangeKind.RELEASED: "release",
    TaskChangeKind.RETRIED: "retry",
    TaskChangeKind.COMPLETED: "complete",
    TaskChangeKind.FAILED: "fail",
    TaskChangeKind.DEAD: "dead",
    TaskChangeKind.CANCELLED: "cancel",
    TaskChangeKind.REPLACED: "cancel",
}


def _attributes_of(change: TaskChange) -> dict[str, str | int]:
    attributes = _attributes(change.id, change.tenant_id, change.queue, change.type, change.attempt)
    if change.schedule_id is not None:
        attributes["everbeat.schedule_id"] = str(change.schedule_id)
    if change.worker is not None:
        attributes["everbeat.worker"] = change.worker
    return attributes


def _attributes(id_: UUID, tenant_id: UUID, queue: str, type_: str, attempt: int) -> dict[str, str | int]:
    return {
        "messaging.system": "everbeat",
        "messaging.destination.name": queue,
        "messaging.message.id": str(id_),
        "everbeat.tenant_id": str(tenant_id),
        "everbeat.type": type_,
        "everbeat.attempt": attempt,
    }


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1_000
