"""The Store contract: one async method per verb, every verb a batch.

Time: every verb that depends on time takes `now`. In production it is None and the database's clock decides; in tests a
fake clock passes it in. Verbs that read the clock say what it showed, so that callers never ask twice.
Errors: StoreUnavailable means the outcome is unknown (read again), StoreRefused means this very write was refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol
from uuid import UUID

import msgspec

from everbeat.core.calendars import Calendar
from everbeat.core.changes import ScheduleWrite
from everbeat.core.rules import Rule
from everbeat.core.schedules import CatchUp, PastRule, Schedule
from everbeat.core.tasks import ClaimedTask
from everbeat.core.ticks import Outcome, Skip, SkipReason, Tick


class Notice(StrEnum):
    """What changed, said to every node: a hint to look, never the truth itself."""

    SCHEDULES = "schedules"
    OWNERSHIP = "ownership"
    CALENDARS = "calendars"


Listener = Callable[[Notice], None]


class IdempotentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer once given under an idempotency key, kept so that a repeated request gets it again."""

    key: str
    fingerprint: bytes
    status: int
    body: bytes


class ScheduleFilter(NamedTuple):
    status: str | None = None
    name_prefix: str | None = None
    queue: str | None = None
    type: str | None = None
    target: str | None = None


class Found(NamedTuple):
    """What a look-up found, and what the database's clock showed."""

    now: datetime
    schedules: list[Schedule]
    answer: IdempotentAnswer | None


class DueSchedule(NamedTuple):
    """What the ticker needs to know of a schedule that comes due soon; not its payload."""

    id: UUID
    tenant_id: UUID
    partition: int
    revision: int
    cursor_at: datetime
    next_tick_at: datetime
    due_at: datetime
    catch_up: CatchUp
    misfire_grace_seconds: float
    jitter_seconds: float
    rule: Rule


class DueScan(NamedTuple):
    """What a scan found; `faults` are rows that could not even be read, each with the reason."""

    now: datetime
    schedules: list[DueSchedule]
    faults: dict[UUID, str]


class Firing(NamedTuple):
    """One schedule's firing: guarded by epoch, revision and expected tick; `fires` None only records skips."""

    schedule_id: UUID
    tenant_id: UUID
    partition: int
    epoch: int
    revision: int
    expected: datetime
    fires: datetime | None
    task_id: UUID
    cursor_at: datetime
    next_tick_at: datetime | None
    due_at: datetime | None
    skips: tuple[Skip, ...] = ()


class Fired(NamedTuple):
    """What became of one firing that took place; one that lost its guard is simply absent."""

    schedule_id: UUID
    outcome: Outcome | None
    reason: SkipReason | None
    fired_at: datetime | None


class FireResult(NamedTuple):
    now: datetime
    fired: list[Fired]


class NodeInfo(NamedTuple):
    id: UUID
    name: str
    roles: tuple[str, ...]
    version: str
    started_at: datetime
    seen_at: datetime
    lease_seconds: float
    lag_seconds: float | None
    fired_per_second: float | None


class NodeBeat(NamedTuple):
    id: UUID
    name: str
    roles: tuple[str, ...]
    version: str
    lease_seconds: float
    lag_seconds: float | None = None
    fired_per_second: float | None = None


class Renewal(NamedTuple):
    """What a heartbeat brought: the clock, the partitions owned with their epochs, the live scheduler nodes, and how far
    behind an earlier heartbeat the clock is (more than a moment: it was set back)."""

    now: datetime
    owned: Mapping[int, int]
    live: frozenset[UUID]
    clock_back_seconds: float


class PartitionInfo(NamedTuple):
    partition: int
    owner: UUID | None
    epoch: int
    lease_until: datetime | None


class TickTotal(msgspec.Struct, frozen=True):
    """Ledger rows of one schedule in a window, summed by outcome and reason."""

    schedule_id: UUID
    outcome: Outcome
    reason: SkipReason | None
    count: int


class QueueDepth(msgspec.Struct, frozen=True):
    queue: str
    state: str
    count: int


