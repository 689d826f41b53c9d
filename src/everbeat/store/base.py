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
from everbeat.core.tasks import Attempt, ClaimedTask, DeadLetter, Ending, LogLine, NewTask, RunningTask, Task
from everbeat.core.ticks import Outcome, Skip, SkipReason, Tick


class Notice(StrEnum):
    """What changed, said to every node: a hint to look, never the truth itself."""

    SCHEDULES = "schedules"
    OWNERSHIP = "ownership"
    CALENDARS = "calendars"
    TASKS = "tasks"
    DELAYED = "delayed"


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
    """`queues` got tasks that are ready; `holders` are schedules whose new task waits for its turn."""

    now: datetime
    fired: list[Fired]
    queues: frozenset[str]
    holders: frozenset[UUID]


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


class Submitted(NamedTuple):
    """What became of a batch of new tasks: the id each has under its key, and those whose key was used for something else.

    If there is any of the latter, nothing was written. `run_at` of a new task is its own, or `now` and its delay.
    """

    now: datetime
    ids: list[UUID]
    repeated: frozenset[int]
    mismatched: frozenset[int]


class Claimer(NamedTuple):
    """One worker's share in a claim."""

    worker: str
    limit: int
    lease_seconds: float


class LeaseRef(NamedTuple):
    """A lease as its worker names it."""

    tenant_id: UUID
    id: UUID
    fence: int


class BeatWrite(NamedTuple):
    lease: LeaseRef
    fraction: float | None = None
    message: str | None = None
    log: str | None = None


class Beaten(NamedTuple):
    """A lease that a heartbeat found alive; one that is not among the answers is lost."""

    id: UUID
    fence: int
    lease_until: datetime
    cancel_requested: bool


class Completed(NamedTuple):
    """`finished`: by this very call. `repeated`: by an earlier one under the same fence, whose answer was perhaps lost."""

    finished: frozenset[tuple[UUID, int]]
    repeated: frozenset[tuple[UUID, int]]
    schedule_ids: frozenset[UUID]


class Ended(NamedTuple):
    ids: frozenset[tuple[UUID, int]]
    schedule_ids: frozenset[UUID]


class PastEnding(NamedTuple):
    """How an attempt under that fence was ended before: for a worker that asks again."""

    id: UUID
    fence: int
    outcome: str
    state: str | None  # the final state of the task, if that attempt ended it


class Promoted(NamedTuple):
    """`next_at`: when the next delayed task comes due, if there is one."""

    now: datetime
    queues: frozenset[str]
    count: int  # type: ignore[assignment]  # it hides tuple.count, which nobody calls here
    next_at: datetime | None


class Cancelled(NamedTuple):
    """`ended` were not started and are gone; `told` are running, and hear of it with their next heartbeat."""

    ended: frozenset[UUID]
    told: frozenset[UUID]
    schedule_ids: frozenset[UUID]


class TaskFilter(NamedTuple):
    state: str | None = None
    queue: str | None = None
    type: str | None = None
    schedule_id: UUID | None = None
    label_key: str | None = None
    label_value: str | None = None


class TaskScan(NamedTuple):
    """Tasks found, newest first. `scanned_to`: where to go on if the scan was cut short before it found enough."""

    tasks: list[Task]
    scanned_to: UUID | None


class DeadFilter(NamedTuple):
    queue: str | None = None
    type: str | None = None
    schedule_id: UUID | None = None
    from_at: datetime | None = None
    to_at: datetime | None = None
    task_ids: tuple[UUID, ...] | None = None


