"""The shapes of what the API answers: they document it, and the tests hold every answer against them."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from everbeat.core.audit_log import AuditLogAction
from everbeat.core.calendars import WEEKDAYS
from everbeat.core.explain import Verdict
from everbeat.core.responses import (
    AttemptResponse,
    DeadLetterResponse,
    Id,
    LogLineResponse,
    RegisteredScheduleResponse,
    ScheduleResponse,
    TaskResponse,
    TickResponse,
    Time,
)
from everbeat.core.schedules import Status
from everbeat.core.tasks import Origin


class ScheduleList(msgspec.Struct):
    items: list[ScheduleResponse]
    next_cursor: str | None


class ScheduleBatchResponse(msgspec.Struct):
    items: list[RegisteredScheduleResponse]


class TickList(msgspec.Struct):
    items: list[TickResponse]
    next_cursor: str | None


class FactResponse(msgspec.Struct):
    """One thing that speaks for the verdict, and its value: a time as RFC 3339, a number, a text."""

    fact: str
    value: str | float | bool | None


class ExplanationResponse(msgspec.Struct):
    """`fired`: a task was made. `skipped`: none was, for a reason on record. `missing`: it should have run, and nothing is on
    record. `due`: its time has come, and it is about to be fired. `upcoming`: it will run. `will_skip`: it will not, unless
    that is changed. `not_scheduled`: there is no tick at that time. `not_registered`: the schedule was not there yet.
    `finished`: it does not run any more. `faulty`: it cannot be computed. `forgotten`: too long ago for the ledger."""

    verdict: Verdict
    explanation: str
    facts: list[FactResponse]


class TaskList(msgspec.Struct):
    """Newest first. With a filter that matches little a page may be short, or empty, and still not the last."""

    items: list[TaskResponse]
    next_cursor: str | None


class TaskIdsResponse(msgspec.Struct):
    """The ids of the tasks of a batch, in the order given."""

    ids: list[Id]


class AttemptList(msgspec.Struct):
    items: list[AttemptResponse]
    next_cursor: str | None


class LogLineList(msgspec.Struct):
    items: list[LogLineResponse]
    next_cursor: str | None


class ClaimedTaskResponse(msgspec.Struct):
    """A task in the hands of a worker: `fence` proves the right to finish it, until `lease_until`."""

    id: UUID
    type: str
    queue: str
    payload: Any
    attempt: int
    max_attempts: int
    fence: int
    lease_until: Time
    lease_seconds: float
    scheduled_for: Time | None
    schedule: str | None
    schedule_id: UUID | None
    origin: Origin
    timeout_seconds: float
    traceparent: str | None
    tenant_id: UUID


class ClaimedTasksResponse(msgspec.Struct):
    tasks: list[ClaimedTaskResponse]


class LeaseStatusResponse(msgspec.Struct):
    """`ok`: renewed. `cancel`: stop the task. `lost`: it is no longer yours."""

    id: UUID
    status: Literal["ok", "lost", "cancel"]
    lease_until: Time | None


class LeaseStatusesResponse(msgspec.Struct):
    leases: list[LeaseStatusResponse]


class DeadLetterList(msgspec.Struct):
    items: list[DeadLetterResponse]
    next_cursor: str | None


class PreviewTickResponse(msgspec.Struct):
    at: Time
    local: Time


class PreviewResponse(msgspec.Struct):
    description: str
    ticks: list[PreviewTickResponse]
    warnings: list[str]


class TickCountsResponse(msgspec.Struct, kw_only=True):
    """What was expected and what became of it; skipped ticks by reason."""

    expected: int
    fired: int
    skipped: dict[str, int]
    missing: int
    doubled: int


class TenantTickCounts(TickCountsResponse, kw_only=True):
    tenant_id: Id


class ScheduleTickCounts(TickCountsResponse, kw_only=True):
    id: Id
    name: str
    status: Status


class FaultyScheduleResponse(msgspec.Struct):
    """A schedule set aside because it cannot be computed or fired."""

    id: Id
    name: str
    fault: str | None


class AuditResponse(TickCountsResponse, kw_only=True):
    from_: Time = msgspec.field(name="from")
    to: Time
    tenants: list[TenantTickCounts]
    schedules: list[ScheduleTickCounts]
    faulty: list[FaultyScheduleResponse]
    next_cursor: str | None


class NodeResponse(msgspec.Struct, kw_only=True):
    id: Id
    name: str
    roles: list[str]
    version: str
    started_at: Time
    seen_at: Time
    is_alive: bool
    lag_seconds: float | None
    fired_per_second: float | None
    partitions: int


class PartitionResponse(msgspec.Struct):
    partition: int
    owner: Id | None
    epoch: int
    lease_until: Time | None


class QueueDepthResponse(msgspec.Struct):
    queue: str
    state: str
    count: int


class ClusterRates(msgspec.Struct):
    ticks_fired_per_second: float


class ClusterResponse(msgspec.Struct, kw_only=True):
    """The cluster as the database shows it; `lag_seconds` is that of the slowest live node."""

    now: Time
    nodes: list[NodeResponse]
    partitions: list[PartitionResponse]
    unowned: int
    lag_seconds: float | None
    queues: list[QueueDepthResponse]
    schedules: dict[str, int]
    faulty: int
    rates: ClusterRates


class Span(msgspec.Struct, forbid_unknown_fields=True):
    """From one day or moment to another."""

    from_: str = msgspec.field(name="from")
    to: str


Weekday = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(WEEKDAYS)})]


class CalendarResponse(msgspec.Struct, kw_only=True):
    name: str
    description: str
    dates: list[str | Span]
    weekdays: list[Weekday]
    yearly: list[str]
    intervals: list[Span]
    revision: int


class CalendarList(msgspec.Struct):
    items: list[CalendarResponse]
    next_cursor: str | None


class TenantResponse(msgspec.Struct, kw_only=True):
    """A tenant, its weight against those of the others, and its quotas; null is no limit."""

    id: Id
    name: str
    weight: float
    max_schedules: int | None
    max_ready: int | None
    max_running: int | None
    submits_per_second: float | None
    max_payload_bytes: int | None
    revision: int
    created_at: Time
    updated_at: Time


class TenantList(msgspec.Struct):
    items: list[TenantResponse]
    next_cursor: str | None


class KeyResponse(msgspec.Struct, kw_only=True):
    """An API key, without its secret; `hint` shows how it begins and ends."""

    id: Id
    tenant_id: Id
    name: str
    hint: str
    scopes: list[str]
    all_tenants: bool
    created_at: Time
    expires_at: Time | None
    last_used_at: Time | None
    revoked_at: Time | None


class NewKeyResponse(KeyResponse, kw_only=True):
    """The key with its secret, which is shown this once and kept nowhere."""

    key: str


class KeyList(msgspec.Struct):
    items: list[KeyResponse]
    next_cursor: str | None


class AuditLogEntryResponse(msgspec.Struct, kw_only=True):
    """Who did what to what. `detail` says more, differently for each action; payloads are never part of it."""

    id: Id
    at: Time
    tenant_id: Id
    actor: str
    key_id: Id | None
    action: AuditLogAction
    subject: str
    detail: dict[str, Any]
    request_id: str | None
    address: str | None


class AuditLogList(msgspec.Struct):
    items: list[AuditLogEntryResponse]
    next_cursor: str | None


class HealthResponse(msgspec.Struct):
    """`ok`, or what is wrong; other fields say more."""

    status: Literal["ok", "stuck", "unready"]
