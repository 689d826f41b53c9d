"""The Store contract. Each verb is one async method and works on a batch.

Time: every verb that depends on the time takes `now`. In production it is None, and the database's clock is used. Tests pass
the time of a fake clock. A verb that reads the clock also returns the time, so that callers need no second query.
Errors: StoreUnavailable means that the outcome is unknown and has to be read back. StoreRefused means that the database
rejected this write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.bulk import BulkOperation, BulkProgress
from everbeat.core.calendars import Calendar
from everbeat.core.changes import ScheduleWrite
from everbeat.core.endpoints import WebhookEndpoint
from everbeat.core.fairness import ClaimStep, Flow
from everbeat.core.keys import ApiKey
from everbeat.core.pauses import Pause
from everbeat.core.schedules import DEFAULT_TENANT, PastRule, Schedule
from everbeat.core.tasks import Attempt, AttemptEnd, DeadLetter, LeasedTask, LogLine, NewTask, TaskChange, TaskRecord
from everbeat.core.tenants import Tenant
from everbeat.core.ticks import Tick
from everbeat.core.workers import WorkerInfo, WorkerSighting
from everbeat.store.values import (
    NO_RESPONSES,
    AuditLogFilter,
    CancelResult,
    ClaimRequest,
    ClaimResult,
    CompleteResult,
    DatabaseFinding,
    DeadError,
    DeadFilter,
    DueScan,
    EndedAttempt,
    EndResult,
    FinishedRun,
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
    QueueTasks,
    ReadyQueue,
    RenewedLease,
    Replay,
    ReplayResult,
    ScheduleFilter,
    ScheduleWriteResult,
    SubmitResult,
    TaskFilter,
    TaskIds,
    TaskMatch,
    TaskScan,
    TenantWrite,
    TickTotal,
    WorkerQueue,
    ZoneInUse,
    ZoneVersion,
)


class Store(Protocol):
    """All operations that Everbeat needs from a database.

    `audit_log` entries are written in the transaction of the change that they describe. If nothing changes, they are not
    written.
    """

    dialect: str
    description: str

    async def open(self) -> None:
        """Connect. If this fails, the error message says what to do."""

    async def close(self) -> None:
        """Close all connections."""

    async def schema_version(self) -> tuple[int, int]:
        """The migration that the database is at, and the one that this code needs."""

    async def migrate(self) -> list[str]:
        """Apply the missing migrations in order, one node at a time. Returns their names."""

    async def clock(self, *, now: datetime | None = None) -> datetime:
        """The current time of the database's clock."""

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` for every notice, from this process or another one."""

    def publish(self, notice: Notice) -> None:
        """Send a notice to every node. Calls in quick succession are sent as one notice."""

    def pool(self, pool: PoolName) -> Store:
        """The same store on a separate connection pool, so that slow work on one pool does not delay the others."""

    def event_stream_listen(self, on_message: Callable[[str], None]) -> bool:
        """Call `on_message` for every message of another process. False if this store sends no messages between processes."""

    async def event_stream_send(self, message: str) -> None:
        """Send a message of less than 8000 bytes to the other processes. It may be lost."""

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
        """The tenant's schedules with these names or ids, and the response stored under the idempotency key."""

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
        """Write all schedules or none.

        Nothing is written if a row is not as expected, a name is taken or the idempotency key has been used. Raises
        QuotaExceeded if the tenant would have more than `max_schedules`; replaced rows do not count as new.
        """

    async def schedule_list(
        self, tenant_id: UUID, filter_: ScheduleFilter, *, after_name: str | None, limit: int
    ) -> list[Schedule]:
        """The tenant's schedules in order of name, after the given name."""

    async def schedule_delete(
        self, tenant_id: UUID, ids: Sequence[UUID], *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> int:
        """Delete schedules. Their ledger is kept."""

    async def schedule_count(self, tenant_id: UUID) -> dict[str, int]:
        """The number of the tenant's schedules by status."""

    async def schedule_due(
        self, partitions: Sequence[int], *, horizon_seconds: float, limit: int, now: datetime | None = None
    ) -> DueScan:
        """Active schedules that are due within the horizon: of each partition the `limit` earliest, in order of due time."""

    async def schedule_fault(self, faults: Mapping[UUID, str], *, now: datetime | None = None) -> int:
        """Pause schedules that cannot be computed or fired, so that they do not affect others, and store the reason."""

    async def schedule_overdue(self, *, late_seconds: float, limit: int, now: datetime | None = None) -> list[Schedule]:
        """Active schedules with a tick that should have fired more than `late_seconds` ago."""

    async def schedule_faulty(self, tenant_id: UUID | None, *, limit: int) -> list[Schedule]:
        """Schedules that were paused because of a fault."""

    async def schedule_past_rules(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[PastRule]:
        """The former rules of these schedules, oldest first."""

    # Ticks

    async def tick_fire(self, node_id: UUID, firings: Sequence[Firing], *, now: datetime | None = None) -> FireResult:
        """Fire a batch in one transaction: write ledger rows and tasks, and advance the schedules. One firing per schedule."""

    async def tick_list(self, tenant_id: UUID, schedule_id: UUID, *, from_: datetime, to: datetime, limit: int) -> list[Tick]:
        """Ledger rows of a schedule that overlap [from, to), oldest first."""

    async def tick_recent(self, tenant_id: UUID, ids: Sequence[UUID], *, from_: datetime, limit: int) -> list[Tick]:
        """The `limit` newest ledger rows since `from_` of each of these schedules; the rows of a schedule are oldest first."""

    async def tick_totals(self, tenant_id: UUID, ends: Mapping[UUID, datetime], *, from_: datetime) -> list[TickTotal]:
        """Totals of ledger rows that begin in [from, end), by schedule, outcome and reason. Each schedule has its own end."""

    async def tick_ranges(self, tenant_id: UUID, ends: Mapping[UUID, datetime], *, from_: datetime) -> list[Tick]:
        """Skipped ranges that cross a boundary of [from, end). Each schedule has its own end."""

    async def tick_doubled(self, tenant_id: UUID, ids: Sequence[UUID], *, from_: datetime, to: datetime) -> dict[UUID, int]:
        """The number of ticks in [from, to) with more than one task, by schedule. There should be none."""

    # Ownership

    async def partition_renew(
        self, heartbeat: NodeHeartbeat, wanted: frozenset[int], *, now: datetime | None = None
    ) -> PartitionRenewal:
        """Record a heartbeat. Renew wanted partitions, release unwanted ones, and take wanted ones that are free or expired.

        A node whose version is older than the schema gets none.
        """

    async def partition_release(self, node_id: UUID) -> int:
        """Release all partitions of a node, and delete the node."""

    async def partition_list(self) -> list[PartitionInfo]:
        """All partitions with their owners."""

    async def node_list(self, *, now: datetime | None = None) -> tuple[datetime, list[NodeInfo]]:
        """All nodes, and the current time."""

    async def node_prune(self, *, unseen_seconds: float, now: datetime | None = None) -> int:
        """Delete nodes without a heartbeat for `unseen_seconds`."""

    # Tasks

    async def task_submit(
        self,
        tasks: Sequence[NewTask],
        *,
        has_single_key: bool = False,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> SubmitResult:
        """Write all new tasks or none, each idempotency key only once.

        A task is running if it has a lease owner, scheduled if its time is in the future, and otherwise ready.
        `has_single_key`: the key of the first task applies to all of them. If it was used before, no task is written.
        The audit log entries are written if any task is written.
        """

    async def task_flows(
        self, tenant_id: UUID | None, queues: Sequence[str], *, after: Sequence[Flow] = (), limit: int
    ) -> list[Flow]:
        """The flows of these queues that have ready tasks, of one tenant or of all (None). At most `limit` of each queue.

        `after`: the last flow of each queue that had more than `limit` flows; the result continues after it.
        """

    async def task_ready_queues(self, *, after: ReadyQueue | None, limit: int) -> list[ReadyQueue]:
        """The queues that have ready tasks, with the tenants of these tasks, in order, after the given one."""

    async def task_claim(
        self,
        steps: Sequence[ClaimStep],
        claim_requests: Sequence[ClaimRequest],
        *,
        limited: Collection[UUID] = (),
        total_seconds: float = 7 * 86_400,
        now: datetime | None = None,
    ) -> ClaimResult:
        """Claim ready tasks under leases with new fences. Steps and requests are served in order, the oldest tasks first.

        No two steps have the same priority, tenant and fair key. `limited`: tenants with a limit of running tasks. They get
        no more tasks than the limit allows.
        """

    async def task_claim_triggered(
        self,
        tenant_id: UUID | None,
        queues: Sequence[str],
        types: Sequence[str] | None,
        claim_request: ClaimRequest,
        *,
        limited: Collection[UUID] = (),
        total_seconds: float = 7 * 86_400,
        now: datetime | None = None,
    ) -> ClaimResult:
        """Claim tasks of manual triggers in those of the queues that are paused; the other verbs leave them ready.

        `limited`: tenants with a limit of running tasks. Those that have reached it get none, and the others at most as many as
        the first of them may still run.
        """

    async def task_heartbeat(self, heartbeats: Sequence[HeartbeatWrite], *, now: datetime | None = None) -> list[RenewedLease]:
        """Renew leases up to their deadlines, and store progress and logs. A lease with a cancel request is not renewed."""

    async def task_complete(
        self,
        results: Sequence[tuple[LeaseRef, str | None]],
        *,
        responses: Mapping[LeaseRef, str] = NO_RESPONSES,
        now: datetime | None = None,
    ) -> CompleteResult:
        """Complete running tasks under their leases, and move them to history. A stale fence changes nothing.

        `responses`: what the destinations of deliveries answered, as JSON.
        """

    async def task_accept(
        self, acceptances: Sequence[tuple[LeaseRef, float, str | None]], *, now: datetime | None = None
    ) -> list[RenewedLease]:
        """Keep tasks running that their destination has accepted, for a time without a heartbeat, and store its response."""

    async def task_targets(self, ids: Sequence[UUID]) -> dict[UUID, str]:
        """The targets of these live tasks, as JSON."""

    async def task_queues(self, ids: Sequence[UUID]) -> dict[UUID, str]:
        """The queues of these tasks, live or finished."""

    async def task_running(
        self, leases: Sequence[LeaseRef], *, now: datetime | None = None
    ) -> tuple[datetime, list[LeasedTask]]:
        """The tasks whose lease in `leases` is valid, with the fields that the retry decision needs."""

    async def task_expired(self, *, limit: int, now: datetime | None = None) -> tuple[datetime, list[LeasedTask]]:
        """Running tasks with an expired lease, the oldest first."""

    async def task_end(self, endings: Sequence[AttemptEnd], *, is_expired: bool, now: datetime | None = None) -> EndResult:
        """End attempts whose lease is valid (or expired). The task is put back, or moved to history and the dead letters."""

    async def task_ended(self, leases: Sequence[LeaseRef]) -> list[EndedAttempt]:
        """How attempts with these fences were ended earlier."""

    async def task_promote(self, *, limit: int, now: datetime | None = None) -> PromoteResult:
        """Make delayed tasks ready that are due. Also returns when the next one is due."""

    async def task_release_held(
        self, schedule_ids: Sequence[UUID] | None, *, limit: int, now: datetime | None = None
    ) -> HeldReleaseResult:
        """Release held tasks of these schedules (None: of all) as far as their overlap policies allow."""

    async def task_cancel(
        self, tenant_id: UUID, ids: Sequence[UUID], *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> CancelResult:
        """Cancel tasks that have not started, and set a cancel request on running ones."""

    async def task_reschedule(
        self,
        tenant_id: UUID,
        id_: UUID,
        run_at: datetime,
        *,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> list[TaskChange]:
        """Change `run_at` of a task that has not started. Returns no change if there is no such task."""

    async def task_find(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[TaskRecord]:
        """The tenant's tasks with these ids, live or finished."""

    async def task_list(self, tenant_id: UUID, filter_: TaskFilter, *, before: UUID | None, limit: int, live: bool) -> TaskScan:
        """Live or finished tasks, newest first. The scan is bounded and may end before it has found `limit` tasks."""

    async def task_match(self, tenant_id: UUID, filter_: TaskMatch, *, before: UUID | None, limit: int, live: bool) -> TaskIds:
        """The ids of live or finished tasks that match, newest first. The scan is bounded, like that of task_list."""

    async def task_attempts(self, tenant_id: UUID, id_: UUID) -> list[Attempt]:
        """The attempts of a task that did not end it, oldest first."""

    async def task_log(self, tenant_id: UUID, id_: UUID, *, after: UUID | None, limit: int) -> list[LogLine]:
        """The log lines of a task, oldest first."""

    async def task_ticks(self, tenant_id: UUID, schedule_id: UUID, *, from_: datetime, to: datetime) -> list[datetime]:
        """The ticks in [from, to) that have a backfill task, live or finished."""

    async def task_runs(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[FinishedRun]:
        """How the finished ones among these tasks of schedules ended, oldest first."""

    # Dead letters

    async def dead_find(self, tenant_id: UUID, task_ids: Sequence[UUID]) -> list[DeadLetter]:
        """The tenant's dead letters for these tasks."""

    async def dead_list(
        self,
        tenant_id: UUID,
        filter_: DeadFilter,
        *,
        before: tuple[datetime, UUID] | None,
        limit: int,
        only_never_replayed: bool = False,
    ) -> list[DeadLetter]:
        """Dead letters, newest first; optionally only those that were never replayed."""

    async def dead_errors(self, tenant_id: UUID, filter_: DeadFilter, *, limit: int) -> list[DeadError]:
        """Why the newest dead letters died, without their payloads, newest first."""

    async def dead_replay(
        self,
        tenant_id: UUID,
        replays: Sequence[Replay],
        *,
        again: bool,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> ReplayResult:
        """Create new tasks from dead letters, and record the replays. Those replayed before are skipped unless `again` is set.

        If any new task has a key, all are replayed or none. None is replayed if a key is taken.
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
        """Remove the payloads and errors of up to `limit` dead letters, and hide them. The rows are kept as a record."""

    async def task_ready_count(
        self, tenant_id: UUID, *, limit: int, soon_seconds: float = 0.0, now: datetime | None = None
    ) -> int:
        """The number of a tenant's tasks that are ready or due within `soon_seconds`, counted up to `limit`."""

    async def task_position(
        self, tenant_id: UUID, queue: str, *, priority: int, run_at: datetime, id_: UUID, limit: int
    ) -> tuple[int, int]:
        """How many ready tasks of the tenant are before one in its queue, among the first `limit`; and how many were read."""

    async def task_depths(self, tenant_id: UUID | None = None) -> list[QueueDepth]:
        """The number of live tasks of a tenant, or of all, by queue and state."""

    async def task_queue_list(self, tenant_id: UUID) -> list[QueueTasks]:
        """The numbers of a tenant's live tasks by queue, in order of name."""

    # Workers

    async def worker_write(self, node: str, sightings: Sequence[WorkerSighting], *, now: datetime | None = None) -> int:
        """Write what a node has learned about workers. A worker that has sent only heartbeats is not created."""

    async def worker_list(
        self, tenant_id: UUID, *, queue: str | None = None, before: tuple[datetime, UUID] | None = None, limit: int
    ) -> list[WorkerInfo]:
        """The workers of a tenant and the fleets, optionally only those of a queue, the last seen first."""

    async def worker_queues(self, tenant_id: UUID, *, now: datetime | None = None) -> list[WorkerQueue]:
        """The queues that workers of a tenant and fleets have asked for, in order of name."""

    async def worker_running(self, tenant_id: UUID, workers: Sequence[str]) -> dict[str, int]:
        """The number of running tasks of a tenant by worker."""

    async def worker_prune(self, *, unseen_seconds: float, keep: int, limit: int, now: datetime | None = None) -> int:
        """Delete workers unseen for `unseen_seconds`, and of each tenant those beyond the `keep` last seen ones."""

    # Pauses

    async def pause_write(self, pause: Pause, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None) -> Pause:
        """Begin a pause, or change the reason and the end of an active one of the same queue or tenant. Returns the stored row.

        Once it is committed, no tick of a paused queue fires, and only tasks of manual triggers are claimed from it.
        """

    async def pause_end(
        self,
        tenant_id: UUID | None,
        queue: str | None,
        ended_by: str,
        *,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> list[Pause]:
        """End the pause of exactly this queue, tenant (without a queue) or everything (without a tenant)."""

    async def pause_list(self, tenant_id: UUID | None, *, now: datetime | None = None) -> list[Pause]:
        """The active pauses of a tenant and those of everything; with None those of all tenants. The oldest first."""

    async def pause_find(self, tenant_id: UUID, queue: str, at: datetime) -> list[Pause]:
        """The pauses, active or ended, that stopped a queue of a tenant at a time."""

    async def pause_prune(self, *, ended_seconds: float, limit: int, now: datetime | None = None) -> int:
        """Delete pauses that ended more than `ended_seconds` ago."""

    # Bulk operations

    async def bulk_write(
        self, operation: BulkOperation, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> bool:
        """Write a new operation. False if there is one with this id."""

    async def bulk_claim(self, owner: UUID, *, lease_seconds: float, now: datetime | None = None) -> BulkOperation | None:
        """Take a running operation that no node is working on; None if there is none."""

    async def bulk_advance(
        self,
        operation: BulkOperation,
        progress: BulkProgress,
        owner: UUID,
        *,
        lease_seconds: float,
        now: datetime | None = None,
    ) -> BulkOperation | None:
        """Store a step of an operation. None if another node has continued it, or if it was cancelled: nothing is stored."""

    async def bulk_find(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[BulkOperation]:
        """The tenant's operations with these ids."""

    async def bulk_list(
        self, tenant_id: UUID, *, before: tuple[datetime, UUID] | None = None, limit: int
    ) -> list[BulkOperation]:
        """The tenant's operations, newest first."""

    async def bulk_cancel(
        self, tenant_id: UUID, id_: UUID, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> bool:
        """Cancel a running operation. What it has done stays."""

    async def bulk_prune(self, *, finished_seconds: float, limit: int, now: datetime | None = None) -> int:
        """Delete operations that ended more than `finished_seconds` ago."""

    # Calendars

    async def calendar_list(self, tenant_id: UUID) -> list[Calendar]:
        """The tenant's calendars in order of name."""

    async def calendar_write(
        self, tenant_id: UUID, calendar: Calendar, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> bool:
        """Create or replace a calendar. Returns whether it is new."""

    async def calendar_delete(
        self, tenant_id: UUID, name: str, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> int:
        """Delete a calendar."""

    async def schedule_using_calendar(self, tenant_id: UUID, name: str) -> list[Schedule]:
        """Schedules whose rule may refer to the calendar. The caller checks this."""

    # Endpoints

    async def endpoint_list(self, tenant_id: UUID, *, after_name: str | None, limit: int) -> list[WebhookEndpoint]:
        """The tenant's endpoints in order of name, after the given name."""

    async def endpoint_find(self, keys: Sequence[tuple[UUID, str]]) -> list[WebhookEndpoint]:
        """The endpoints with these tenants and names."""

    async def endpoint_write(
        self,
        endpoint: WebhookEndpoint,
        *,
        expected: int | None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> bool:
        """Write an endpoint, and return whether it was as expected. `expected`: its revision, None if it must be new."""

    async def endpoint_delete(
        self, tenant_id: UUID, name: str, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> int:
        """Delete an endpoint."""

    async def server_secret(self, name: str, candidate: str, *, now: datetime | None = None) -> str:
        """The secret of the server with this name. If there is none, the candidate becomes the secret."""

    # Time zones

    async def schedule_zones(self) -> list[ZoneInUse]:
        """The zones of all active schedules."""

    async def schedule_in_zones(self, zones: Sequence[str], *, after: UUID | None, limit: int) -> list[Schedule]:
        """Active schedules whose rule may depend on these zones, after the given id. The caller checks this."""

    async def zone_list(self, names: Sequence[str]) -> list[ZoneVersion]:
        """The versions of these zones that nodes have used, the oldest of each zone first."""

    async def zone_write(self, fingerprints: Mapping[str, str], *, now: datetime | None = None) -> int:
        """Store versions of zones by name, unless they are known. Returns how many are new."""

    # Tenants

    async def tenant_list(self, *, after_name: str | None, limit: int) -> list[Tenant]:
        """All tenants in order of name, after the given name."""

    async def tenant_find(self, *, ids: Sequence[UUID] = (), names: Sequence[str] = ()) -> list[Tenant]:
        """The tenants with these ids or names."""

    async def tenant_write(
        self,
        writes: Sequence[TenantWrite],
        *,
        response_tenant_id: UUID = DEFAULT_TENANT,
        response: IdempotentResponse | None = None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> bool:
        """Write all tenants or none. Returns whether they were written.

        Nothing is written if a row is not as expected, a name is taken or the idempotency key has been used.
        `response_tenant_id`: the tenant under which the response is stored.
        """

    async def audit_log_list(
        self, tenant_id: UUID | None, filter_: AuditLogFilter, *, before: tuple[datetime, UUID] | None, limit: int
    ) -> list[AuditLogEntry]:
        """Audit log entries of a tenant, or of all (None), newest first."""

    async def audit_log_prune(self, *, before: datetime, limit: int) -> int:
        """Delete audit log entries before that time, the oldest first. Entries of the last 30 days are kept in any case."""

    async def idempotent_response_find(
        self, tenant_id: UUID, key: str, *, now: datetime | None = None
    ) -> IdempotentResponse | None:
        """The response stored under an idempotency key."""

    # API keys

    async def key_find(
        self, *, hashes: Sequence[bytes] = (), ids: Sequence[UUID] = (), now: datetime | None = None
    ) -> tuple[datetime, list[ApiKey]]:
        """The keys with these hashes or ids, including expired and revoked ones, and the current time."""

    async def key_exists(self, *, now: datetime | None = None) -> bool:
        """Whether any usable key exists, other than those of browser sessions."""

    async def key_list(self, tenant_id: UUID | None, *, after: UUID | None, limit: int) -> list[ApiKey]:
        """The keys of a tenant, or of all (None), without browser sessions, in the order of their creation."""

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
        """Store all new keys or none. `only_first`: only if no usable key exists yet."""

    async def key_revoke(
        self,
        tenant_id: UUID | None,
        ids: Sequence[UUID],
        *,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> KeyChange:
        """Revoke all of these keys or none, with their browser sessions, of one tenant or of any (None).

        The last usable admin key, and the last one that does not expire, cannot be revoked.
        """

    async def session_prune(self, *, limit: int, now: datetime | None = None) -> int:
        """Delete browser sessions that have expired. Returns their number."""

    async def key_touch(self, ids: Sequence[UUID], *, now: datetime | None = None) -> int:
        """Record that these keys have just been used."""

    # Maintenance

    async def database_findings(self) -> list[DatabaseFinding]:
        """What an operator should know about the tables and indexes: invalid indexes, dead rows, free pages."""

    async def month_ensure(self, months: Sequence[datetime]) -> list[str]:
        """Create the missing tables for rows of these months. Returns the names of the new tables."""

    async def month_prune(self, *, before: datetime, limit: int) -> int:
        """Delete a limited part of the ledger and history before that time. Returns the number of deleted tables or rows."""

    async def task_key_prune(self, *, limit: int, now: datetime | None = None) -> int:
        """Delete expired idempotency keys of tasks."""

    async def idempotent_response_keep(
        self, tenant_id: UUID, response: IdempotentResponse, *, now: datetime | None = None
    ) -> bool:
        """Store a response under its idempotency key for 24 hours. Returns False if the key has another response."""

    async def idempotent_response_prune(self, *, limit: int, now: datetime | None = None) -> int:
        """Delete expired idempotent responses."""

    async def blob_unused(self, refs: Sequence[str]) -> list[str]:
        """The references among `refs` that no task, finished task or dead letter contains."""


class Observer(Protocol):
    """Called by a store after each call, for telemetry."""

    def __call__(self, verb: str, seconds: float, failed: bool) -> None: ...
