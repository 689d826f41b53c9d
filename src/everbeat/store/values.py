"""What the Store contract speaks in: the values its verbs take and return, and nothing that does anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Literal, NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.rules import Rule
from everbeat.core.schedules import CatchUp, Schedule
from everbeat.core.tasks import ClaimedTask, NewTask, TaskChange, TaskRecord
from everbeat.core.tenants import Tenant
from everbeat.core.ticks import Outcome, Skip, SkipReason


class Notice(StrEnum):
    """What changed, said to every node: a hint to look, never the truth itself."""

    SCHEDULES = "schedules"
    OWNERSHIP = "ownership"
    CALENDARS = "calendars"
    TASKS = "tasks"
    DELAYED = "delayed"
    KEYS = "keys"
    TENANTS = "tenants"


Listener = Callable[[Notice], None]
# Who asks: a user, the tick loop, or what the engine does besides firing.
PoolName = Literal["api", "engine", "maintenance"]


class IdempotentResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer once given under an idempotency key, kept so that a repeated request gets it again."""

    key: str
    fingerprint: bytes
    status: int
    body: bytes


class TenantWrite(NamedTuple):
    """A tenant as it shall be; `expected`: the revision it must still be at, None if it must be new."""

    tenant: Tenant
    expected: int | None = None


class AuditLogFilter(NamedTuple):
    from_at: datetime | None = None
    to_at: datetime | None = None
    action: str | None = None


class KeyChange(StrEnum):
    """What became of a change of keys: all of it, or nothing.

    absent: no such tenant, or no such key that is not revoked yet, or one of that hash is there already. late: there were keys
    already, or the idempotency key was used meanwhile. last_admin: nobody would be left who can manage keys.
    """

    DONE = "done"
    ABSENT = "absent"
    LATE = "late"
    LAST_ADMIN = "last_admin"


class ScheduleFilter(NamedTuple):
    status: str | None = None
    name_prefix: str | None = None
    queue: str | None = None
    type: str | None = None
    target: str | None = None


class ScheduleWriteResult(NamedTuple):
    """Whether the schedules were written. It is true in a condition if they were. The changes are tasks that are now held."""

    is_written: bool
    changes: Sequence[TaskChange] = ()

    def __bool__(self) -> bool:
        return self.is_written


NOT_WRITTEN = ScheduleWriteResult(False, [])


class FoundSchedules(NamedTuple):
    """What a look-up found, and what the database's clock showed."""

    now: datetime
    schedules: list[Schedule]
    response: IdempotentResponse | None


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
    held_schedule_ids: frozenset[UUID]
    changes: Sequence[TaskChange] = ()


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


class NodeHeartbeat(NamedTuple):
    id: UUID
    name: str
    roles: tuple[str, ...]
    version: str
    lease_seconds: float
    lag_seconds: float | None = None
    fired_per_second: float | None = None


class PartitionRenewal(NamedTuple):
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


class SubmitResult(NamedTuple):
    """What became of a batch of new tasks: the id each has under its key, and those whose key was used for something else.

    If there is any of the latter, nothing was written. `run_at` of a new task is its own, or `now` and its delay.
    """

    now: datetime
    ids: list[UUID]
    repeated: frozenset[int]
    mismatched: frozenset[int]
    changes: Sequence[TaskChange] = ()


class ClaimRequest(NamedTuple):
    """One worker's share in a claim."""

    worker: str
    limit: int
    lease_seconds: float


class ClaimResult(NamedTuple):
    """What a claim brought each claimer, and of each share how much it was asked for and how much came of it.

    `full`: tenants that now have as many running as they may.
    """

    tasks: list[list[ClaimedTask]]
    limits: list[int]
    claimed_counts: list[int]
    full: frozenset[UUID] = frozenset()
    changes: Sequence[TaskChange] = ()


class LeaseRef(NamedTuple):
    """A lease as its worker names it. `tenant_id` None: of whichever tenant, as a fleet's workers hold them."""

    tenant_id: UUID | None
    id: UUID
    fence: int


class HeartbeatWrite(NamedTuple):
    lease: LeaseRef
    fraction: float | None = None
    message: str | None = None
    log: str | None = None


class RenewedLease(NamedTuple):
    """A lease that a heartbeat found alive; one that is not among the answers is lost."""

    id: UUID
    fence: int
    lease_until: datetime
    cancel_requested: bool


class CompleteResult(NamedTuple):
    """`finished`: by this very call. `repeated`: by an earlier one under the same fence, whose answer was perhaps lost."""

    finished: frozenset[tuple[UUID, int]]
    repeated: frozenset[tuple[UUID, int]]
    schedule_ids: frozenset[UUID]
    owners: Mapping[UUID, UUID] = {}  # whose the finished ones are
    changes: Sequence[TaskChange] = ()


class EndResult(NamedTuple):
    ids: frozenset[tuple[UUID, int]]
    schedule_ids: frozenset[UUID]
    changes: Sequence[TaskChange] = ()


class EndedAttempt(NamedTuple):
    """How an attempt under that fence was ended before: for a worker that asks again."""

    id: UUID
    fence: int
    outcome: str
    state: str | None  # the final state of the task, if that attempt ended it


class PromoteResult(NamedTuple):
    """`next_at`: when the next delayed task comes due, if there is one."""

    now: datetime
    queues: frozenset[str]
    count: int  # type: ignore[assignment]  # it hides tuple.count, which nobody calls here
    next_at: datetime | None
    changes: Sequence[TaskChange] = ()


class HeldReleaseResult(NamedTuple):
    """`queues` got tasks. The changes are the released tasks, and those that a newer one replaced."""

    queues: frozenset[str]
    changes: Sequence[TaskChange] = ()


class CancelResult(NamedTuple):
    """`ended` were not started and are gone; `told` are running, and hear of it with their next heartbeat."""

    ended: frozenset[UUID]
    requested: frozenset[UUID]
    schedule_ids: frozenset[UUID]
    changes: Sequence[TaskChange] = ()


class TaskFilter(NamedTuple):
    state: str | None = None
    queue: str | None = None
    type: str | None = None
    schedule_id: UUID | None = None
    label_key: str | None = None
    label_value: str | None = None


class TaskScan(NamedTuple):
    """Tasks found, newest first. `scanned_to`: where to go on if the scan was cut short before it found enough."""

    tasks: list[TaskRecord]
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


class ReplayResult(NamedTuple):
    """`task_ids`: the dead letters that were replayed. The changes are the new tasks."""

    task_ids: list[UUID]
    changes: Sequence[TaskChange]
