"""Responses with schedules, tasks, dead letters and tenants, built from the domain objects.

The API documents and encodes these structs, and the SDK returns them.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from everbeat.core.definitions import CalendarFilter, DstPolicy, number, optional_rfc3339, rfc3339, trigger_fields
from everbeat.core.deliveries import DeliveryResponse
from everbeat.core.hooks import Hooks, hooks_from_text, shown_hooks
from everbeat.core.schedules import CatchUp, Overlap, Retry, Schedule, Status
from everbeat.core.target_secrets import shown_target
from everbeat.core.targets import Target
from everbeat.core.tasks import Attempt, AttemptOutcome, DeadLetter, LogLine, Origin, TaskError, TaskRecord, TaskState
from everbeat.core.tenants import Tenant
from everbeat.core.ticks import SkipReason

Time = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
Id = Annotated[str, msgspec.Meta(extra_json_schema={"format": "uuid"})]
RegistrationStatus = Literal["created", "updated", "unchanged"]
LedgerOutcome = Literal["fired", "skipped", "upcoming", "missing"]
Absent = msgspec.UnsetType
_ABSENT = msgspec.UNSET

_decode_retry = msgspec.json.Decoder(Retry).decode
_decode_response = msgspec.json.Decoder(DeliveryResponse).decode
_decode_error = msgspec.json.Decoder(TaskError).decode


class ScheduleResponse(msgspec.Struct, kw_only=True):
    """A schedule: its definition and its state. Of the trigger fields, only the one in use is set."""

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
    hooks: Hooks
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
    """The result for one schedule of a batch."""

    id: Id
    name: str
    status: RegistrationStatus


class TickResponse(msgspec.Struct, kw_only=True):
    """One tick of the ledger. A range of skipped ticks is one item, with `until` and `count`."""

    scheduled_for: Time
    outcome: LedgerOutcome
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
    """A task, unfinished or finished. `result` and `error` were reported by its worker; large ones are truncated, with a note.

    `payload_omitted`: the payload is large and is not part of this response. Get the task by its id to read the payload.
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
    hooks: Hooks
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
    """One attempt of a task. It has no outcome while it runs. `response`: what the destination of a delivery answered."""

    attempt: int
    fence: int
    worker: str | None
    started_at: Time
    ended_at: Time | None
    outcome: AttemptOutcome | None
    error: TaskError | None
    duration_ms: float | int | None
    response: DeliveryResponse | None


class LogLineResponse(msgspec.Struct, kw_only=True):
    at: Time
    attempt: int
    worker: str | None
    text: str


class DeadLetterResponse(msgspec.Struct, kw_only=True):
    """A task that is not retried, with the reason and the id of the task that its last replay created."""

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


class TenantResponse(msgspec.Struct, kw_only=True):
    """A tenant with its weight, relative to other tenants, and its quotas. A quota of null means no limit."""

    id: Id
    name: str
    weight: float
    max_schedules: int | None
    max_ready: int | None
    max_running: int | None
    submits_per_second: float | None
    max_payload_bytes: int | None
    min_priority: int | None
    retention_days: float | None
    revision: int
    created_at: Time
    updated_at: Time


# From domain objects


def _raw(encoded: bytes | None) -> msgspec.Raw | None:
    return None if encoded is None else msgspec.Raw(encoded)


def _error(encoded: bytes | None) -> TaskError | None:
    return None if encoded is None else _decode_error(encoded)


@lru_cache(256)
def _whole_numbers(retry: Retry) -> Retry:
    """Return the policy with whole numbers as int, so that the JSON has no decimal points."""
    return msgspec.structs.replace(
        retry,
        base_seconds=number(retry.base_seconds),
        factor=number(retry.factor),
        max_seconds=number(retry.max_seconds),
    )


def optional_id(id_: UUID | None) -> str | None:
    return None if id_ is None else str(id_)


def _duration_ms(started_at: datetime | None, ended_at: datetime | None) -> float | None:
    if started_at is None or ended_at is None:
        return None
    return round((ended_at - started_at).total_seconds() * 1000, 3)


