"""The response bodies of the API. The OpenAPI document and the tests are based on them."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from everbeat.core.alerts import AlertKind, AlertMatch, When
from everbeat.core.audit_findings import FindingKind, FindingState, Resolution
from everbeat.core.audit_log import AuditLogAction
from everbeat.core.bulk import BulkAction, BulkState, BulkSubject
from everbeat.core.calendars import WEEKDAYS
from everbeat.core.circuit_breakers import BreakerState
from everbeat.core.endpoints import Method
from everbeat.core.explain import Verdict
from everbeat.core.incidents import IncidentResolution, IncidentState
from everbeat.core.pauses import PauseScope
from everbeat.core.quiet_times import QuietHours
from everbeat.core.responses import (
    AttemptResponse,
    DeadLetterResponse,
    Id,
    LogLineResponse,
    RegisteredScheduleResponse,
    ScheduleResponse,
    TaskResponse,
    TenantResponse,
    TickResponse,
    Time,
)
from everbeat.core.schedules import Status
from everbeat.core.service_levels import LevelStatus, Sli
from everbeat.core.targets import Target
from everbeat.core.tasks import Origin, TaskState
from everbeat.core.workers import WorkerState


class ScheduleList(msgspec.Struct):
    items: list[ScheduleResponse]
    next_cursor: str | None


class ScheduleBatchResponse(msgspec.Struct):
    items: list[RegisteredScheduleResponse]


class TickList(msgspec.Struct):
    items: list[TickResponse]
    next_cursor: str | None


class FactResponse(msgspec.Struct):
    """A fact that supports the verdict, and its value: a time as RFC 3339, a number, a boolean or a text.

    `link`: the path of the API that has more on it."""

    fact: str
    value: str | float | bool | None
    link: str | msgspec.UnsetType = msgspec.UNSET


class ExplanationResponse(msgspec.Struct):
    """`fired`: the tick created a task. `skipped`: it did not, for a recorded reason. `missing`: it should have fired, and
    nothing is recorded. `due`: it is about to fire. `upcoming`: it will fire. `will_skip`: it will be skipped, unless something
    is changed. `not_scheduled`: there is no tick at that time. `not_registered`: the schedule did not exist yet. `finished`:
    the schedule has ended. `faulty`: the schedule cannot be computed. `forgotten`: the time is older than the ledger."""

    verdict: Verdict
    explanation: str
    facts: list[FactResponse]


class TaskExplanationResponse(msgspec.Struct):
    """The state of a task, and what it waits for or how it ended. The fact `no_worker`: no live worker asks for such tasks."""

    state: TaskState
    explanation: str
    facts: list[FactResponse]


class TaskList(msgspec.Struct):
    """Newest first. With a filter that matches few tasks, a page may be short or empty although more pages follow."""

    items: list[TaskResponse]
    next_cursor: str | None


class TaskIdsResponse(msgspec.Struct):
    """The ids of the tasks of a batch, in the order of the request."""

    ids: list[UUID]


class AttemptList(msgspec.Struct):
    items: list[AttemptResponse]
    next_cursor: str | None


class LogLineList(msgspec.Struct):
    items: list[LogLineResponse]
    next_cursor: str | None


class ClaimedTaskResponse(msgspec.Struct, gc=False):
    """A task that a worker has claimed. With this `fence`, the worker can report on it until `lease_until`."""

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
    """`ok`: the lease was renewed. `cancel`: stop the task. `lost`: stop the task, because the lease is no longer yours."""

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
    """The number of expected ticks and their outcomes; skipped ticks by reason."""

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
    """A schedule that was paused because it cannot be computed or fired."""

    id: Id
    name: str
    fault: str | None


class AuditFindingResponse(msgspec.Struct, kw_only=True):
    """What the auditor found. `overdue`: the tick should have fired by now, and still can. `missing`: the ledger is past the
    tick, and has no row for it. `doubled`: the tick has more than one task. `late`: the tick fired later than allowed.
    `clock_set_back` and `unowned_partitions` concern the cluster, and have neither a tenant nor a schedule.

    `scheduled_for`: the tick, or the beginning of the fault. `resolution`: `fired`, `recorded`, `backfilled`, `removed` (the
    schedule), `over` (the fault), or `noted` (a late tick: there is nothing to resolve)."""

    id: Id
    tenant_id: Id | None
    schedule_id: Id | None
    schedule: str | None
    kind: FindingKind
    state: FindingState
    scheduled_for: Time
    found_at: Time
    resolved_at: Time | None
    resolution: Resolution | None
    details: dict[str, Any]


class AuditFindingList(msgspec.Struct):
    items: list[AuditFindingResponse]
    next_cursor: str | None


class CheckCounts(msgspec.Struct):
    """The expected pings of checks, and what became of them. `skipped`: the check was paused."""

    expected: int
    pinged: int
    failed: int
    missed: int
    skipped: int


class AuditResponse(TickCountsResponse, kw_only=True):
    """`findings`: the newest open findings of the auditor, at most 100; `GET /v1/audit/findings` lists all."""

    from_: Time = msgspec.field(name="from")
    to: Time
    tenants: list[TenantTickCounts]
    schedules: list[ScheduleTickCounts]
    faulty: list[FaultyScheduleResponse]
    findings: list[AuditFindingResponse]
    checks: CheckCounts
    next_cursor: str | None


class ServiceLevelResponse(msgspec.Struct):
    """How one objective is met. `good` and `total` are the events of the last 30 days; `ratio` is their quotient.

    `target` is the ratio that is promised. `budget_left`: the part of the error budget that is left, 1 if nothing was bad, and
    below 0 if the objective is missed. `burn_rates`: by window (`5m`, `1h`, `6h`, `30d`); at 1, the budget is used up in 30
    days. Values are null without events.
    """

    name: Sli
    target: float
    threshold_seconds: float | None
    status: LevelStatus
    good: int
    total: int
    ratio: float | None
    budget_left: float | None
    burn_rates: dict[str, float | None]


class ServiceLevelsResponse(msgspec.Struct):
    """The service levels of the cluster over the last `window_days`. `since`: the oldest counts in this window."""

    now: Time
    since: Time | None
    window_days: int
    objectives: list[ServiceLevelResponse]


class CircuitBreakerResponse(msgspec.Struct):
    """A destination that this node delivers nothing to for now (`open`), or one task at a time (`half_open`)."""

    destination: str
    state: BreakerState
    failures: int
    retry_in_seconds: float


class NodeDeliveriesResponse(msgspec.Struct):
    """The deliveries that run on a dispatcher node, and its circuit breakers that are not closed, of this tenant."""

    running: int
    circuit_breakers: list[CircuitBreakerResponse]


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
    capacity: float
    deliveries: NodeDeliveriesResponse | None
    partitions: int
    share: float


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


class BusySecondResponse(msgspec.Struct, kw_only=True):
    """The second of the next 24 hours with most ticks of the tenant. Not `is_complete`: not all schedules were counted."""

    at: Time
    ticks: int
    schedules: list[str]
    is_complete: bool


class TableSizeResponse(msgspec.Struct, kw_only=True):
    table: str
    bytes: int
    live_rows: int
    dead_rows: int


class SlowCallResponse(msgspec.Struct, kw_only=True):
    """The database calls of one verb on the node that answers, in the last five to ten minutes."""

    verb: str
    calls: int
    mean_ms: float
    max_ms: float


class CapacityAdviceResponse(msgspec.Struct, kw_only=True):
    about: str
    detail: str
    fix: str


class CapacityResponse(msgspec.Struct, kw_only=True):
    """How close the cluster is to its limits, and what to change. Tables, transactions and calls are shown to admins.

    `busiest_second` is null while it is computed, which takes up to two seconds for many schedules.
    """

    busiest_second: BusySecondResponse | None
    database_bytes: int | None
    free_bytes: int | None
    tables: list[TableSizeResponse]
    oldest_transaction_seconds: float | None
    slow_calls: list[SlowCallResponse]
    advice: list[CapacityAdviceResponse]


class ClusterResponse(msgspec.Struct, kw_only=True):
    """The state of the cluster, from the database. `lag_seconds` is that of the slowest live node."""

    now: Time
    nodes: list[NodeResponse]
    partitions: list[PartitionResponse]
    unowned: int
    lag_seconds: float | None
    queues: list[QueueDepthResponse]
    schedules: dict[str, int]
    faulty: int
    rates: ClusterRates
    capacity: CapacityResponse


class Span(msgspec.Struct, forbid_unknown_fields=True):
    """A range from one day or time to another."""

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


class EndpointResponse(msgspec.Struct, kw_only=True):
    """An endpoint. `***` stands for the value of a header that looks like a secret.

    `secret`: the signing secret, only in the response to the request that made it. `old_secret_until`: until when requests are
    also signed with the secret before the last rotation.
    """

    name: str
    url: str
    method: Method | None
    headers: dict[str, str]
    max_concurrent: int | None
    rate_per_second: float | int | None
    secret: str | msgspec.UnsetType = msgspec.UNSET
    old_secret_until: Time | None
    revision: int
    created_at: Time
    updated_at: Time


class EndpointList(msgspec.Struct):
    items: list[EndpointResponse]
    next_cursor: str | None


class CallbackResponse(msgspec.Struct):
    """`stale`: the attempt has ended, and nothing changed. `next`: what follows a failure."""

    status: Literal["ok", "stale"]
    next: Literal["retry", "dead", "failed"] | None = None


class CallbackHeartbeatResponse(msgspec.Struct):
    """`cancel`: the task is to be cancelled. `lease_until`: when the attempt ends unless its end is reported before."""

    status: Literal["ok", "stale", "cancel"]
    lease_until: Time | None


class BulkErrorResponse(msgspec.Struct):
    """Why one schedule or task was not changed. `subject`: the name of the schedule or the id of the task."""

    subject: str
    message: str


class BulkOperationResponse(msgspec.Struct, kw_only=True):
    """A bulk operation. `matched`: how many matched at its creation. `done` and `failed`: how many were handled so far.

    A dry run has no `id`. `errors`: the first 20.
    """

    id: UUID | None
    subject: BulkSubject
    action: BulkAction
    filter: dict[str, Any]
    note: str | None
    matched: int
    done: int
    failed: int
    state: BulkState
    errors: list[BulkErrorResponse]
    by: str
    created_at: Time
    finished_at: Time | None


class BulkOperationList(msgspec.Struct):
    items: list[BulkOperationResponse]
    next_cursor: str | None


class MaintenanceWindowResponse(msgspec.Struct, rename={"from_": "from"}):
    from_: Time
    to: Time


class QuietTimesResponse(msgspec.Struct, kw_only=True):
    """When an alert sends no notifications."""

    timezone: str
    hours: list[QuietHours]
    maintenance: list[MaintenanceWindowResponse]


class AlertResponse(msgspec.Struct, kw_only=True):
    """An alert rule. Secrets of its targets are shown as `***`."""

    name: str
    when: When
    match: AlertMatch
    notify: list[Target]
    quiet: QuietTimesResponse | None
    remind_seconds: float | int | None
    group_seconds: float | int
    notify_resolved: bool
    description: str
    labels: dict[str, str]
    enabled: bool
    revision: int
    created_at: Time
    updated_at: Time


class AlertList(msgspec.Struct):
    items: list[AlertResponse]
    next_cursor: str | None


class IncidentResponse(msgspec.Struct, kw_only=True):
    """An incident of an alert rule. `subject`: what it is about: a schedule, a type of tasks, or a queue. `count`: how often it
    happened since it opened. `occurred_at`: when it happened last. `notified_at`: when its notification was written. `link`:
    the path of this incident; `why`: the path of the explanation of the tick or the task."""

    id: Id
    alert: str
    kind: AlertKind
    subject: str
    schedule_id: Id | None
    task_id: Id | None
    summary: str
    details: dict[str, Any]
    state: IncidentState
    count: int
    occurred_at: Time
    opened_at: Time
    last_seen_at: Time
    resolved_at: Time | None
    resolution: IncidentResolution | None
    acknowledged_at: Time | None
    acknowledged_by: str | None
    note: str | None
    notified_at: Time | None
    reminders: int
    link: str
    why: str | None


class IncidentList(msgspec.Struct):
    items: list[IncidentResponse]
    next_cursor: str | None


class PauseResponse(msgspec.Struct, kw_only=True):
    """A pause: of a `queue`, of the `tenant`, or of `all` tenants. `until` null: until it is resumed."""

    id: UUID
    scope: PauseScope
    queue: str | None
    by: str
    note: str | None
    since: Time
    until: Time | None


class PauseList(msgspec.Struct):
    items: list[PauseResponse]
    next_cursor: str | None


class ResumeResponse(msgspec.Struct):
    """The pauses that have ended."""

    ended: list[PauseResponse]


class QueuePauseResponse(msgspec.Struct):
    """Who paused a queue, why, since when and until when. `scope`: what is paused: the queue, the tenant, or everything."""

    by: str
    note: str | None
    since: Time
    until: Time | None
    scope: PauseScope


class QueueResponse(msgspec.Struct, kw_only=True):
    """A queue: its unfinished tasks by state, for how long the oldest ready one could have run, the number of live workers that
    ask for it, and the worker that was seen last. A queue without live workers has `workers: 0`."""

    queue: str
    ready: int
    scheduled: int
    held: int
    running: int
    oldest_ready_seconds: float | None
    workers: int
    last_worker: str | None
    last_worker_seen_at: Time | None
    paused: QueuePauseResponse | None


class QueueList(msgspec.Struct):
    items: list[QueueResponse]
    next_cursor: str | None


class WorkerResponse(msgspec.Struct, kw_only=True):
    """A worker. `types` null: all types. `running`: tasks of this tenant. `all_tenants`: it belongs to a fleet of the operator.
    `node`: the node that saw it last. `live`: it asks for tasks. `stopping`: it finishes its tasks. `gone`: it has stopped, or
    was not seen for a minute, or for the length of its leases if they are longer."""

    worker: str
    queues: list[str]
    types: list[str] | None
    running: int
    concurrency: int | None
    version: str | None
    node: str
    all_tenants: bool
    started_at: Time
    last_seen_at: Time
    state: WorkerState


class WorkerList(msgspec.Struct):
    items: list[WorkerResponse]
    next_cursor: str | None


class TenantList(msgspec.Struct):
    items: list[TenantResponse]
    next_cursor: str | None


class KeyResponse(msgspec.Struct, kw_only=True):
    """An API key without its secret. `hint` shows the beginning and the end of the key."""

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
    """A new API key with its secret, which is shown only once and not stored."""

    key: str


class KeyList(msgspec.Struct):
    items: list[KeyResponse]
    next_cursor: str | None


class AuditLogEntryResponse(msgspec.Struct, kw_only=True):
    """Who changed what. The fields of `detail` depend on the action; payloads are never included."""

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
    """`ok`, or what is wrong. Other fields contain details."""

    status: Literal["ok", "stuck", "unready"]
