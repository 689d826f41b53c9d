"""What the engine tells about itself; telemetry.py turns these into logs and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple
from uuid import UUID

import msgspec


class TicksFired(NamedTuple):
    lags_seconds: list[float]


class TicksSkipped(NamedTuple):
    counts: Mapping[str, int]


class TicksRefused(msgspec.Struct, frozen=True):
    """Firings that lost a guard: somebody else fired, edited or owns them. Nothing was changed."""

    count: int


class TicksAlreadyRecorded(msgspec.Struct, frozen=True):
    """The ledger already held these ticks: the last guard spoke."""

    count: int


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
    """The lease ran out before it could be renewed: this node stopped firing by itself."""

    partitions: int


class ClockSetBack(NamedTuple):
    seconds: float


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


class BlobCallFailed(NamedTuple):
    """The blob store is away, or refuses us."""

    verb: str
    error: str


class RequestRefused(NamedTuple):
    """A request that did not get past the gate, by the kind of its problem."""

    problem: str


class ProxyNotTrusted(NamedTuple):
    """Requests come through a proxy that the settings do not name: everybody behind it shares one address and its limits."""

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
    """An attempt that did not complete its task, and the state the task went to."""

    outcome: str
    state: str


TaskEvent = TasksSubmitted | TasksClaimed | TasksPromoted | TasksFinished | AttemptEnded

Event = (
    TaskEvent
    | TicksFired
    | TicksSkipped
    | TicksRefused
    | TicksAlreadyRecorded
    | LagHigh
    | ScheduleFaulted
    | OwnershipChanged
    | OwnershipLost
    | ClockSetBack
    | TicksOverdue
    | LoopRan
    | LoopFailed
    | EventLoopBlocked
    | Pruned
    | RequestRefused
    | ProxyNotTrusted
    | BlobCallFailed
)

Emit = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """For callers that do not listen."""
