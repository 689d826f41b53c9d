"""The values that the verbs of the Store contract take and return. Data only, no behavior."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime
from enum import StrEnum
from typing import Literal, NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.alerts import AlertKind
from everbeat.core.audit_findings import FindingKind
from everbeat.core.capacity import NodeLoad
from everbeat.core.checks import CheckOutcome
from everbeat.core.incidents import Incident, IncidentState
from everbeat.core.rules import Rule, TriggerKind
from everbeat.core.schedules import CatchUp, Schedule, Status
from everbeat.core.tasks import ClaimedTask, NewTask, TaskChange, TaskRecord, TaskState
from everbeat.core.tenants import Tenant
from everbeat.core.ticks import Outcome, Skip, SkipReason


class Notice(StrEnum):
    """What kind of data has changed. A notice only makes a node query the database; it does not contain the change."""

    SCHEDULES = "schedules"
    OWNERSHIP = "ownership"
    CALENDARS = "calendars"
    TASKS = "tasks"
    DELAYED = "delayed"
    KEYS = "keys"
    TENANTS = "tenants"
    SCHEMA = "schema"
    BULK = "bulk"


Listener = Callable[[Notice], None]
# For API requests, for the ticker and the promoter, and for the other loops of the engine.
PoolName = Literal["api", "engine", "maintenance"]


class IdempotentResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request with an idempotency key, stored so that a repeated request gets the same response."""

    key: str
    fingerprint: bytes
    status: int
    body: bytes


class TenantWrite(NamedTuple):
    """The new state of a tenant. `expected`: the revision that it must still have, None if it must be new."""

    tenant: Tenant
    expected: int | None = None


class CheckTickTotal(NamedTuple):
    """The number of expected pings of a check with an outcome."""

    check_id: UUID
    outcome: CheckOutcome
    count: int  # type: ignore[assignment]  # it hides tuple.count, which is not used


class AuditLogFilter(NamedTuple):
    from_at: datetime | None = None
    to_at: datetime | None = None
    action: str | None = None


class MonthSize(NamedTuple):
    """A month of a table past its retention. `rows`: an estimate on PostgreSQL, None if unknown. `bytes`: None on SQLite."""

    table: str
    month: str
    rows: int | None
    bytes: int | None


class TenantPruneStep(NamedTuple):
    """How many rows of which table one step deleted, and the position of the next step; None after the last one."""

    table: str
    deleted: int
    position: str | None


class DatabaseFinding(NamedTuple):
    """`kind`: invalid_index, dead_rows or free_pages. `name`: of the index or table. `ratio`: the affected part of it."""

    kind: str
    name: str
    ratio: float


class FindingFilter(NamedTuple):
    """`before`: the last finding of the previous page. `from_at` and `to_at` limit `scheduled_for`."""

    is_resolved: bool = False
    kind: FindingKind | None = None
    schedule_id: UUID | None = None
    from_at: datetime | None = None
    to_at: datetime | None = None
    before: UUID | None = None


class LoopLease(NamedTuple):
    """The lease of a loop, taken by a node. `ran_at`: when the last run ended. `position`: what the last run has stored."""

    now: datetime
    ran_at: datetime | None
    position: str


class LoopLeaseInfo(NamedTuple):
    name: str
    holder: UUID | None
    lease_until: datetime | None
    next_at: datetime | None
    ran_at: datetime | None
    position: str


class KeyChange(StrEnum):
    """The result of a change of keys. Unless it is `done`, nothing was changed.

    absent: the tenant does not exist, no unrevoked key has the id, or a key with the same hash exists. conflict: usable keys
    exist already, or the idempotency key has been used. last_admin: no usable key with the scope admin would be left.
    """

    DONE = "done"
    ABSENT = "absent"
    CONFLICT = "conflict"
    LAST_ADMIN = "last_admin"


class ScheduleFilter(NamedTuple):
    """`zones`: the time zones of the schedules; None for all."""

    status: str | None = None
    name_prefix: str | None = None
    queue: str | None = None
    type: str | None = None
    target: str | None = None
    zones: list[str] | None = None


