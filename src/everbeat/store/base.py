"""The Store contract: one async method per verb, every verb a batch.

Time: every verb that depends on time takes `now`. In production it is None and the database's clock decides; in tests a
fake clock passes it in. Verbs that read the clock say what it showed, so that callers never ask twice.
Errors: StoreUnavailable means the outcome is unknown (read again), StoreRefused means this very write was refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.calendars import Calendar
from everbeat.core.changes import ScheduleWrite
from everbeat.core.fairness import ClaimStep, Flow
from everbeat.core.keys import ApiKey
from everbeat.core.schedules import DEFAULT_TENANT, PastRule, Schedule
from everbeat.core.tasks import Attempt, AttemptEnd, DeadLetter, LeasedTask, LogLine, NewTask, TaskChange, TaskRecord
from everbeat.core.tenants import Tenant
from everbeat.core.ticks import Tick
from everbeat.store.values import (
    AuditLogFilter,
    CancelResult,
    ClaimRequest,
    ClaimResult,
    CompleteResult,
    DeadFilter,
    DueScan,
    EndedAttempt,
    EndResult,
    FireResult,
    Firing,
    FoundSchedules,
    HeartbeatWrite,
    HeldReleaseResult,
    IdempotentResponse,
    KeyChange,
    LeaseRef,
    Listener,
    NodeHeartbeat,
    NodeInfo,
    Notice,
    PartitionInfo,
    PartitionRenewal,
    PoolName,
    PromoteResult,
    QueueDepth,
    RenewedLease,
    Replay,
    ReplayResult,
    ScheduleFilter,
    ScheduleWriteResult,
    SubmitResult,
    TaskFilter,
    TaskScan,
    TenantWrite,
    TickTotal,
)


class Store(Protocol):
    """All that Everbeat asks of a database.

    A `trail` is written in the transaction of the change it tells of, and not at all if nothing changes.
    """

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

    def pool(self, pool: PoolName) -> Store:
        """The same store by connections of their own: what one lane waits for does not hold up another."""

    def event_stream_listen(self, on_message: Callable[[str], None]) -> bool:
        """Call hear for every message another process sends; False if processes of this store cannot hear each other."""

    async def event_stream_send(self, message: str) -> None:
        """Tell the other processes something of less than 8000 bytes; it may get lost."""

    # Schedules

    async def schedule_find(
        self,
        tenant_id: UUID,
        *,
        names: Sequence[str] = (),
        ids: Sequence[UUID] = (),
        key: str | None = None,
        now: datetime | None = None,
    ) -> FoundSchedules:
        """The tenant's schedules of these names or ids, and the answer kept under an idempotency key."""

    async def schedule_write(
        self,
        tenant_id: UUID,
        writes: Sequence[ScheduleWrite],
        *,
        response: IdempotentResponse | None = None,
        max_schedules: int | None = None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> ScheduleWriteResult:
        """Write all or nothing; not written if any row was not as expected, a name was taken or a key was used meanwhile.

        QuotaExceeded if the tenant would have more than `max_schedules`; rows that are replaced do not count.
        """

    async def schedule_list(
        self, tenant_id: UUID, filter_: ScheduleFilter, *, after_name: str | None, limit: int
    ) -> list[Schedule]:
        """The tenant's schedules by name, after the given one."""

    async def schedule_delete(
        self, tenant_id: UUID, ids: Sequence[UUID], *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> int:
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

    async def schedule_past_rules(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[PastRule]:
        """The rules these schedules had before, oldest first."""

    # Ticks

    async def tick_fire(self, node_id: UUID, firings: Sequence[Firing], *, now: datetime | None = None) -> FireResult:
        """Fire a batch in one transaction: ledger rows, tasks, and the schedules moved on. One firing per schedule."""

    async def tick_list(self, tenant_id: UUID, schedule_id: UUID, *, from_: datetime, to: datetime, limit: int) -> list[Tick]:
        """Ledger rows of a schedule that touch [from, to), oldest first."""

    async def tick_totals(self, tenant_id: UUID, ends: Mapping[UUID, datetime], *, from_: datetime) -> list[TickTotal]:
        """Ledger rows that begin in [from, end), summed per schedule, outcome and reason; each schedule has its own end."""

    async def tick_ranges(self, tenant_id: UUID, ends: Mapping[UUID, datetime], *, from_: datetime) -> list[Tick]:
        """Skipped ranges that reach over an edge of [from, end); each schedule has its own end."""

    async def tick_doubled(self, tenant_id: UUID, ids: Sequence[UUID], *, from_: datetime, to: datetime) -> dict[UUID, int]:
        """Ticks in [from, to) that have more than one task: there should be none."""

    # Ownership

    async def partition_renew(
        self, beat: NodeHeartbeat, wanted: frozenset[int], *, now: datetime | None = None
    ) -> PartitionRenewal:
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

    async def task_submit(
        self,
        tasks: Sequence[NewTask],
        *,
        has_single_key: bool = False,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> SubmitResult:
        """Write new tasks all or nothing: ready, or scheduled if their time is to come; each idempotency key once.

        `has_single_key`: the key of the first task stands for all of them; if it was used before, no task is written.
        The audit log entries are written if any task is.
        """

    async def task_flows(
        self, tenant_id: UUID | None, queues: Sequence[str], *, after: Sequence[Flow] = (), limit: int
    ) -> list[Flow]:
        """Which flows of these queues have ready tasks, of a tenant or of all (None); at most `limit` of each queue.

        `after`: where to go on in queues that had more than the limit, one place for each.
        """

    async def task_claim(
        self,
        shares: Sequence[ClaimStep],
        claim_requests: Sequence[ClaimRequest],
        *,
        limited: Collection[UUID] = (),
        total_seconds: float = 7 * 86_400,
        now: datetime | None = None,
    ) -> ClaimResult:
        """Take ready tasks of each share in turn, the oldest first, for each claimer in turn, under leases with new fences.

        A priority, tenant and fair key comes once among the shares. `limited`: tenants that may have only so many running;
        they get no more than there is room for.
        """

    async def task_heartbeat(self, heartbeats: Sequence[HeartbeatWrite], *, now: datetime | None = None) -> list[RenewedLease]:
        """Renew leases up to their deadlines, with progress and log lines; one that is to be cancelled is not renewed."""

    async def task_complete(
        self, results: Sequence[tuple[LeaseRef, str | None]], *, now: datetime | None = None
    ) -> CompleteResult:
        """Finish running tasks under their lease and move them to history; a stale fence changes nothing."""

    async def task_queues(self, ids: Sequence[UUID]) -> dict[UUID, str]:
        """Which queues these tasks are of, live or finished."""

    async def task_running(
        self, leases: Sequence[LeaseRef], *, now: datetime | None = None
    ) -> tuple[datetime, list[LeasedTask]]:
        """Those of these leases that hold, with what deciding about them needs."""

    async def task_expired(self, *, limit: int, now: datetime | None = None) -> tuple[datetime, list[LeasedTask]]:
        """Running tasks whose lease has run out, the oldest first."""

    async def task_end(self, endings: Sequence[AttemptEnd], *, is_expired: bool, now: datetime | None = None) -> EndResult:
        """End attempts whose lease holds (or has expired), and put the task back, or into history and the dead letters."""

    async def task_ended(self, leases: Sequence[LeaseRef]) -> list[EndedAttempt]:
        """How attempts under these fences were ended before."""

    async def task_promote(self, *, limit: int, now: datetime | None = None) -> PromoteResult:
        """Make delayed tasks ready whose time has come, and say when the next one comes due."""

    async def task_release_held(
        self, schedule_ids: Sequence[UUID] | None, *, limit: int, now: datetime | None = None
    ) -> HeldReleaseResult:
        """Release held tasks of these schedules (None: of any) as far as their policies allow."""

    async def task_cancel(
        self, tenant_id: UUID, ids: Sequence[UUID], *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> CancelResult:
        """End tasks that have not started, and ask those that run to stop."""

    async def task_reschedule(
        self,
        tenant_id: UUID,
        id_: UUID,
        run_at: datetime,
        *,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> list[TaskChange]:
        """Move a task that has not started to another time; no change if there is no such task."""

    async def task_find(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[TaskRecord]:
        """The tenant's tasks of these ids, live or finished."""

    async def task_list(self, tenant_id: UUID, filter_: TaskFilter, *, before: UUID | None, limit: int, live: bool) -> TaskScan:
        """Live or finished tasks, newest first; a filter that matches little ends the scan early, not the database."""

    async def task_attempts(self, tenant_id: UUID, id_: UUID) -> list[Attempt]:
        """The attempts at a task that did not end it, oldest first."""

    async def task_log(self, tenant_id: UUID, id_: UUID, *, after: UUID | None, limit: int) -> list[LogLine]:
        """The log lines of a task, oldest first."""

    async def task_ticks(self, tenant_id: UUID, schedule_id: UUID, *, from_: datetime, to: datetime) -> list[datetime]:
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
        only_never_replayed: bool = False,
    ) -> list[DeadLetter]:
        """Dead letters, newest first; optionally those never replayed."""

    async def dead_replay(
        self,
        tenant_id: UUID,
        replays: Sequence[Replay],
        *,
        again: bool,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> ReplayResult:
        """Make new tasks of dead letters and record it there; those replayed before only if `again`.

        If a task has a key, all or nothing: none is done if a key is taken.
        """

    async def dead_purge(
        self,
        tenant_id: UUID,
        filter_: DeadFilter,
        *,
        limit: int,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> int:
        """Empty dead letters and hide them, a bounded piece at a time; that they were there stays on record."""

    async def task_ready_count(self, tenant_id: UUID, *, limit: int) -> int:
        """How many tasks of a tenant are ready, no further than the limit."""

    async def task_depths(self, tenant_id: UUID | None = None) -> list[QueueDepth]:
        """Live tasks of a tenant, or of all, by queue and state."""

    # Calendars

    async def calendar_list(self, tenant_id: UUID) -> list[Calendar]:
        """The tenant's calendars by name."""

    async def calendar_write(
        self, tenant_id: UUID, calendar: Calendar, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> bool:
        """Create or replace a calendar; True if it is new."""

    async def calendar_delete(
        self, tenant_id: UUID, name: str, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> int:
        """Remove a calendar."""

    async def schedule_using_calendar(self, tenant_id: UUID, name: str) -> list[Schedule]:
        """Schedules whose rule names the calendar."""

    # Tenants

    async def tenant_list(self, *, after_name: str | None, limit: int) -> list[Tenant]:
        """All tenants by name, after the given one."""

    async def tenant_find(self, *, ids: Sequence[UUID] = (), names: Sequence[str] = ()) -> list[Tenant]:
        """The tenants of these ids or names."""

    async def tenant_write(
        self,
        writes: Sequence[TenantWrite],
        *,
        response_tenant_id: UUID = DEFAULT_TENANT,
        response: IdempotentResponse | None = None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> bool:
        """Write all or nothing; False if any was not as expected, a name was taken or a key was used meanwhile.

        `keeper`: the tenant under which the answer is kept.
        """

    async def audit_log_list(
        self, tenant_id: UUID | None, filter_: AuditLogFilter, *, before: tuple[datetime, UUID] | None, limit: int
    ) -> list[AuditLogEntry]:
        """Lines of the audit trail, newest first; of every tenant if None is given."""

    async def idempotent_response_find(
        self, tenant_id: UUID, key: str, *, now: datetime | None = None
    ) -> IdempotentResponse | None:
        """The answer kept under an idempotency key."""

    # API keys

    async def key_find(
        self, *, hashes: Sequence[bytes] = (), ids: Sequence[UUID] = (), now: datetime | None = None
    ) -> tuple[datetime, list[ApiKey]]:
        """The keys of these hashes or ids, in whatever state they are, with the clock to judge their expiry by."""

    async def key_exists(self, *, now: datetime | None = None) -> bool:
        """Whether there is any key that can be used."""

    async def key_list(self, tenant_id: UUID | None, *, after: UUID | None, limit: int) -> list[ApiKey]:
        """A tenant's keys, or everybody's, in the order they were made."""

    async def key_create(
        self,
        keys: Sequence[ApiKey],
        *,
        only_first: bool = False,
        response_tenant_id: UUID | None = None,
        response: IdempotentResponse | None = None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> KeyChange:
        """Keep new keys, all or none. `only_first`: only if there is no key yet that can be used."""

    async def key_revoke(
        self,
        tenant_id: UUID | None,
        ids: Sequence[UUID],
        *,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> KeyChange:
        """Revoke keys of a tenant, or of any, all or none; never the last one that can manage keys."""

    async def key_touch(self, ids: Sequence[UUID], *, now: datetime | None = None) -> int:
        """Note that these keys were used just now."""

    # Chores

    async def month_ensure(self, months: Sequence[datetime]) -> list[str]:
        """Make sure the ledger and the history can take rows of these months."""

    async def month_prune(self, *, before: datetime, limit: int) -> int:
        """Remove ledger and history of before that instant, a bounded piece at a time."""

    async def task_key_prune(self, *, limit: int, now: datetime | None = None) -> int:
        """Forget idempotency keys of tasks past their time."""

    async def idempotent_response_keep(
        self, tenant_id: UUID, response: IdempotentResponse, *, now: datetime | None = None
    ) -> bool:
        """Keep a response under its idempotency key for a day. Returns False if another response is kept under the key."""

    async def idempotent_response_prune(self, *, limit: int, now: datetime | None = None) -> int:
        """Forget idempotent answers past their time."""

    async def blob_unused(self, refs: Sequence[str]) -> list[str]:
        """Those of these references to payloads that no task, finished task or dead letter has."""


class Observer(Protocol):
    """What a store tells of each call, for telemetry."""

    def __call__(self, verb: str, seconds: float, failed: bool) -> None: ...
