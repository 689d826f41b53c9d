"""Tasks: origins, states, the allowed transitions between states as data, and the values that represent a task."""

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

    `submitted`: a new task from a submit, trigger, backfill, replay or tick. `released`: a worker returned it without an
    attempt. `retried`: its attempt failed, timed out or was lost, and another attempt follows. `replaced`: a newer tick of its
    schedule takes its place (cancel_previous). `cancel_requested`: it is running, and its worker is requested to stop.
    `held`: its schedule was paused. `released_from_hold`: it no longer waits behind another task of its schedule.
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


class TaskChange(NamedTuple):
    """One change of one task, as the store verb that made it returns it.

    `state` and `attempt` are the values after the change. `outcome` is set if the change ended an attempt, `worker` if a
    worker runs or ran the task, `priority`, `fair_key` and `run_at` if the task waits (ready, scheduled or held), `origin` if
    it is new. A new task that is handed directly to a waiting worker has the kind `submitted` and the state `running`.
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


class TaskError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The error of an attempt, reported by its worker or set by the engine."""

    message: str
    kind: str | None = None
    trace: str | None = None


class TaskKey(NamedTuple):
    """An idempotency key, and a hash of the submission that used it."""

    key: str
    fingerprint: bytes


class NewTask(NamedTuple):
    """A task to be written. `run_at` None: now. `delay_seconds` counts from the database's current time."""

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
    # Direct handoff to a waiting worker: the task is written as running, with fence 1.
    lease_owner: str | None = None
    lease_seconds: float = 30.0
    deadline_seconds: float | None = None
    # Key of the payload in the blob store, if it is too large for the row; `payload` is null then.
    payload_ref: str | None = None
    # Fair keys get equal parts of the tenant's share; empty: no fair key.
    fair_key: str = ""


class ClaimedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that a worker has claimed. Reports about it must contain the fence."""

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


class ClaimedTaskWithoutPayload(ClaimedTask, frozen=True, kw_only=True):
    """A claimed task whose payload has not been read from the blob store yet; used only inside the engine."""

    payload_ref: str


def with_payload_ref(task: ClaimedTask, payload_ref: str | None) -> ClaimedTask:
    """The task, as ClaimedTaskWithoutPayload if its payload is in the blob store."""
    return task if payload_ref is None else ClaimedTaskWithoutPayload(**msgspec.structs.asdict(task), payload_ref=payload_ref)


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A task with all its public fields, unfinished or finished."""

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
    # How the last attempt ended, and why it was the last; set only if the task is finished.
    outcome: AttemptOutcome | None = None
    reason: str | None = None
    # Key of the payload in the blob store; `payload` is null then.
    payload_ref: str | None = None
    fair_key: str = ""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of a task. `outcome` None: it is running."""

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
    """The fields of a running task that the retry decision needs. `deadline_at`: when the attempt times out."""

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
    """The end of an attempt with its fence, and the next state of the task. `run_at` is set only with `scheduled`."""

    id: UUID
    tenant_id: UUID
    fence: int
    outcome: AttemptOutcome
    state: TaskState
    run_at: datetime | None
    error: str | None
    reason: str | None = None


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A task that is not retried, kept with its payload. `replayed_as`: the task of its last replay."""

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