class ScheduleWriteResult(NamedTuple):
    """Whether the schedules were written; this is also its truth value. `changes`: tasks that are now held."""

    is_written: bool
    changes: Sequence[TaskChange] = ()

    def __bool__(self) -> bool:
        return self.is_written


NOT_WRITTEN = ScheduleWriteResult(False, [])


class FoundSchedules(NamedTuple):
    """The schedules found, and the current time of the database."""

    now: datetime
    schedules: list[Schedule]
    response: IdempotentResponse | None


class DueSchedule(NamedTuple):
    """The fields of a schedule due soon that the ticker needs. The payload is not among them."""

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
    moved_tick_at: datetime | None = None


class ZoneInUse(NamedTuple):
    """The zone of active schedules. `trigger_text`: their trigger, if it may contain a zone that takes precedence."""

    timezone: str
    kind: TriggerKind
    trigger_text: str | None


class ZoneVersion(NamedTuple):
    """A version of a time zone that nodes have used since this time."""

    name: str
    fingerprint: str
    since: datetime


class DueScan(NamedTuple):
    """The result of a scan. `faults`: rows that could not be decoded, each with the reason."""

    now: datetime
    schedules: list[DueSchedule]
    faults: dict[UUID, str]


class Firing(NamedTuple):
    """The firing of one schedule.

    It takes effect only if epoch, revision and `expected`, the next tick of the schedule, are unchanged. `fires`: the tick that
    fires; None if only skips are recorded.
    """

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
    """The result of one firing that took effect. Firings with a changed epoch, revision or next tick have no result."""

    schedule_id: UUID
    outcome: Outcome | None
    reason: SkipReason | None
    fired_at: datetime | None


class FireResult(NamedTuple):
    """`queues`: the queues with new ready tasks. `held_schedule_ids`: the schedules whose new task is held.

    `locked_ids`: the schedules that did not fire because another transaction has locked them. On SQLite there are none: a
    write waits for the one write lock of the file.
    """

    now: datetime
    fired: list[Fired]
    queues: frozenset[str]
    held_schedule_ids: frozenset[UUID]
    changes: Sequence[TaskChange] = ()
    locked_ids: frozenset[UUID] = frozenset()


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
    capacity: float = 1.0
    # The state of the deliverer as JSON (NodeDeliveries); None for nodes without one.
    deliveries: str | None = None


class NodeHeartbeat(NamedTuple):
    id: UUID
    name: str
    roles: tuple[str, ...]
    version: str
    lease_seconds: float
    lag_seconds: float | None = None
    fired_per_second: float | None = None
    capacity: float = 1.0
    # The state of the deliverer as JSON (NodeDeliveries); None for nodes without one.
    deliveries: str | None = None


class PartitionRenewal(NamedTuple):
    """The result of a heartbeat.

    `owned`: the partitions of the node with their epochs. `live`: the live scheduler nodes; `loads`: what each of them has
    reported. `clock_back_seconds`: how far `now`
    is behind the newest earlier heartbeat; a large value means that the clock was set back. `locked`: partitions that were
    neither renewed nor taken nor released, because another transaction has locked them.
    """

    now: datetime
    owned: Mapping[int, int]
    live: frozenset[UUID]
    clock_back_seconds: float
    locked: frozenset[int] = frozenset()
    loads: Mapping[UUID, NodeLoad] = {}


class PartitionInfo(NamedTuple):
    partition: int
    owner: UUID | None
    epoch: int
    lease_until: datetime | None


class AuditedSchedule(NamedTuple):
    """The fields of a schedule that the auditor needs. It does not trust `next_tick_at` and `due_at`."""

    id: UUID
    tenant_id: UUID
    name: str
    status: Status
    rule: Rule
    cursor_at: datetime
    rule_at: datetime
    created_at: datetime
    moved_tick_at: datetime | None
    jitter_seconds: float
    fault: str | None


class TickAudit(NamedTuple):
    """Of a schedule: the ticks recorded in a window, and the largest lag of those that fired."""

    recorded: int
    lag_seconds: float


