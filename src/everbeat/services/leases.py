"""Operations of workers: claim, heartbeat, complete, fail, release. Every write has a fence; an older fence changes nothing.

`lease_tenant_id` is the tenant whose tasks the worker may claim; None for a fleet, which serves all tenants. `queues` are the
queues that the worker's key is restricted to; None if it is not restricted.

After the end of a lease the result is `stale` or `lost`, even if no other worker has claimed the task yet. A response may get
lost, so a repeated completion or failure with the same fence has the same result as the first one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from everbeat.core.errors import EverbeatError, Forbidden, InvalidInput, StoreLocked
from everbeat.core.lock_retries import REQUEST_DELAYS_SECONDS, lock_delay
from everbeat.core.names import NAME_MESSAGE, has_control_characters, is_encodable, is_name
from everbeat.core.protocol import (
    Lease,
    LeaseClaimRequest,
    LeaseCompleteRequest,
    LeaseCompletion,
    LeaseFailRequest,
    LeaseFailure,
    LeaseHeartbeat,
    LeaseHeartbeatRequest,
    LeaseHeartbeatResult,
    LeaseReleaseRequest,
    LeaseResult,
    Progress,
)
from everbeat.core.retries import CANCELLED_KIND, PAYLOAD_MISSING_KIND, TIMEOUT_KIND, RetryDecision, after_failure
from everbeat.core.submissions import error_text, result_text
from everbeat.core.targets import RESERVED_QUEUE_MESSAGE, is_reserved_queue
from everbeat.core.tasks import AttemptOutcome, ClaimedTask, ClaimedTaskWithoutPayload, LeasedTask, TaskError, TaskState
from everbeat.services.attempts import AttemptEnder
from everbeat.services.blobs import BlobStore, payload_tenant
from everbeat.services.group_commit import GroupCommit
from everbeat.services.locked_writes import LOCKED_MESSAGE, retry_while_locked
from everbeat.services.long_polls import LongPolls
from everbeat.services.payloads import FilledTasks, LargePayloads, split_by_size
from everbeat.services.publisher import ChangePublisher
from everbeat.services.tracing import TaskTracer
from everbeat.services.workers import WorkerRecorder
from everbeat.store.base import Store
from everbeat.store.values import NO_RESPONSES, EndedAttempt, HeartbeatWrite, LeaseRef, RenewedLease

_MAX_ROWS = 1000
_PAYLOAD_RETRY_SECONDS = 5.0
# The response with the cancel requests of the other leases must not wait for long. The next heartbeat comes soon.
_HEARTBEAT_DELAYS_SECONDS = REQUEST_DELAYS_SECONDS[:4]

_LeaseItem = LeaseHeartbeat | LeaseCompletion | LeaseFailure | Lease
Done = Set[tuple[UUID, int]]
Renewed = dict[tuple[UUID, int], RenewedLease]


class Completed(NamedTuple):
    """The leases of a group commit that are done, and whether any task of this request is locked.

    `are_all_done`: all leases of this request are done, so that they need not be looked up.
    """

    leases: Done
    is_locked: bool = False
    are_all_done: bool = False


class Completions(NamedTuple):
    """Completed leases with their results, and what the destinations of deliveries answered."""

    results: list[tuple[LeaseRef, str | None]]
    responses: Mapping[LeaseRef, str] = NO_RESPONSES

    def count_rows(self) -> int:
        return len(self.results)


class LeaseService:
    """The operations of /v1/worker. `now` is None in production: the database's clock decides."""

    def __init__(
        self,
        store: Store,
        long_polls: LongPolls,
        attempts: AttemptEnder,
        publisher: ChangePublisher,
        *,
        total_seconds: float = 7 * 86_400,
        payloads: LargePayloads | None = None,
        random_fraction: Callable[[], float] = random.random,
        recorder: WorkerRecorder | None = None,
        tracer: TaskTracer | None = None,
    ) -> None:
        self._store = store
        self._attempts = attempts
        self._publisher = publisher
        self._total_seconds = total_seconds
        self._payloads = payloads or LargePayloads(BlobStore(None))
        self._random_fraction = random_fraction
        self._long_polls = long_polls
        self._recorder = recorder
        self._tracer = tracer
        self._completions: GroupCommit[Completions, Completed] = GroupCommit(
            self._write_completions,
            max_rows=_MAX_ROWS,
            count_rows=Completions.count_rows,
            on_batch=publisher.report_group_commit("task_complete"),
        )
        self._heartbeats: GroupCommit[list[HeartbeatWrite], Renewed] = GroupCommit(
            self._write_heartbeats,
            max_rows=_MAX_ROWS,
            count_rows=len,
            on_batch=publisher.report_group_commit("task_heartbeat"),
        )

    # Claiming

    async def claim(
        self,
        lease_tenant_id: UUID | None,
        claim: LeaseClaimRequest,
        *,
        queues: frozenset[str] | None = None,
        now: datetime | None = None,
    ) -> list[ClaimedTask]:
        _check_worker(claim.worker)
        for field, names in (("queues", claim.queues), ("types", claim.types or ())):
            if bad := [name for name in names if not is_name(name)]:
                raise InvalidInput.of(field, f"{bad[0][:100]!r} {NAME_MESSAGE}")
        if any(map(is_reserved_queue, claim.queues)):
            raise InvalidInput.of("queues", RESERVED_QUEUE_MESSAGE)
        if queues is not None and (others := sorted(set(claim.queues) - queues)):
            raise Forbidden(f"This API key may work on {', '.join(sorted(queues))}, but not on the queue {others[0][:200]}.")
        if self._recorder is not None:
            self._recorder.claimed(lease_tenant_id, claim)
        tasks = await self._long_polls.claim(lease_tenant_id, claim, now=now)
        if tasks:
            tasks, rest = split_by_size(tasks)
            if rest:
                await self._long_polls.return_tasks(lease_tenant_id, rest)
            tasks = await self.fill(lease_tenant_id, tasks, now)
        return tasks if self._tracer is None else [self._tracer.with_context(task) for task in tasks]

    async def fill(
        self, lease_tenant_id: UUID | None, tasks: list[ClaimedTask], now: datetime | None = None
    ) -> list[ClaimedTask]:
        """Return the tasks with their large payloads. Tasks whose payload is not available are put back."""
        if not any(isinstance(task, ClaimedTaskWithoutPayload) for task in tasks):
            return tasks
        try:
            filled = await self._payloads.fill(tasks)
        except BaseException:  # usually cancelled, because the worker has disconnected
            await asyncio.shield(asyncio.ensure_future(self._long_polls.return_tasks(lease_tenant_id, tasks)))
            raise
        await self._return_unfilled(filled, now)
        return filled.tasks

    async def _return_unfilled(self, filled: FilledTasks, now: datetime | None) -> None:
        tasks_to_return = {(task.id, task.fence): task for task in (*filled.postponed, *filled.unavailable, *filled.missing)}
        if not tasks_to_return:
            return
        missing, unavailable = {task.id for task in filled.missing}, {task.id for task in filled.unavailable}

        def decide(task: LeasedTask, moment: datetime) -> tuple[RetryDecision, str | None]:
            if task.cancel_requested:
                return RetryDecision(AttemptOutcome.CANCELLED, TaskState.CANCELLED), None
            if task.id in missing:
                decision = RetryDecision(AttemptOutcome.FAILED, TaskState.DEAD, reason="the payload is missing")
                return decision, error_text("the payload is no longer in the blob store", PAYLOAD_MISSING_KIND)
            if task.id in unavailable:
                run_at = moment + timedelta(seconds=_PAYLOAD_RETRY_SECONDS)
                return RetryDecision(AttemptOutcome.RELEASED, TaskState.SCHEDULED, run_at), None
            return RetryDecision(AttemptOutcome.RELEASED, TaskState.READY), None

        leases = [LeaseRef(payload_tenant(task.payload_ref), task.id, task.fence) for task in tasks_to_return.values()]
        with contextlib.suppress(EverbeatError):  # their leases expire; the other tasks must not be delayed
            await self._attempts.end(leases, decide, now, was_reported=lambda _past: False)

    async def _allowed(self, leases: Sequence[_LeaseItem], queues: frozenset[str] | None) -> Collection[UUID]:
        """Return the tasks that a key may report on. If it is restricted to queues, other tasks are treated as missing."""
        ids = {lease.id for lease in leases}
        if queues is None:
            return ids
        found = await self._store.task_queues(list(ids)) if ids else {}
        return {id_ for id_ in ids if found.get(id_) in queues}

    # Heartbeats

    async def heartbeat(
        self,
        lease_tenant_id: UUID | None,
        heartbeat: LeaseHeartbeatRequest,
        *,
        queues: frozenset[str] | None = None,
        now: datetime | None = None,
    ) -> list[LeaseHeartbeatResult]:
        _check_worker(heartbeat.worker)
        if self._recorder is not None:
            self._recorder.heartbeat(lease_tenant_id, heartbeat)
        allowed = await self._allowed(heartbeat.leases, queues)
        writes = [_heartbeat_write(lease_tenant_id, lease) for lease in heartbeat.leases if lease.id in allowed]
        found: Renewed = {}
        if writes:
            found = await self._heartbeats.add(writes) if now is None else (await self._write_heartbeats([writes], now))[0]
            found = await self._renew_locked(writes, found, now)
        renewed = {lease: one for lease, one in found.items() if lease[0] in allowed}
        self._publisher.report_stale("heartbeat", sum((one.id, one.fence) not in renewed for one in heartbeat.leases))
        return [_heartbeat_result(lease.id, renewed.get((lease.id, lease.fence))) for lease in heartbeat.leases]

    async def _renew_locked(self, writes: list[HeartbeatWrite], found: Renewed, now: datetime | None) -> Renewed:
        """Renew the leases whose tasks were locked, apart from other requests.

        A lease whose task stays locked keeps its end, and its worker continues. The next heartbeat renews it.
        """
        found = dict(found)
        for delay in _HEARTBEAT_DELAYS_SECONDS:
            locked = [one for one in writes if _is_locked(found.get((one.lease.id, one.lease.fence)))]
            if not locked:
                break
            await asyncio.sleep(delay)
            for one in locked:
                del found[one.lease.id, one.lease.fence]
            found |= (await self._write_heartbeats([locked], now))[0]
        return found

    async def _write_heartbeats(self, groups: list[list[HeartbeatWrite]], now: datetime | None = None) -> list[Renewed]:
        by_group: list[Renewed] = [{} for _ in groups]
        for indexes in _batches_without_conflict([[write.lease for write in group] for group in groups]):
            writes = [write for index in indexes for write in groups[index]]
            found = {(one.id, one.fence): one for one in await self._store.task_heartbeat(writes, now=now)}
            self._publisher.report_locked("task_heartbeat", [one.id for one in found.values() if one.is_locked])
            for index in indexes:
                by_group[index] = found
        return by_group

    # Reports

    async def complete(
        self,
        lease_tenant_id: UUID | None,
        completion: LeaseCompleteRequest,
        *,
        queues: frozenset[str] | None = None,
        now: datetime | None = None,
    ) -> list[LeaseResult]:
        _check_worker(completion.worker)
        completions: Sequence[LeaseCompletion] = completion.results
        if queues is not None:
            allowed = await self._allowed(completions, queues)
            completions = [one for one in completions if one.id in allowed]
        results = Completions([(LeaseRef(lease_tenant_id, one.id, one.fence), result_text(one.result)) for one in completions])
        completed = Completed(frozenset())
        if completions:
            completed = (
                await self._completions.add(results) if now is None else (await self._write_completions([results], now))[0]
            )
        if completed.are_all_done and len(completions) == len(completion.results):
            return [LeaseResult(one.id, "ok") for one in completions]
        # Only the leases of this request: `done` also has those of the requests that shared the write.
        done = await self._complete_locked(results, completed, now) & {(one.id, one.fence) for one in completions}
        is_done = [(one.id, one.fence) in done for one in completion.results]
        self._publisher.report_stale("complete", is_done.count(False))
        return [LeaseResult(one.id, "ok" if ok else "stale") for one, ok in zip(completion.results, is_done, strict=True)]

    async def complete_delivery(self, lease: LeaseRef, result: str | None, response: str | None) -> None:
        """Complete a task that the deliverer has delivered. If the lease is lost, nothing changes."""
        completion = Completions([(lease, result)], {} if response is None else {lease: response})
        done = await self._complete_locked(completion, await self._completions.add(completion), None)
        self._publisher.report_stale("complete", 0 if (lease.id, lease.fence) in done else 1)

    async def _complete_locked(self, results: Completions, done: Completed, now: datetime | None) -> Done:
        """Complete the tasks that were locked, apart from other requests. Raise StoreLocked if they stay locked.

        The worker then repeats the whole report; for the tasks that are done the result is the same.
        """
        if not done.is_locked:
            return done.leases
        leases = set(done.leases)

        async def write() -> None:
            locked = [one for one in results.results if (one[0].id, one[0].fence) not in leases]
            (again,) = await self._write_completions([Completions(locked, results.responses)], now)
            leases.update(again.leases)
            if again.is_locked:
                raise StoreLocked(LOCKED_MESSAGE)

        await asyncio.sleep(lock_delay(0))
        await retry_while_locked(write)
        return leases

    async def _write_completions(self, groups: list[Completions], now: datetime | None = None) -> list[Completed]:
        by_group: list[Completed] = [Completed(frozenset()) for _ in groups]
        for indexes in _batches_without_conflict([[lease for lease, _ in group.results] for group in groups]):
            results = [result for index in indexes for result in groups[index].results]
            responses = {lease: text for index in indexes for lease, text in groups[index].responses.items()}
            completed = await self._store.task_complete(results, responses=responses, now=now)
            self._publisher.publish(completed.changes)
            self._publisher.report_locked("task_complete", [id_ for id_, _ in completed.locked])
            done, locked = completed.finished | completed.repeated, completed.locked
            for index in indexes:
                is_locked = bool(locked) and any((lease.id, lease.fence) in locked for lease, _ in groups[index].results)
                by_group[index] = Completed(done, is_locked, are_all_done=len(completed.finished) == len(results))
        return by_group

    async def fail(
        self,
        lease_tenant_id: UUID | None,
        failures: LeaseFailRequest,
        *,
        queues: frozenset[str] | None = None,
        now: datetime | None = None,
    ) -> list[LeaseResult]:
        _check_worker(failures.worker)
        failure_of = {(one.id, one.fence): one for one in failures.failures}

        def decide(task: LeasedTask, moment: datetime) -> tuple[RetryDecision, str | None]:
            failure: LeaseFailure = failure_of[task.id, task.fence]
            error = failure.error
            decision = after_failure(
                task,
                TaskError(message=error.message, kind=error.kind),
                now=moment,
                random_fraction=self._random_fraction(),
                total_seconds=self._total_seconds,
                is_retryable=failure.retryable,
                retry_in_seconds=failure.retry_in_seconds,
            )
            return decision, error_text(error.message, error.kind, error.trace)

        def was_reported(past: EndedAttempt) -> bool:
            # Otherwise the reaper ended the attempt as cancelled or timed out, and this error was not recorded.
            kind = failure_of[past.id, past.fence].error.kind
            return past.outcome == "failed" or (kind in (CANCELLED_KIND, TIMEOUT_KIND) and past.outcome == kind)

        allowed = await self._allowed(failures.failures, queues)
        leases = [LeaseRef(lease_tenant_id, id_, fence) for id_, fence in failure_of if id_ in allowed]
        results = await self._attempts.end(leases, decide, now, was_reported=was_reported)
        return [results.get((one.id, one.fence)) or LeaseResult(one.id, "stale") for one in failures.failures]

    async def release(
        self,
        lease_tenant_id: UUID | None,
        release: LeaseReleaseRequest,
        *,
        queues: frozenset[str] | None = None,
        now: datetime | None = None,
    ) -> list[LeaseResult]:
        _check_worker(release.worker)

        allowed = await self._allowed(release.leases, queues)
        leases = [LeaseRef(lease_tenant_id, one.id, one.fence) for one in release.leases if one.id in allowed]
        results = await self._attempts.release(leases, now)
        statuses = {lease: result.status for lease, result in results.items()}
        return [LeaseResult(one.id, statuses.get((one.id, one.fence), "stale")) for one in release.leases]


