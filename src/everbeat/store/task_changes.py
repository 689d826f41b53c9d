"""Builds the `TaskChange` values that store verbs return, from rows and arguments, for both dialects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from everbeat.core.tasks import (
    AttemptEnd,
    AttemptOutcome,
    ClaimedTask,
    NewTask,
    Origin,
    TaskChange,
    TaskChangeKind,
    TaskState,
)
from everbeat.store.values import ClaimRequest, Firing

_STATES = {state.value: state for state in TaskState}
_FINAL_KINDS = {
    TaskState.FAILED: TaskChangeKind.FAILED,
    TaskState.DEAD: TaskChangeKind.DEAD,
    TaskState.CANCELLED: TaskChangeKind.CANCELLED,
}
# How many rows of a batch are processed at a time. Between two steps, other work runs on the event loop.
SLICE = 1000


def submitted_changes(tasks: Iterable[NewTask], now: datetime) -> list[TaskChange]:
    return [_submitted(task, now) for task in tasks]


async def submitted_in_steps(tasks: Sequence[NewTask], now: datetime) -> list[TaskChange]:
    """The changes of a batch that may be large."""
    changes: list[TaskChange] = []
    for start in range(0, len(tasks), SLICE):
        if start:
            await asyncio.sleep(0)
        changes += submitted_changes(tasks[start : start + SLICE], now)
    return changes


def _submitted(task: NewTask, now: datetime) -> TaskChange:
    is_leased = task.lease_owner is not None
    run_at = task.run_at
    if run_at is None:
        run_at = now + timedelta(seconds=task.delay_seconds) if task.delay_seconds else now
    waiting = TaskState.SCHEDULED if run_at > now else TaskState.READY
    return TaskChange(
        task.id,
        task.tenant_id,
        task.queue,
        task.type,
        TaskChangeKind.SUBMITTED,
        TaskState.RUNNING if is_leased else waiting,
        1 if is_leased else 0,
        None,
        task.schedule_id,
        task.lease_owner,
        task.priority,
        task.fair_key,
        run_at,
        task.origin,
        traceparent=task.traceparent,
    )


def fired_change(firing: Firing, queue: str, type_: str, state: str, priority: int) -> TaskChange:
    """The change for the new task of a tick."""
    return TaskChange(
        firing.task_id,
        firing.tenant_id,
        queue,
        type_,
        TaskChangeKind.SUBMITTED,
        _STATES[state],
        0,
        None,
        firing.schedule_id,
        None,
        priority,
        "",
        firing.fires,
        Origin.TICK,
    )


def claimed_changes(
    requests: Sequence[ClaimRequest], tasks: Sequence[Sequence[ClaimedTask]], waited_seconds: Mapping[UUID, float]
) -> list[TaskChange]:
    return [
        TaskChange(
            task.id,
            task.tenant_id,
            task.queue,
            task.type,
            TaskChangeKind.CLAIMED,
            TaskState.RUNNING,
            task.attempt,
            None,
            task.schedule_id,
            request.worker,
            waited_seconds=waited_seconds.get(task.id),
            traceparent=task.traceparent,
        )
        for request, part in zip(requests, tasks, strict=True)
        for task in part
    ]


def completed_change(
    id_: UUID,
    tenant_id: UUID,
    queue: str,
    type_: str,
    attempt: int,
    schedule_id: UUID | None,
    worker: str | None,
    ran_seconds: float | None,
    timeout_seconds: float | None,
    traceparent: str | None,
) -> TaskChange:
    return TaskChange(
        id_,
        tenant_id,
        queue,
        type_,
        TaskChangeKind.COMPLETED,
        TaskState.COMPLETED,
        attempt,
        AttemptOutcome.COMPLETED,
        schedule_id,
        worker,
        ran_seconds=ran_seconds,
        timeout_seconds=timeout_seconds,
        traceparent=traceparent,
    )


def waiting_change(
    row: Mapping[str, Any], kind: TaskChangeKind, outcome: AttemptOutcome | None = None, worker: str | None = None
) -> TaskChange:
    """The change for a task that is now ready, scheduled or held."""
    return TaskChange(
        row["id"],
        row["tenant_id"],
        row["queue"],
        row["type"],
        kind,
        _STATES[row["state"]],
        row["attempt"],
        outcome,
        row["schedule_id"],
        worker,
        row["priority"],
        row["fair_key"],
        row["run_at"],
    )


def put_back_change(row: Mapping[str, Any], end: AttemptEnd) -> TaskChange:
    """The change for a task whose attempt ended without ending the task."""
    is_released = end.outcome is AttemptOutcome.RELEASED
    kind = TaskChangeKind.RELEASED if is_released else TaskChangeKind.RETRIED
    change = waiting_change(row, kind, end.outcome, row["worker"])
    return msgspec.structs.replace(
        change, ran_seconds=row["ran_seconds"], timeout_seconds=row["timeout_seconds"], traceparent=row["traceparent"]
    )


def final_change(row: Mapping[str, Any], end: AttemptEnd) -> TaskChange:
    """The change for a task that its attempt ended without completing it."""
    return TaskChange(
        row["id"],
        row["tenant_id"],
        row["queue"],
        row["type"],
        _FINAL_KINDS[end.state],
        end.state,
        row["attempt"],
        end.outcome,
        row["schedule_id"],
        row["worker"],
        ran_seconds=row["ran_seconds"],
        timeout_seconds=row["timeout_seconds"],
        traceparent=row["traceparent"],
    )


def cancelled_change(row: Mapping[str, Any], kind: TaskChangeKind) -> TaskChange:
    """The change for a task that was cancelled or replaced before it started."""
    return TaskChange(
        row["id"],
        row["tenant_id"],
        row["queue"],
        row["type"],
        kind,
        TaskState.CANCELLED,
        row["attempt"],
        None,
        row["schedule_id"],
    )


def cancel_requested_change(row: Mapping[str, Any]) -> TaskChange:
    """The change for a running task whose worker is requested to stop."""
    return TaskChange(
        row["id"],
        row["tenant_id"],
        row["queue"],
        row["type"],
        TaskChangeKind.CANCEL_REQUESTED,
        TaskState.RUNNING,
        row["attempt"],
        None,
        row["schedule_id"],
        row["worker"],
    )