class DayTotal(NamedTuple):
    """The ledger rows of a schedule that begin in a window, by outcome and reason."""

    schedule_id: UUID
    outcome: Outcome
    reason: SkipReason | None
    count: int  # type: ignore[assignment]  # it hides tuple.count, which is not used
    first_at: datetime
    last_at: datetime
    lag_seconds: float


class IncompleteDay(NamedTuple):
    """A day of the roll-up whose counts are out of date, because the cursor of the schedule has moved."""

    schedule_id: UUID
    day: datetime


class SuspectTick(NamedTuple):
    """A tick without a ledger row (`fired_at` None), with more than one task, or that fired late."""

    tenant_id: UUID
    schedule_id: UUID
    name: str
    jitter_seconds: float
    scheduled_for: datetime
    tasks: int
    fired_at: datetime | None


class TickTotal(msgspec.Struct, frozen=True):
    """The number of ticks of one schedule in a window with the same outcome and reason."""

    schedule_id: UUID
    outcome: Outcome
    reason: SkipReason | None
    count: int


class QueueDepth(msgspec.Struct, frozen=True):
    queue: str
    state: str
    count: int


class QueueTasks(NamedTuple):
    """The numbers of live tasks in a queue by state, and the time since which the oldest ready one could run."""

    queue: str
    ready: int
    scheduled: int
    held: int
    running: int
    oldest_ready_at: datetime | None


class WorkerQueue(NamedTuple):
    """A queue that workers have asked for: the number of live workers, and the one that was seen last."""

    queue: str
    workers: int
    last_worker: str
    last_seen_at: datetime


class SubmitResult(NamedTuple):
    """The result of a submit.

    `ids`: the id of each task; if its key was used before, the id of the first task with the key. `repeated`: the indexes of
    tasks whose key was used before. `mismatched`: the indexes of tasks whose key was used with another fingerprint; if there
    are any, nothing was written. A task without `run_at` runs at `now` plus its delay.
    """

    now: datetime
    ids: list[UUID]
    repeated: frozenset[int]
    mismatched: frozenset[int]
    changes: Sequence[TaskChange] = ()


class ReadyQueue(NamedTuple):
    """A queue that has ready tasks, and the tenant of these tasks."""

    queue: str
    tenant_id: UUID


class ClaimRequest(NamedTuple):
    """The request of one worker in a claim."""

    worker: str
    limit: int
    lease_seconds: float


class ClaimResult(NamedTuple):
    """The claimed tasks of each request, and for each step its limit and the number of tasks claimed.

    `full`: tenants that have reached their limit of running tasks.
    """

    tasks: list[list[ClaimedTask]]
    limits: list[int]
    claimed_counts: list[int]
    full: frozenset[UUID] = frozenset()
    changes: Sequence[TaskChange] = ()


class LeaseRef(NamedTuple):
    """Identifies a lease in a report of a worker. `tenant_id` None: the task may belong to any tenant (fleet workers)."""

    tenant_id: UUID | None
    id: UUID
    fence: int


# No completion has a response: the default of task_complete.
NO_RESPONSES: Mapping[LeaseRef, str] = {}


class HeartbeatWrite(NamedTuple):
    lease: LeaseRef
    fraction: float | None = None
    message: str | None = None
    log: str | None = None


class RenewedLease(NamedTuple):
    """A lease that was valid at the heartbeat. A lease without a result is lost.

    `is_locked`: the lease is valid, but was not renewed, because another transaction has locked the task.
    """

    id: UUID
    fence: int
    lease_until: datetime
    cancel_requested: bool
    is_locked: bool = False


class CompleteResult(NamedTuple):
    """`finished`: completed by this call. `repeated`: completed by an earlier call with the same fence.

    A worker repeats a call if it did not receive the response. `locked`: not completed, because another transaction has locked
    the task.
    """

    finished: Set[tuple[UUID, int]]
    repeated: Set[tuple[UUID, int]]
    changes: Sequence[TaskChange] = ()
    locked: Set[tuple[UUID, int]] = frozenset()


