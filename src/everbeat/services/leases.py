"""The workers' side: claim, heartbeat, complete, fail, release. Every write carries its fence; a stale one changes nothing.

`holder` is the tenant whose tasks the worker may hold, None for a fleet that works for all. `queues` are those its key is
restricted to, if it is.

A lease is a right with an end: what comes after it is answered `stale` or `lost`, also when nobody else has the task yet. An
answer that was lost is given again: a repeated completion or failure under the same fence says what the first one said.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from everbeat.core.errors import EverbeatError, Forbidden, InvalidInput
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
from everbeat.core.tasks import AttemptOutcome, ClaimedTask, ClaimedTaskWithoutPayload, LeasedTask, TaskError, TaskState
from everbeat.services.attempts import AttemptEnder
from everbeat.services.blobs import BlobStore, tenant_at
from everbeat.services.group_commit import GroupCommit
from everbeat.services.long_polls import LongPolls
from everbeat.services.payloads import FilledTasks, LargePayloads
from everbeat.services.publisher import ChangePublisher
from everbeat.store.base import Store
from everbeat.store.values import EndedAttempt, HeartbeatWrite, LeaseRef, RenewedLease

_MAX_ROWS = 1000
_AWAY_SECONDS = 5.0

_Named = LeaseHeartbeat | LeaseCompletion | LeaseFailure | Lease
Results = list[tuple[LeaseRef, str | None]]
Held = set[tuple[UUID, int]]


class LeaseService:
    """The room behind /v1/worker. `now` is None in production: the database's clock decides."""

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
    ) -> None:
        self._store = store
        self._attempts = attempts
        self._publisher = publisher
        self._total_seconds = total_seconds
        self._payloads = payloads or LargePayloads(BlobStore(None))
        self._random_fraction = random_fraction
        self._long_polls = long_polls
        self._completions: GroupCommit[Results, Held] = GroupCommit(self._write_completions, max_rows=_MAX_ROWS, count_rows=len)
        self._beats: GroupCommit[list[HeartbeatWrite], dict[tuple[UUID, int], RenewedLease]] = GroupCommit(
            self._write_heartbeats, max_rows=_MAX_ROWS, count_rows=len
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
        if queues is not None and (others := sorted(set(claim.queues) - queues)):
            raise Forbidden(f"This API key may work on {', '.join(sorted(queues))}, but not on the queue {others[0][:200]}.")
        tasks = await self._long_polls.ask(lease_tenant_id, claim, now=now)
        if tasks:
            tasks = await self._filled(lease_tenant_id, tasks, now)
        return tasks

    async def _filled(self, lease_tenant_id: UUID | None, tasks: list[ClaimedTask], now: datetime | None) -> list[ClaimedTask]:
        """With their large payloads; what has to wait for its own is put back, and does not hold up the others."""
        if not any(isinstance(task, ClaimedTaskWithoutPayload) for task in tasks):
            return tasks
        try:
            filled = await self._payloads.fill(tasks)
        except BaseException:  # the worker went away meanwhile
            await asyncio.shield(asyncio.ensure_future(self._long_polls.return_tasks(lease_tenant_id, tasks)))
            raise
        await self._return_unfilled(filled, now)
        return filled.tasks

    async def _return_unfilled(self, filled: FilledTasks, now: datetime | None) -> None:
        back = {(task.id, task.fence): task for task in (*filled.over, *filled.away, *filled.missing)}
        if not back:
            return
        missing, away = {task.id for task in filled.missing}, {task.id for task in filled.away}

        def decide(task: LeasedTask, moment: datetime) -> tuple[RetryDecision, str | None]:
            if task.cancel_requested:
                return RetryDecision(AttemptOutcome.CANCELLED, TaskState.CANCELLED), None
            if task.id in missing:
                decision = RetryDecision(AttemptOutcome.FAILED, TaskState.DEAD, reason="its payload is gone")
                return decision, error_text("the payload is no longer in the blob store", PAYLOAD_MISSING_KIND)
            if task.id in away:
                run_at = moment + timedelta(seconds=_AWAY_SECONDS)
                return RetryDecision(AttemptOutcome.RELEASED, TaskState.SCHEDULED, run_at), None
            return RetryDecision(AttemptOutcome.RELEASED, TaskState.READY), None

        leases = [LeaseRef(tenant_at(task.payload_ref), task.id, task.fence) for task in back.values()]
        with contextlib.suppress(EverbeatError):  # their leases run out; the others are not to wait for that
            await self._attempts.end(leases, decide, now, was_reported=lambda _past: False)

    async def _allowed(self, leases: Sequence[_Named], queues: frozenset[str] | None) -> Collection[UUID]:
        """Tasks that a key for certain queues may settle; those of others are to it as if they were not there."""
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
        allowed = await self._allowed(heartbeat.leases, queues)
        writes = [_heartbeat_write(lease_tenant_id, beat) for beat in heartbeat.leases if beat.id in allowed]
        found: dict[tuple[UUID, int], RenewedLease] = {}
        if writes:
            found = await self._beats.add(writes) if now is None else (await self._write_heartbeats([writes], now))[0]
        held = {lease: one for lease, one in found.items() if lease[0] in allowed}
        return [_heartbeat_result(beat.id, held.get((beat.id, beat.fence))) for beat in heartbeat.leases]

    async def _write_heartbeats(
        self, groups: list[list[HeartbeatWrite]], now: datetime | None = None
    ) -> list[dict[tuple[UUID, int], RenewedLease]]:
        answers: list[dict[tuple[UUID, int], RenewedLease]] = [{} for _ in groups]
        for places in _heartbeat_loop([[beat.lease for beat in group] for group in groups]):
            beats = [beat for place in places for beat in groups[place]]
            found = {(one.id, one.fence): one for one in await self._store.task_heartbeat(beats, now=now)}
            for place in places:
                answers[place] = found
        return answers

    # Endings

    async def complete(
        self,
        lease_tenant_id: UUID | None,
        completion: LeaseCompleteRequest,
        *,
        queues: frozenset[str] | None = None,
        now: datetime | None = None,
    ) -> list[LeaseResult]:
        _check_worker(completion.worker)
        given = completion.results
        allowed = await self._allowed(given, queues)
        results: Results = [
            (LeaseRef(lease_tenant_id, one.id, one.fence), result_text(one.result)) for one in given if one.id in allowed
        ]
        done: Held = set()
        if results:
            done = await self._completions.add(results) if now is None else (await self._write_completions([results], now))[0]
        is_done = [one.id in allowed and (one.id, one.fence) in done for one in given]
        return [LeaseResult(one.id, "ok" if is_so else "stale") for one, is_so in zip(given, is_done, strict=True)]

    async def _write_completions(self, groups: list[Results], now: datetime | None = None) -> list[Held]:
        answers: list[Held] = [set() for _ in groups]
        for places in _heartbeat_loop([[lease for lease, _ in group] for group in groups]):
            results = [result for place in places for result in groups[place]]
            completed = await self._store.task_complete(results, now=now)
            self._publisher.publish(completed.changes)
            done = set(completed.finished | completed.repeated)
            for place in places:
                answers[place] = done
        return answers

    async def fail(
        self,
        lease_tenant_id: UUID | None,
        failures: LeaseFailRequest,
        *,
        queues: frozenset[str] | None = None,
        now: datetime | None = None,
    ) -> list[LeaseResult]:
        _check_worker(failures.worker)
        given = {(one.id, one.fence): one for one in failures.failures}

        def decide(task: LeasedTask, moment: datetime) -> tuple[RetryDecision, str | None]:
            failure: LeaseFailure = given[task.id, task.fence]
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
            # Else it was the reaper that ended it as cancelled or out of time, and this error is kept nowhere.
            kind = given[past.id, past.fence].error.kind
            return past.outcome == "failed" or (kind in (CANCELLED_KIND, TIMEOUT_KIND) and past.outcome == kind)

        allowed = await self._allowed(failures.failures, queues)
        leases = [LeaseRef(lease_tenant_id, id_, fence) for id_, fence in given if id_ in allowed]
        answers = await self._attempts.end(leases, decide, now, was_reported=was_reported)
        return [answers.get((one.id, one.fence)) or LeaseResult(one.id, "stale") for one in failures.failures]

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


def _heartbeat_loop(groups: Sequence[Sequence[LeaseRef]]) -> list[list[int]]:
    """Which requests may be written together: no two tenants that name the same lease, for only one of them has it."""
    if len({group[0].tenant_id for group in groups}) == 1:
        return [list(range(len(groups)))]
    rounds: list[tuple[dict[tuple[UUID, int], UUID | None], list[int]]] = []
    for place, group in enumerate(groups):
        named = {(lease.id, lease.fence): lease.tenant_id for lease in group}
        fitting = (one for one in rounds if all(one[0].get(lease, tenant) == tenant for lease, tenant in named.items()))
        taken, places = next(fitting, ({}, []))
        if not places:
            rounds.append((taken, places))
        taken.update(named)
        places.append(place)
    return [places for _, places in rounds]


def _heartbeat_write(lease_tenant_id: UUID | None, beat: LeaseHeartbeat) -> HeartbeatWrite:
    progress = beat.progress or Progress()
    return HeartbeatWrite(
        LeaseRef(lease_tenant_id, beat.id, beat.fence), progress.fraction, _storable(progress.message), _storable(beat.log)
    )


def _heartbeat_result(id_: UUID, beaten: RenewedLease | None) -> LeaseHeartbeatResult:
    if beaten is None:
        return LeaseHeartbeatResult(id_, "lost", None)
    return LeaseHeartbeatResult(id_, "cancel" if beaten.cancel_requested else "ok", beaten.lease_until)


def _storable(text: str | None) -> str | None:
    """Text that every database takes; refused, it would cost all the other leases of the heartbeat."""
    return None if text is None else text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def _check_worker(worker: str) -> None:
    if has_control_characters(worker) or not is_encodable(worker):
        raise InvalidInput.of("worker", "must be 1 to 200 characters without control characters")