def _batches_without_conflict(groups: Sequence[Sequence[LeaseRef]]) -> list[list[int]]:
    """Return the indexes of requests that can be written together.

    Requests of different tenants that name the same lease are written separately, because only one of them has the lease.
    """
    if len({group[0].tenant_id for group in groups}) == 1:
        return [list(range(len(groups)))]
    batches: list[tuple[dict[tuple[UUID, int], UUID | None], list[int]]] = []
    for index, group in enumerate(groups):
        named = {(lease.id, lease.fence): lease.tenant_id for lease in group}
        fitting = (one for one in batches if all(one[0].get(lease, tenant) == tenant for lease, tenant in named.items()))
        tenants, indexes = next(fitting, ({}, []))
        if not indexes:
            batches.append((tenants, indexes))
        tenants.update(named)
        indexes.append(index)
    return [indexes for _, indexes in batches]


def _heartbeat_write(lease_tenant_id: UUID | None, lease: LeaseHeartbeat) -> HeartbeatWrite:
    progress = lease.progress or Progress()
    return HeartbeatWrite(
        LeaseRef(lease_tenant_id, lease.id, lease.fence), progress.fraction, _storable(progress.message), _storable(lease.log)
    )


def _heartbeat_result(id_: UUID, renewed: RenewedLease | None) -> LeaseHeartbeatResult:
    if renewed is None:
        return LeaseHeartbeatResult(id_, "lost", None)
    return LeaseHeartbeatResult(id_, "cancel" if renewed.cancel_requested else "ok", renewed.lease_until)


def _is_locked(renewed: RenewedLease | None) -> bool:
    return renewed is not None and renewed.is_locked


def _storable(text: str | None) -> str | None:
    """Replace characters that a database may reject. A rejected text would fail all leases of the heartbeat."""
    return None if text is None else text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def _check_worker(worker: str) -> None:
    if has_control_characters(worker) or not is_encodable(worker):
        raise InvalidInput.of("worker", "must be 1 to 200 characters without control characters")
