"""Tasks: origins, states, the allowed transitions between states, and the values that represent a task."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.targets import Target


class Origin(StrEnum):
    SUBMIT = "submit"
    TICK = "tick"
    TRIGGER = "trigger"
    BACKFILL = "backfill"
    REPLAY = "replay"
    HOOK = "hook"
    ALERT = "alert"


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
FINAL_STATES = frozenset(TaskState) - LIVE_STATES

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
    """How an attempt ended. `lost`: its lease expired; `timeout`: its time limit passed, regardless of heartbeats."""

    COMPLETED = "completed"
    FAILED = "failed"
    LOST = "lost"
    TIMEOUT = "timeout"
    RELEASED = "released"
    CANCELLED = "cancelled"


class TaskChangeKind(StrEnum):
    """What happened to a task.

    `submitted`: a new task from a submit, trigger, backfill, replay or tick. `released`: a worker gave it back, and the attempt
    does not count. `retried`: its attempt failed, timed out or was lost, and another attempt follows. `replaced`: a newer tick
    of its schedule replaced it (cancel_previous). `cancel_requested`: it is running, and its worker is requested to cancel it.
    `held`: its schedule was paused. `released_from_hold`: it is no longer held.
    """

    SUBMITTED = "submitted"
    CLAIMED = "claimed"
    RELEASED = "released"
    RETRIED = "retried"
    COMPLETED = "completed"
    FAILED = "failed"
    DEAD = "dead"
    CANCEL_REQUESTED = "cancel_requested"
    CANCELLED = "cancelled"
    REPLACED = "replaced"
    PROMOTED = "promoted"
    HELD = "held"
    RELEASED_FROM_HOLD = "released_from_hold"
    RESCHEDULED = "rescheduled"


class TaskChange(msgspec.Struct, frozen=True, gc=False):
    """One change of one task, as returned by the store verb that made it.

    `state` and `attempt` are the values after the change. `outcome` is set if the change ended an attempt, `worker` if a
    worker runs or ran the task, `priority`, `fair_key` and `run_at` if the task is ready, scheduled or held, and `origin` if
    it is new. A new task that is written by a direct handoff has the kind `submitted` and the state `running`.
    `waited_seconds` is the time in ready of a claimed task. `ran_seconds` and `timeout_seconds` belong to an attempt that
    ended.
    """

    id: UUID
    tenant_id: UUID
    queue: str
    type: str
    kind: TaskChangeKind
    state: TaskState
    attempt: int = 0
    outcome: AttemptOutcome | None = None
    schedule_id: UUID | None = None
    worker: str | None = None
    priority: int | None = None
    fair_key: str | None = None
    run_at: datetime | None = None
    origin: Origin | None = None
    waited_seconds: float | None = None
    ran_seconds: float | None = None
    timeout_seconds: float | None = None
    # That of the submit. Not set if the task was only promoted, held, released from hold or rescheduled.
    traceparent: str | None = None


class TaskError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The error of an attempt, reported by its worker or set by the server."""

    message: str
    kind: str | None = None
    trace: str | None = None


class TaskKey(NamedTuple):
    """An idempotency key, and a hash of the submission that used it."""

    key: str
    fingerprint: bytes


class NewTask(NamedTuple):
    """A task to be written. `run_at` None: now. `delay_seconds` counts from the current time of the database."""

    id: UUID
    tenant_id: UUID
    partition: int
    queue: str
    type: str
    target: str
    payload: bytes
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
    # Set by a direct handoff: the task is written as running, with fence 1.
    lease_owner: str | None = None
    lease_seconds: float = 30.0
    total_seconds: float | None = None
    # The key of the payload in the blob store, if it is too large for the row. `payload` is then null.
    payload_ref: str | None = None
    # Empty: no fair key.
    fair_key: str = ""
    # The stored form of core/hooks.py.
    hooks: str | None = None


class ClaimedTask(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task that a worker has claimed. Reports on it must contain the fence."""

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
    # A worker of a fleet claims tasks of several tenants.
    tenant_id: UUID = UUID(int=0)


class ClaimedTaskWithoutPayload(ClaimedTask, frozen=True, kw_only=True, gc=False):
    """A claimed task whose payload has not been read from the blob store yet. Used only inside the server."""

    payload_ref: str


def with_payload_ref(task: ClaimedTask, payload_ref: str | None) -> ClaimedTask:
    """Return the task, as ClaimedTaskWithoutPayload if its payload is in the blob store."""
    return task if payload_ref is None else ClaimedTaskWithoutPayload(**msgspec.structs.asdict(task), payload_ref=payload_ref)


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An unfinished or finished task with all its public fields."""

    id: UUID
    tenant_id: UUID
    type: str
    queue: str
    target: Target
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
    # How the last attempt ended and why no other followed. Set only if the task is finished.
    outcome: AttemptOutcome | None = None
    reason: str | None = None
    # The key of the payload in the blob store. `payload` is then null.
    payload_ref: str | None = None
    fair_key: str = ""
    hooks: str | None = None
    # What the destination of a delivery answered to the last attempt, as JSON.
    response: bytes | None = None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of a task. `outcome` None: it is running."""

    attempt: int
    fence: int
    worker: str | None
    started_at: datetime
    ended_at: datetime | None
    outcome: AttemptOutcome | None
    error: bytes | None
    response: bytes | None = None


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    at: datetime
    attempt: int
    worker: str | None
    text: str


class LeasedTask(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a running task that a retry decision depends on. `deadline_at`: when the attempt times out."""

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
    """The end of an attempt, with its fence, and the next state of the task.

    `run_at` is set only with `scheduled`. `response`: what the destination of a delivery answered, as JSON.
    """

    id: UUID
    tenant_id: UUID
    fence: int
    outcome: AttemptOutcome
    state: TaskState
    run_at: datetime | None
    error: str | None
    reason: str | None = None
    response: str | None = None


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A task that is not retried, kept with its payload. `replayed_as`: the task that the last replay created."""

    task_id: UUID
    tenant_id: UUID
    queue: str
    type: str
    target: Target
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
    hooks: str | None = None