class Store(Protocol):
    """All that Everbeat asks of a database."""

    dialect: str
    description: str

    async def open(self) -> None:
        """Connect; fails with a message that says what to do."""

    async def close(self) -> None:
        """Let go of every connection."""

    async def schema_version(self) -> tuple[int, int]:
        """The migration the database is at, and the one this code needs."""

    async def migrate(self) -> list[str]:
        """Apply the missing migrations in order, one node at a time, and name them."""

    async def clock(self, *, now: datetime | None = None) -> datetime:
        """What the database's clock shows."""

    def subscribe(self, listener: Listener) -> None:
        """Call listener for every notice, from this process or another."""

    async def publish(self, notice: Notice) -> None:
        """Tell every node; calls that come close together are sent as one."""

    # Schedules

    async def schedule_find(
        self,
        tenant_id: UUID,
        *,
        names: Sequence[str] = (),
        ids: Sequence[UUID] = (),
        key: str | None = None,
        now: datetime | None = None,
    ) -> Found:
        """The tenant's schedules of these names or ids, and the answer kept under an idempotency key."""

    async def schedule_write(
        self,
        tenant_id: UUID,
        writes: Sequence[ScheduleWrite],
        *,
        answer: IdempotentAnswer | None = None,
        now: datetime | None = None,
    ) -> bool:
        """Write all or nothing; False if any row was not as expected, a name was taken or a key was used meanwhile."""

    async def schedule_list(
        self, tenant_id: UUID, filter_: ScheduleFilter, *, after_name: str | None, limit: int
    ) -> list[Schedule]:
        """The tenant's schedules by name, after the given one."""

    async def schedule_delete(self, tenant_id: UUID, ids: Sequence[UUID]) -> int:
        """Remove schedules; their ledger stays."""

    async def schedule_count(self, tenant_id: UUID) -> dict[str, int]:
        """How many schedules the tenant has, by status."""

    async def schedule_due(
        self, partitions: Sequence[int], *, horizon_seconds: float, limit: int, now: datetime | None = None
    ) -> DueScan:
        """Active schedules due within the horizon, at most `limit` of each partition, the oldest of it first."""

    async def schedule_fault(self, faults: Mapping[UUID, str], *, now: datetime | None = None) -> int:
        """Set schedules aside that cannot be computed or fired, with the reason, so that they harm nobody else."""

    async def schedule_overdue(self, *, late_seconds: float, limit: int, now: datetime | None = None) -> list[Schedule]:
        """Active schedules whose tick should have fired more than so many seconds ago."""

    async def schedule_faulty(self, tenant_id: UUID | None, *, limit: int) -> list[Schedule]:
        """Schedules that were set aside as faulty."""

    async def schedule_past_rules(self, ids: Sequence[UUID]) -> list[PastRule]:
        """The rules these schedules had before, oldest first."""

    # Ticks

    async def tick_fire(self, node_id: UUID, firings: Sequence[Firing], *, now: datetime | None = None) -> FireResult:
        """Fire a batch in one transaction: ledger rows, tasks, and the schedules moved on. One firing per schedule."""

    async def tick_list(self, schedule_id: UUID, *, from_: datetime, to: datetime, limit: int) -> list[Tick]:
        """Ledger rows of a schedule that touch [from, to), oldest first."""

    async def tick_totals(self, ends: Mapping[UUID, datetime], *, from_: datetime) -> list[TickTotal]:
        """Ledger rows that begin in [from, end), summed per schedule, outcome and reason; each schedule has its own end."""

    async def tick_ranges(self, ends: Mapping[UUID, datetime], *, from_: datetime) -> list[Tick]:
        """Skipped ranges that reach over an edge of [from, end); each schedule has its own end."""

    async def tick_doubled(self, ids: Sequence[UUID], *, from_: datetime, to: datetime) -> dict[UUID, int]:
        """Ticks in [from, to) that have more than one task: there should be none."""

    # Ownership

    async def partition_renew(self, beat: NodeBeat, wanted: frozenset[int], *, now: datetime | None = None) -> Renewal:
        """Heartbeat; renew what is owned and wanted, release what is not, take what is wanted and free or expired."""

    async def partition_release(self, node_id: UUID) -> int:
        """Release everything a node owns and sign it off."""

    async def partition_list(self) -> list[PartitionInfo]:
        """Who owns what."""

    async def node_list(self, *, now: datetime | None = None) -> tuple[datetime, list[NodeInfo]]:
        """The nodes known, with the clock to judge their age by."""

    async def node_prune(self, *, unseen_seconds: float, now: datetime | None = None) -> int:
        """Forget nodes that have not been seen for so long."""

    # Tasks

    async def task_claim(
        self,
        worker: str,
        queues: Sequence[str],
        *,
        limit: int,
        lease_seconds: float,
        now: datetime | None = None,
    ) -> list[ClaimedTask]:
        """Take ready tasks of these queues, each under a lease with a new fence."""

    async def task_complete(self, results: Sequence[tuple[UUID, int]], *, now: datetime | None = None) -> list[UUID]:
        """Finish running tasks under their fence and move them to history; a stale fence changes nothing."""

    async def task_reap(self, *, limit: int, now: datetime | None = None) -> int:
        """Put running tasks whose lease has expired back to ready."""

    async def task_depths(self) -> list[QueueDepth]:
        """Live tasks by queue and state."""

    # Calendars

    async def calendar_list(self, tenant_id: UUID) -> list[Calendar]:
        """The tenant's calendars by name."""

    async def calendar_write(self, tenant_id: UUID, calendar: Calendar, *, now: datetime | None = None) -> bool:
        """Create or replace a calendar; True if it is new."""

    async def calendar_delete(self, tenant_id: UUID, name: str) -> int:
        """Remove a calendar."""

    async def schedule_using_calendar(self, tenant_id: UUID, name: str) -> list[Schedule]:
        """Schedules whose rule names the calendar."""

    # Chores

    async def month_ensure(self, months: Sequence[datetime]) -> list[str]:
        """Make sure the ledger and the history can take rows of these months."""

    async def month_prune(self, *, before: datetime, limit: int) -> int:
        """Remove ledger and history of before that instant, a bounded piece at a time."""

    async def answer_prune(self, *, limit: int, now: datetime | None = None) -> int:
        """Forget idempotent answers past their time."""


class Observer(Protocol):
    """What a store tells of each call, for telemetry."""

    def __call__(self, verb: str, seconds: float, failed: bool) -> None: ...