def task_response(task: TaskRecord) -> TaskResponse:
    progress = None
    if task.progress_fraction is not None or task.progress_message is not None:
        progress = ProgressResponse(task.progress_fraction, task.progress_message)
    return TaskResponse(
        id=str(task.id),
        type=task.type,
        queue=task.queue,
        target=shown_target(task.target),
        payload=msgspec.Raw(task.payload),
        payload_omitted=task.payload_ref is not None,
        state=task.state,
        priority=task.priority,
        run_at=rfc3339(task.run_at),
        attempt=task.attempt,
        max_attempts=task.max_attempts,
        retry=_whole_numbers(_decode_retry(task.retry)),
        timeout_seconds=number(task.timeout_seconds),
        labels=task.labels,
        hooks=shown_hooks(hooks_from_text(task.hooks)),
        fair_key=task.fair_key or None,
        origin=task.origin,
        schedule_id=optional_id(task.schedule_id),
        schedule=task.schedule,
        scheduled_for=optional_rfc3339(task.scheduled_for),
        progress=progress,
        result=_raw(task.result),
        error=_error(task.error),
        reason=task.reason,
        created_at=rfc3339(task.created_at),
        started_at=optional_rfc3339(task.started_at),
        finished_at=optional_rfc3339(task.finished_at),
        duration_ms=_duration_ms(task.started_at, task.finished_at),
        worker=task.worker,
        lease_until=optional_rfc3339(task.lease_until),
        cancel_requested=task.cancel_requested,
    )


def attempt_response(attempt: Attempt) -> AttemptResponse:
    return AttemptResponse(
        attempt=attempt.attempt,
        fence=attempt.fence,
        worker=attempt.worker,
        started_at=rfc3339(attempt.started_at),
        ended_at=optional_rfc3339(attempt.ended_at),
        outcome=attempt.outcome,
        error=_error(attempt.error),
        duration_ms=_duration_ms(attempt.started_at, attempt.ended_at),
        response=None if attempt.response is None else _decode_response(attempt.response),
    )


def log_response(line: LogLine) -> LogLineResponse:
    return LogLineResponse(at=rfc3339(line.at), attempt=line.attempt, worker=line.worker, text=line.text)


def dead_letter_response(letter: DeadLetter) -> DeadLetterResponse:
    return DeadLetterResponse(
        task_id=str(letter.task_id),
        type=letter.type,
        queue=letter.queue,
        target=shown_target(letter.target),
        payload=msgspec.Raw(letter.payload),
        payload_omitted=letter.payload_ref is not None,
        origin=letter.origin,
        schedule_id=optional_id(letter.schedule_id),
        schedule=letter.schedule,
        scheduled_for=optional_rfc3339(letter.scheduled_for),
        priority=letter.priority,
        labels=letter.labels,
        fair_key=letter.fair_key or None,
        attempts=letter.attempt,
        max_attempts=letter.max_attempts,
        reason=letter.reason,
        error=_error(letter.error),
        worker=letter.worker,
        created_at=rfc3339(letter.created_at),
        died_at=rfc3339(letter.died_at),
        replayed_at=optional_rfc3339(letter.replayed_at),
        replayed_as=optional_id(letter.replayed_as),
        replays=letter.replays,
    )


def schedule_response(schedule: Schedule) -> ScheduleResponse:
    from everbeat.core.describe import describe  # imported here because clients import this module but do not need it

    spec, rule = schedule.spec, schedule.spec.rule
    return ScheduleResponse(
        id=str(schedule.id),
        name=spec.name,
        description=spec.description,
        **trigger_fields(rule),
        timezone=rule.timezone,
        target=shown_target(spec.target),
        payload=msgspec.Raw(spec.payload),
        overlap=spec.overlap,
        max_concurrent=spec.concurrency,
        catch_up=spec.catch_up,
        misfire_grace_seconds=number(spec.misfire_grace_seconds),
        jitter_seconds=number(spec.jitter_seconds),
        dst=DstPolicy(gap=rule.gap, fold=rule.fold),
        calendars=CalendarFilter(exclude=list(rule.exclude), only=list(rule.only)),
        starts_at=optional_rfc3339(rule.starts_at),
        ends_at=optional_rfc3339(rule.ends_at),
        priority=spec.priority,
        max_attempts=spec.max_attempts,
        retry=_whole_numbers(spec.retry),
        timeout_seconds=number(spec.timeout_seconds),
        labels=spec.labels,
        hooks=shown_hooks(spec.hooks),
        enabled=spec.enabled,
        status=schedule.status,
        next_tick_at=optional_rfc3339(schedule.next_tick_at),
        last_tick_at=optional_rfc3339(schedule.last_tick_at),
        revision=schedule.revision,
        partition=schedule.partition,
        trigger_text=describe(rule, schedule.id),
        fault=schedule.fault,
        note=schedule.note,
        created_at=rfc3339(schedule.created_at),
        updated_at=rfc3339(schedule.updated_at),
    )


def tenant_response(tenant: Tenant) -> TenantResponse:
    return TenantResponse(
        id=str(tenant.id),
        name=tenant.name,
        weight=tenant.weight,
        **msgspec.structs.asdict(tenant.quotas),
        revision=tenant.revision,
        created_at=rfc3339(tenant.created_at),
        updated_at=rfc3339(tenant.updated_at),
    )
