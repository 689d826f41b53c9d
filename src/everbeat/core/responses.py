"""What the API returns of schedules, tasks and dead letters: the API documents these structs, and the SDK returns them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from everbeat.core.definitions import CalendarFilter, DstPolicy
from everbeat.core.schedules import CatchUp, Overlap, Retry, Status
from everbeat.core.targets import Target
from everbeat.core.tasks import AttemptOutcome, Origin, TaskError, TaskState
from everbeat.core.ticks import SkipReason

Time = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
Id = Annotated[str, msgspec.Meta(extra_json_schema={"format": "uuid"})]
Absent = msgspec.UnsetType
_ABSENT = msgspec.UNSET


class ScheduleResponse(msgspec.Struct, kw_only=True):
    """A schedule: its definition and its state. Only the field of its kind of trigger is set."""

    id: Id
    name: str
    description: str
    cron: str | Absent = _ABSENT
    every_seconds: float | int | Absent = _ABSENT
    rrule: str | Absent = _ABSENT
    at: Time | Absent = _ABSENT
    anchor: Time | Absent = _ABSENT
    timezone: str
    target: Target
    payload: Any
    overlap: Overlap
    max_concurrent: int
    catch_up: CatchUp
    misfire_grace_seconds: float | int
    jitter_seconds: float | int
    dst: DstPolicy
    calendars: CalendarFilter
    starts_at: Time | None
    ends_at: Time | None
    priority: int
    max_attempts: int
    retry: Retry
    timeout_seconds: float | int
    labels: dict[str, str]
    enabled: bool
    status: Status
    next_tick_at: Time | None
    last_tick_at: Time | None
    revision: int
    partition: int
    trigger_text: str
    fault: str | None
    note: str | None
    created_at: Time
    updated_at: Time


class RegisteredScheduleResponse(msgspec.Struct):
    """The result of one schedule of a batch."""

    id: Id
    name: str
    status: Literal["created", "updated", "unchanged"]


class TickResponse(msgspec.Struct, kw_only=True):
    """One tick of the ledger. A range of skipped ticks is one item, with `until` and `count`."""

    scheduled_for: Time
    outcome: Literal["fired", "skipped", "upcoming", "missing"]
    reason: SkipReason | None
    task_id: Id | None
    fired_at: Time | None
    lag_ms: float | None
    until: Time | Absent = _ABSENT
    count: int | Absent = _ABSENT


class ProgressResponse(msgspec.Struct):
    fraction: float | int | None
    message: str | None


class TaskResponse(msgspec.Struct, kw_only=True):
    """A task, live or finished. `result` and `error` are what its worker reported; large ones are cut, with a note.

    `payload_omitted`: the payload is large and not part of this response; the task by its id has it.
    """

    id: Id
    type: str
    queue: str
    target: Target
    payload: Any
    payload_omitted: bool
    state: TaskState
    priority: int
    run_at: Time
    attempt: int
    max_attempts: int
    retry: Retry
    timeout_seconds: float | int
    labels: dict[str, str]
    fair_key: str | None
    origin: Origin
    schedule_id: Id | None
    schedule: str | None
    scheduled_for: Time | None
    progress: ProgressResponse | None
    result: Any
    error: TaskError | None
    reason: str | None
    created_at: Time
    started_at: Time | None
    finished_at: Time | None
    duration_ms: float | int | None
    worker: str | None
    lease_until: Time | None
    cancel_requested: bool


class AttemptResponse(msgspec.Struct, kw_only=True):
    """One attempt at a task. It has no outcome while it runs."""

    attempt: int
    fence: int
    worker: str | None
    started_at: Time
    ended_at: Time | None
    outcome: AttemptOutcome | None
    error: TaskError | None
    duration_ms: float | int | None


class LogLineResponse(msgspec.Struct, kw_only=True):
    at: Time
    attempt: int
    worker: str | None
    text: str


class DeadLetterResponse(msgspec.Struct, kw_only=True):
    """A task whose attempts are exhausted, with the reason and the task of its last replay."""

    task_id: Id
    type: str
    queue: str
    target: Target
    payload: Any
    payload_omitted: bool
    origin: Origin
    schedule_id: Id | None
    schedule: str | None
    scheduled_for: Time | None
    priority: int
    labels: dict[str, str]
    fair_key: str | None
    attempts: int
    max_attempts: int
    reason: str
    error: TaskError | None
    worker: str | None
    created_at: Time
    died_at: Time
    replayed_at: Time | None
    replayed_as: Id | None
    replays: int


class ReplayResponse(msgspec.Struct):
    """The number of new tasks and the ids of the first 100. If `has_more`, repeat the request."""

    count: int
    ids: list[Id]
    has_more: bool


class PurgeResponse(msgspec.Struct):
    count: int


class BackfillResponse(msgspec.Struct):
    """The number of tasks created, or to be created, and the first 100 of their ticks."""

    count: int
    ticks: list[Time]
