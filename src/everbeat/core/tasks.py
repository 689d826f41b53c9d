"""Tasks: origins, states and the legal moves between them as data, and what the engine keeps of a task."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec


class Origin(StrEnum):
    SUBMIT = "submit"
    TICK = "tick"
    TRIGGER = "trigger"
    BACKFILL = "backfill"
    REPLAY = "replay"


class TaskState(StrEnum):
    HELD = "held"
    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    DEAD = "dead"
    CANCELLED = "cancelled"


LIVE_STATES = frozenset({TaskState.HELD, TaskState.SCHEDULED, TaskState.READY, TaskState.RUNNING})

TRANSITIONS: dict[TaskState, frozenset[TaskState]] = {
    TaskState.HELD: frozenset({TaskState.SCHEDULED, TaskState.READY, TaskState.CANCELLED}),
    TaskState.SCHEDULED: frozenset({TaskState.READY, TaskState.HELD, TaskState.CANCELLED}),
    TaskState.READY: frozenset({TaskState.RUNNING, TaskState.SCHEDULED, TaskState.HELD, TaskState.CANCELLED}),
    TaskState.RUNNING: frozenset(
        {
            TaskState.READY,
            TaskState.SCHEDULED,
            TaskState.COMPLETED,
            TaskState.FAILED,
            TaskState.DEAD,
            TaskState.CANCELLED,
        }
    ),
    TaskState.COMPLETED: frozenset(),
    TaskState.FAILED: frozenset(),
    TaskState.DEAD: frozenset(),
    TaskState.CANCELLED: frozenset(),
}


class AttemptOutcome(StrEnum):
    """How one try at a task ended. `lost`: its lease ran out; `timeout`: its time did, whatever the heartbeats said."""

    COMPLETED = "completed"
    FAILED = "failed"
    LOST = "lost"
    TIMEOUT = "timeout"
    RELEASED = "released"
    CANCELLED = "cancelled"


class TaskError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """What went wrong in an attempt, as its worker told it, or as the engine explains it."""

    message: str
    kind: str | None = None
    trace: str | None = None


class TaskKey(NamedTuple):
    """An idempotency key, and a fingerprint of what was submitted under it."""

    key: str
    fingerprint: bytes


class NewTask(NamedTuple):
    """A task to be. `run_at` None means now, `delay_seconds` counts from the database's now."""

    id: UUID
    tenant_id: UUID
    partition: int
    queue: str
    type: str
    target: str
    payload: str
    origin: Origin
    priority: int
    max_attempts: int
    retry: str
    timeout_seconds: float
    labels: str
    run_at: datetime | None = None
    delay_seconds: float | None = None
    schedule_id: UUID | None = None
    schedule_name: str | None = None
    scheduled_for: datetime | None = None
    traceparent: str | None = None
    key: TaskKey | None = None
    # Handed to a worker that waits for it, in the very write that makes it: it begins as running, under fence 1.
    lease_owner: str | None = None
    lease_seconds: float = 30.0
    deadline_seconds: float | None = None
    # Where in the blob store the payload is, if it is too large for the row; `payload` is null then.
    payload_ref: str | None = None
    # Shares of work inside a tenant go by this; empty: none.
    fair_key: str = ""


class ClaimedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task in the hands of a worker: the fence proves the right to finish it."""

    id: UUID
    type: str
    queue: str
    payload: msgspec.Raw
    attempt: int
    max_attempts: int
    fence: int
    lease_until: datetime
    lease_seconds: float
    scheduled_for: datetime | None
    schedule: str | None
    schedule_id: UUID | None
    origin: Origin
    timeout_seconds: float
    traceparent: str | None
    # Whose it is: a fleet's worker holds tasks of many.
    tenant_id: UUID = UUID(int=0)


class ClaimedTaskWithoutPayload(ClaimedTask, frozen=True, kw_only=True):
    """A claimed task whose payload still lies in the blob store; nobody outside the engine sees one."""

    payload_ref: str


def with_payload_ref(task: ClaimedTask, payload_ref: str | None) -> ClaimedTask:
    """The task, to be filled from the blob store if that is where its payload is."""
    return task if payload_ref is None else ClaimedTaskWithoutPayload(**msgspec.structs.asdict(task), payload_ref=payload_ref)


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A task as users see it, live or finished."""

    id: UUID
    tenant_id: UUID
    type: str
    queue: str
    target: dict[str, Any]
    payload: bytes
    state: TaskState
    priority: int
    run_at: datetime
    attempt: int
    max_attempts: int
    retry: bytes
    timeout_seconds: float
    labels: dict[str, str]
    origin: Origin
    schedule_id: UUID | None
    schedule: str | None
    scheduled_for: datetime | None
    progress_fraction: float | None
    progress_message: str | None
    result: bytes | None
    error: bytes | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    lease_until: datetime | None
    fence: int
    cancel_requested: bool
    traceparent: str | None
    # How its last attempt ended, and why there is no other: only of a finished task.
    outcome: AttemptOutcome | None = None
    reason: str | None = None
    # Where in the blob store the payload is that `payload` does not show.
    payload_ref: str | None = None
    fair_key: str = ""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try at a task. `outcome` None: it is running."""

    attempt: int
    fence: int
    worker: str | None
    started_at: datetime
    ended_at: datetime | None
    outcome: AttemptOutcome | None
    error: bytes | None


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    at: datetime
    attempt: int
    worker: str | None
    text: str


class LeasedTask(msgspec.Struct, frozen=True, kw_only=True):
    """What deciding about a failed or lost attempt needs to know. `deadline_at`: when its time is up, renewed or not."""

    id: UUID
    tenant_id: UUID
    queue: str
    fence: int
    attempt: int
    max_attempts: int
    retry: str
    cancel_requested: bool
    deadline_at: datetime
    first_started_at: datetime


class AttemptEnd(NamedTuple):
    """How an attempt ends under its fence, and what becomes of the task: `run_at` only with `scheduled`."""

    id: UUID
    tenant_id: UUID
    fence: int
    outcome: AttemptOutcome
    state: TaskState
    run_at: datetime | None
    error: str | None
    reason: str | None = None


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A task whose attempts are exhausted, kept with its payload. `replayed_as`: the task it was last replayed as."""

    task_id: UUID
    tenant_id: UUID
    queue: str
    type: str
    target: dict[str, Any]
    payload: bytes
    origin: Origin
    schedule_id: UUID | None
    schedule: str | None
    scheduled_for: datetime | None
    priority: int
    max_attempts: int
    retry: bytes
    timeout_seconds: float
    labels: dict[str, str]
    attempt: int
    reason: str
    error: bytes | None
    worker: str | None
    created_at: datetime
    died_at: datetime
    replayed_at: datetime | None
    replayed_as: UUID | None
    replays: int
    payload_ref: str | None = None
    fair_key: str = ""
