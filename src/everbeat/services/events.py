"""Events of the engine for telemetry, which turns them into logs and metrics. They are not those of the event stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.alerts import AlertKind
from everbeat.core.audit_findings import AuditFinding
from everbeat.core.circuit_breakers import BreakerState
from everbeat.core.service_levels import Level
from everbeat.store.samples import ClusterSample


class TicksFired(NamedTuple):
    """`lags_seconds`: from the tick to its firing. `skews_seconds`: from when it was due, which is later with jitter."""

    lags_seconds: list[float]
    skews_seconds: Sequence[float] = ()


class TicksSkipped(NamedTuple):
    counts: Mapping[str, int]


class TicksRefused(msgspec.Struct, frozen=True):
    """Firings that changed nothing, because another node has fired, changed or taken over the schedule."""

    count: int


class TicksAlreadyRecorded(msgspec.Struct, frozen=True):
    """Ticks that did not fire because the ledger already had a row for them. This is the last guard against firing twice."""

    count: int


class RowsLocked(NamedTuple):
    """A batch skipped rows that another transaction has locked. They are tried again. `id`: the row locked for longest."""

    verb: str
    count: int  # type: ignore[assignment]  # it hides tuple.count, which is not used
    longest_seconds: float
    id: UUID


class CapacityChanged(NamedTuple):
    """A node takes fewer partitions, because it fires late, or more again. `capacity`: 1 is the usual part."""

    capacity: float
    is_lowered: bool
    lag_seconds: float | None


class LagHigh(NamedTuple):
    lag_seconds: float
    waiting: int


class ScheduleFaulted(NamedTuple):
    schedule_id: UUID
    reason: str


class OwnershipChanged(NamedTuple):
    owned: int
    gained: int
    lost: int
    live_nodes: int


class OwnershipLost(NamedTuple):
    """The lease expired before it could be renewed, so this node stopped firing."""

    partitions: int


class ClockSetBack(NamedTuple):
    seconds: float


class SchemaNewer(NamedTuple):
    """The database was migrated by a newer version while this node was running. If it is compatible, the node continues."""

    version: int
    supported: int
    is_compatible: bool = False


class PauseChanged(NamedTuple):
    """A pause has begun or ended. `scope`: queue, tenant or all."""

    change: str
    scope: str
    queue: str | None
    note: str | None


class ZonesChanged(NamedTuple):
    """The tz database has changed on this node. `moved`: the number of schedules whose next tick has moved."""

    zones: list[str]
    moved: int


class ZonesOutdated(NamedTuple):
    """Another node has a newer version of these zones."""

    zones: list[str]


class TicksOverdue(msgspec.Struct, frozen=True):
    count: int
    oldest_seconds: float
    names: list[str]


class FindingsOpened(NamedTuple):
    """The auditor has found something new."""

    findings: list[AuditFinding]


class FindingsResolved(NamedTuple):
    findings: list[AuditFinding]


class FindingsCounted(NamedTuple):
    """The number of open findings by kind, and when the auditor has last completed a run, on any node."""

    open: Mapping[str, int]
    ran_at: datetime | None


class LoopRan(NamedTuple):
    loop: str
    seconds: float


class LoopFailed(NamedTuple):
    loop: str
    error: Exception
    is_expected: bool


class EventLoopBlocked(NamedTuple):
    seconds: float


class EventLoopDelayed(NamedTuple):
    """How much later than planned the event loop has run a timer."""

    seconds: float


class LevelsReported(NamedTuple):
    """How the service level objectives are met. `valid_seconds`: as for a sample."""

    levels: list[Level]
    valid_seconds: float


class ClusterSampled(NamedTuple):
    """`valid_seconds`: for how long the sample may be shown, if no newer one follows."""

    sample: ClusterSample
    valid_seconds: float


class LoopBlocked(NamedTuple):
    """An iteration of a loop still runs after its deadline. `seconds`: for how long it has run."""

    loop: str
    seconds: float


class HeartbeatSent(NamedTuple):
    """A heartbeat to `heartbeat_url`: `ok`, `fail` with the problems, or `error` if it was not accepted."""

    outcome: str
    problems: list[str]


class Pruned(msgspec.Struct, frozen=True):
    what: str
    count: int


class MonthArchived(NamedTuple):
    table: str
    month: str
    rows: int
    bytes: int
    seconds: float


class ArchiveFailed(NamedTuple):
    """A month could not be archived, and is kept."""

    table: str
    month: str
    error: str


class MonthsToArchive(msgspec.Struct, frozen=True):
    """How many months of tables are past their retention and not archived and removed yet."""

    count: int


ArchiveEvent = MonthArchived | ArchiveFailed | MonthsToArchive


class UnservedType(NamedTuple):
    """A queue and type of a tenant with ready tasks for which no live worker asks. `reason`: since when, as text."""

    tenant_id: UUID
    queue: str
    type: str
    reason: str


class TasksWithoutWorker(msgspec.Struct, frozen=True):
    """The number of unserved queues and types, and those that were not reported before."""

    count: int
    new: list[UnservedType]


class BlobCallFailed(NamedTuple):
    """The blob store was unavailable or refused access."""

    verb: str
    error: str


class RequestRefused(NamedTuple):
    """A request that was refused before it reached its handler. `problem`: the type of the error response."""

    problem: str


class ProxyNotTrusted(NamedTuple):
    """Requests come through a proxy that is not in trusted_proxies, so all its clients share one address and one rate limit."""

    address: str


class TasksSubmitted(msgspec.Struct, frozen=True):
    count: int


class TasksClaimed(msgspec.Struct, frozen=True):
    """`waited_seconds`: how long each of them was ready. A task of a direct handoff did not wait."""

    count: int
    waited_seconds: list[float] = []


class TasksPromoted(msgspec.Struct, frozen=True):
    count: int


class TasksFinished(msgspec.Struct, frozen=True):
    state: str
    count: int


class AttemptEnded(NamedTuple):
    """An attempt that did not complete its task, and the resulting state of the task."""

    outcome: str
    state: str


class AttemptRun(NamedTuple):
    """How long an attempt ran, of the time that it was allowed to."""

    outcome: str
    ran_seconds: float
    timeout_seconds: float


class AttemptsRan(NamedTuple):
    """Attempts that have ended, whatever their outcome."""

    runs: list[AttemptRun]


class LeasesExpired(msgspec.Struct, frozen=True):
    """Attempts that the reaper has ended, because their worker sent no heartbeat in time or they exceeded their timeout."""

    count: int


class StaleWritesRefused(NamedTuple):
    """Reports on leases that were lost before. They changed nothing. `operation`: `complete`, `end` or `heartbeat`."""

    operation: str
    count: int  # type: ignore[assignment]  # it hides tuple.count, which is not used


class GroupCommitted(NamedTuple):
    """A batch of requests was written together."""

    operation: str
    rows: int


class DeliveryEnded(NamedTuple):
    """A delivery has ended. `outcome`: `delivered`, `accepted`, `retry`, `refused`, or why it was stopped.

    `status`: the class of the HTTP status, such as `2xx`; empty without a response, and for other kinds of targets.
    """

    kind: str
    outcome: str
    seconds: float
    status: str = ""


class DeliveryKindUnavailable(NamedTuple):
    """This node cannot deliver to a kind of target that it is configured for."""

    kind: str
    error: str


class CircuitBreakerChanged(NamedTuple):
    """The circuit breaker of a destination has changed. `not_closed`: how many of this node are open or half-open."""

    tenant_id: UUID | None
    destination: str
    state: BreakerState
    open_seconds: float
    not_closed: int


class CheckChanged(NamedTuple):
    """The state of a check has changed. `reason`: why it is down."""

    tenant_id: UUID
    check: str
    from_state: str
    to_state: str
    reason: str | None


class PingsReceived(NamedTuple):
    """Pings by kind."""

    counts: Mapping[str, int]


DeliveryEvent = DeliveryEnded | DeliveryKindUnavailable | CircuitBreakerChanged

FindingEvent = FindingsOpened | FindingsResolved | FindingsCounted


class IncidentsOpen(NamedTuple):
    """The unresolved incidents of alert rules by kind, as the node that evaluates them has counted them."""

    counts: Mapping[str, int]


class IncidentsChanged(NamedTuple):
    """Incidents that were opened and resolved, by kind, the messages that were written by event, and their recipients."""

    opened: Mapping[AlertKind, int]
    resolved: Mapping[AlertKind, int]
    messages: Mapping[str, int]
    tasks: int


AlertEvent = IncidentsOpen | IncidentsChanged

TaskEvent = TasksSubmitted | TasksClaimed | TasksPromoted | TasksFinished | AttemptEnded

Measurement = (
    AttemptsRan | LeasesExpired | StaleWritesRefused | GroupCommitted | EventLoopDelayed | ClusterSampled | LevelsReported
)

Event = (
    TaskEvent
    | Measurement
    | DeliveryEvent
    | TicksFired
    | TicksSkipped
    | TicksRefused
    | TicksAlreadyRecorded
    | RowsLocked
    | LagHigh
    | ScheduleFaulted
    | OwnershipChanged
    | OwnershipLost
    | CapacityChanged
    | ClockSetBack
    | SchemaNewer
    | ZonesChanged
    | ZonesOutdated
    | PauseChanged
    | CheckChanged
    | PingsReceived
    | TicksOverdue
    | FindingEvent
    | LoopRan
    | LoopFailed
    | EventLoopBlocked
    | LoopBlocked
    | HeartbeatSent
    | Pruned
    | TasksWithoutWorker
    | AlertEvent
    | RequestRefused
    | ProxyNotTrusted
    | BlobCallFailed
    | MonthArchived
    | ArchiveFailed
    | MonthsToArchive
)

Emit = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """Ignore an event: the default without telemetry."""