class EndResult(NamedTuple):
    """`ids`: the attempts that were ended. `locked`: not ended, because another transaction has locked the task."""

    ids: frozenset[tuple[UUID, int]]
    schedule_ids: frozenset[UUID]
    changes: Sequence[TaskChange] = ()
    locked: frozenset[tuple[UUID, int]] = frozenset()


class EndedAttempt(NamedTuple):
    """How an attempt was ended earlier; returned to a worker that repeats its report."""

    id: UUID
    fence: int
    outcome: str
    state: str | None  # the final state of the task, if this attempt ended it


class PromoteResult(NamedTuple):
    """`next_at`: when the next delayed task is due, if there is one. `has_more`: whether more tasks are due, or are locked."""

    now: datetime
    queues: frozenset[str]
    count: int  # type: ignore[assignment]  # it hides tuple.count, which is not used
    next_at: datetime | None
    changes: Sequence[TaskChange] = ()
    has_more: bool = False


class HeldReleaseResult(NamedTuple):
    """`queues`: the queues of the released tasks. `changes`: the released tasks, and tasks that newer ones replaced.

    `locked_ids`: the schedules that were skipped because another transaction has locked them.
    """

    queues: frozenset[str]
    changes: Sequence[TaskChange] = ()
    locked_ids: frozenset[UUID] = frozenset()


class CancelResult(NamedTuple):
    """`ended`: tasks that had not started. `requested`: running tasks; their workers get the request at the next heartbeat."""

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


class TaskMatch(NamedTuple):
    """Selects tasks for a bulk operation. The times are those of the creation of a task; the beginning is inclusive."""

    state: str | None = None
    queue: str | None = None
    type: str | None = None
    schedule_id: UUID | None = None
    label_key: str | None = None
    label_value: str | None = None
    error_kind: str | None = None
    from_at: datetime | None = None
    to_at: datetime | None = None


class TaskIds(NamedTuple):
    """Ids found, newest first. `scanned_to`: where to continue; None if there are no more."""

    ids: list[UUID]
    scanned_to: UUID | None


class TaskScan(NamedTuple):
    """Tasks found, newest first. `scanned_to`: where to continue if the scan ended before it found enough tasks."""

    tasks: list[TaskRecord]
    scanned_to: UUID | None


class DeadFilter(NamedTuple):
    queue: str | None = None
    type: str | None = None
    schedule_id: UUID | None = None
    from_at: datetime | None = None
    to_at: datetime | None = None
    task_ids: tuple[UUID, ...] | None = None


class FinishedRun(NamedTuple):
    """How a finished task of a schedule ended, and how long it took."""

    schedule_id: UUID
    state: TaskState
    started_at: datetime | None
    finished_at: datetime


class DeadError(NamedTuple):
    """Why a task died: the reason, and the kind and the beginning of the message of its last error."""

    task_id: UUID
    queue: str
    type: str
    schedule: str | None
    reason: str
    died_at: datetime
    is_replayed: bool
    error_kind: str | None
    message: str | None


class Replay(NamedTuple):
    """A dead letter, and the new task that is created from it."""

    task_id: UUID
    task: NewTask


class ReplayResult(NamedTuple):
    """`task_ids`: the dead letters that were replayed. `changes`: the new tasks."""

    task_ids: list[UUID]
    changes: Sequence[TaskChange]


class AlertTenant(NamedTuple):
    """A tenant with alert rules. `version` changes with each evaluation and each change of a rule. `positions` is JSON."""

    tenant_id: UUID
    version: int
    positions: str


class AlertEvaluation(NamedTuple):
    """The result of judging the rules of a tenant, from facts that were read at `version`.

    `signal_ids`: the signals that were judged. `tasks`: the notifications.
    """

    tenant_id: UUID
    version: int
    positions: str
    signal_ids: Sequence[UUID] = ()
    opened: Sequence[Incident] = ()
    changed: Sequence[Incident] = ()
    tasks: Sequence[NewTask] = ()


class IncidentCount(NamedTuple):
    kind: AlertKind
    state: IncidentState
    count: int  # type: ignore[assignment]  # it hides tuple.count, which is not used


class Completion(NamedTuple):
    """When a task of a queue and type was last completed."""

    queue: str
    type: str
    completed_at: datetime