class Replay(NamedTuple):
    """A dead letter and the new task it becomes."""

    task_id: UUID
    task: NewTask


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

    def publish(self, notice: Notice) -> None:
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

    async def task_submit(self, tasks: Sequence[NewTask], *, is_one: bool = False, now: datetime | None = None) -> Submitted:
        """Write new tasks all or nothing: ready, or scheduled if their time is to come; each idempotency key once.

        `is_one`: the key of the first stands for all of them; if it was used before, none is written.
        """

    async def task_claim(
        self,
        tenant_id: UUID,
        queues: Sequence[str],
        claimers: Sequence[Claimer],
        *,
        types: Sequence[str] | None = None,
        total_seconds: float = 7 * 86_400,
        now: datetime | None = None,
    ) -> list[list[ClaimedTask]]:
        """Take ready tasks for each claimer in turn, under leases with new fences, the most urgent first."""

    async def task_heartbeat(self, beats: Sequence[BeatWrite], *, now: datetime | None = None) -> list[Beaten]:
        """Renew leases up to their deadlines, with progress and log lines; one that is to be cancelled is not renewed."""

    async def task_complete(self, results: Sequence[tuple[LeaseRef, str | None]], *, now: datetime | None = None) -> Completed:
        """Finish running tasks under their lease and move them to history; a stale fence changes nothing."""

    async def task_running(
        self, leases: Sequence[LeaseRef], *, now: datetime | None = None
    ) -> tuple[datetime, list[RunningTask]]:
        """Those of these leases that hold, with what deciding about them needs."""

    async def task_expired(self, *, limit: int, now: datetime | None = None) -> tuple[datetime, list[RunningTask]]:
        """Running tasks whose lease has run out, the oldest first."""

    async def task_end(self, endings: Sequence[Ending], *, is_expired: bool, now: datetime | None = None) -> Ended:
        """End attempts whose lease holds (or has expired), and put the task back, or into history and the dead letters."""

    async def task_ended(self, leases: Sequence[LeaseRef]) -> list[PastEnding]:
        """How attempts under these fences were ended before."""

    async def task_promote(self, *, limit: int, now: datetime | None = None) -> Promoted:
        """Make delayed tasks ready whose time has come, and say when the next one comes due."""

    async def task_turn(
        self, schedule_ids: Sequence[UUID] | None, *, limit: int, now: datetime | None = None
    ) -> frozenset[str]:
        """Release held tasks of these schedules (None: of any) as far as their policies allow; the queues they went to."""

    async def task_cancel(self, tenant_id: UUID, ids: Sequence[UUID], *, now: datetime | None = None) -> Cancelled:
        """End tasks that have not started, and ask those that run to stop."""

    async def task_reschedule(self, tenant_id: UUID, id_: UUID, run_at: datetime, *, now: datetime | None = None) -> int:
        """Move a task that has not started to another time."""

    async def task_find(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[Task]:
        """The tenant's tasks of these ids, live or finished."""

    async def task_list(self, tenant_id: UUID, filter_: TaskFilter, *, before: UUID | None, limit: int, live: bool) -> TaskScan:
        """Live or finished tasks, newest first; a filter that matches little ends the scan early, not the database."""

    async def task_attempts(self, tenant_id: UUID, id_: UUID) -> list[Attempt]:
        """The attempts at a task that did not end it, oldest first."""

    async def task_log(self, tenant_id: UUID, id_: UUID, *, after: UUID | None, limit: int) -> list[LogLine]:
        """The log lines of a task, oldest first."""

    async def task_ticks(self, schedule_id: UUID, *, from_: datetime, to: datetime) -> list[datetime]:
        """The ticks in [from, to) that have a backfilled task, live or finished."""

    # Dead letters

    async def dead_find(self, tenant_id: UUID, task_ids: Sequence[UUID]) -> list[DeadLetter]:
        """The tenant's dead letters of these tasks."""

    async def dead_list(
        self,
        tenant_id: UUID,
        filter_: DeadFilter,
        *,
        before: tuple[datetime, UUID] | None,
        limit: int,
        only_unplayed: bool = False,
    ) -> list[DeadLetter]:
        """Dead letters, newest first; optionally those never replayed."""

    async def dead_replay(
        self, tenant_id: UUID, replays: Sequence[Replay], *, again: bool, now: datetime | None = None
    ) -> list[UUID]:
        """Make new tasks of dead letters and note it there; those replayed before only if `again`. The dead letters it did."""

    async def dead_purge(self, tenant_id: UUID, filter_: DeadFilter, *, limit: int, now: datetime | None = None) -> int:
        """Empty dead letters and hide them, a bounded piece at a time; that they were there stays on record."""

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

    async def key_prune(self, *, limit: int, now: datetime | None = None) -> int:
        """Forget idempotency keys of tasks past their time."""

    async def answer_prune(self, *, limit: int, now: datetime | None = None) -> int:
        """Forget idempotent answers past their time."""


class Observer(Protocol):
    """What a store tells of each call, for telemetry."""

    def __call__(self, verb: str, seconds: float, failed: bool) -> None: ...
