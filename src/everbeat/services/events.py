"""Events of the engine for telemetry.py, which turns them into logs and metrics. They are not those of the event stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.circuit_breakers import BreakerState


class TicksFired(NamedTuple):
    lags_seconds: list[float]


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
    """The database was migrated by a newer version while this node was running."""

    version: int
    supported: int


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


class LoopRan(NamedTuple):
    loop: str
    seconds: float


class LoopFailed(NamedTuple):
    loop: str
    error: Exception
    is_expected: bool


class EventLoopBlocked(NamedTuple):
    seconds: float


class Pruned(msgspec.Struct, frozen=True):
    what: str
    count: int


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
    count: int


class TasksPromoted(msgspec.Struct, frozen=True):
    count: int


class TasksFinished(msgspec.Struct, frozen=True):
    state: str
    count: int


class AttemptEnded(NamedTuple):
    """An attempt that did not complete its task, and the resulting state of the task."""

    outcome: str
    state: str


class DeliveryEnded(NamedTuple):
    """A delivery has ended. `outcome`: `delivered`, `accepted`, `retry`, `refused`, or why it was stopped."""

    kind: str
    outcome: str
    seconds: float


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


DeliveryEvent = DeliveryEnded | DeliveryKindUnavailable | CircuitBreakerChanged

TaskEvent = TasksSubmitted | TasksClaimed | TasksPromoted | TasksFinished | AttemptEnded

Event = (
    TaskEvent
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
    | TicksOverdue
    | LoopRan
    | LoopFailed
    | EventLoopBlocked
    | Pruned
    | TasksWithoutWorker
    | RequestRefused
    | ProxyNotTrusted
    | BlobCallFailed
)

Emit = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """Ignore an event: the default without telemetry."""
