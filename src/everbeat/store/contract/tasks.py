"""The verbs of the Store contract for tasks, leases, dead letters, workers, pauses, bulk operations and endpoints."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.bulk import BulkOperation, BulkProgress
from everbeat.core.endpoints import WebhookEndpoint
from everbeat.core.fairness import ClaimStep, Flow
from everbeat.core.pauses import Pause
from everbeat.core.tasks import Attempt, AttemptEnd, DeadLetter, LeasedTask, LogLine, NewTask, TaskChange, TaskRecord
from everbeat.core.workers import WorkerInfo, WorkerSighting
from everbeat.store.values import (
    NO_RESPONSES,
    CancelResult,
    ClaimRequest,
    ClaimResult,
    CompleteResult,
    DeadError,
    DeadFilter,
    EndedAttempt,
    EndResult,
    FinishedRun,
    HeartbeatWrite,
    HeldReleaseResult,
    LeaseRef,
    PromoteResult,
    QueueDepth,
    QueueTasks,
    ReadyQueue,
    RenewedLease,
    Replay,
    ReplayResult,
    SubmitResult,
    TaskFilter,
    TaskIds,
    TaskMatch,
    TaskScan,
    WorkerQueue,
)


class TaskVerbs(Protocol):
    """See `Store`."""

    # Tasks

    async def task_submit(
        self,
        tasks: Sequence[NewTask],
        *,
        requires_new_keys: bool = False,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> SubmitResult:
        """Write all new tasks or none, each idempotency key only once.

        A task is running if it has a lease owner, scheduled if its time is in the future, and otherwise ready.
        `requires_new_keys`: if a key was used before, or is in the batch more than once, no task is written.
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

    async def task_shorten_leases(self, *, limit: int, now: datetime | None = None) -> int:
        """Let leases end after their length from now that end much later. They were granted before the clock was set back.

        A worker that lives renews its lease meanwhile, and that of a dead one ends.
        """

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
