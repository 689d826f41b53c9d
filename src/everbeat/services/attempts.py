"""Ends attempts whose lease holds: when a worker reports, or when claimed tasks cannot be delivered to their worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

from everbeat.core.errors import StoreLocked
from everbeat.core.lock_retries import REQUEST_DELAYS_SECONDS
from everbeat.core.protocol import LeaseResult
from everbeat.core.retries import RetryDecision
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, ClaimedTask, LeasedTask, TaskState
from everbeat.services.locked_writes import LOCKED_MESSAGE
from everbeat.services.publisher import ChangePublisher
from everbeat.store.base import Store
from everbeat.store.values import EndedAttempt, EndResult, LeaseRef

_TRIES = 3
_NONE_ENDED = EndResult(frozenset(), frozenset())

Next = Literal["retry", "dead", "failed"]
Decide = Callable[[LeasedTask, datetime], tuple[RetryDecision, str | None]]
NO_RESPONSES: Mapping[tuple[UUID, int], str] = {}
LeaseResults = dict[tuple[UUID, int], LeaseResult]

_NEXT: dict[TaskState, Next] = {
    TaskState.READY: "retry",
    TaskState.SCHEDULED: "retry",
    TaskState.DEAD: "dead",
    TaskState.FAILED: "failed",
}
_PAST_NEXT: dict[str | None, Next] = {None: "retry", "dead": "dead", "failed": "failed", "cancelled": "failed"}


class AttemptEnder:
    def __init__(self, store: Store, publisher: ChangePublisher) -> None:
        self._store = store
        self.publisher = publisher

    async def end(
        self,
        leases: Sequence[LeaseRef],
        decide: Decide,
        now: datetime | None,
        *,
        was_reported: Callable[[EndedAttempt], bool],
        responses: Mapping[tuple[UUID, int], str] = NO_RESPONSES,
    ) -> LeaseResults:
        """End attempts with the decisions that `decide` returns.

        The result of a lease that no longer holds is `stale`, unless `was_reported` returns True for the earlier end of the
        attempt: then the earlier result is returned again. `responses`: what destinations answered, as JSON.
        """
        results = {(lease.id, lease.fence): LeaseResult(lease.id, "stale") for lease in leases}
        undecided = list(leases)
        delays = iter(REQUEST_DELAYS_SECONDS)
        tries = 0
        while undecided and tries < _TRIES:  # if an attempt is cancelled between the two statements, it is decided again
            moment, running = await self._store.task_running(undecided, now=now)
            endings = [attempt_end(task, *decide(task, moment), responses.get((task.id, task.fence))) for task in running]
            ended = await self._store.task_end(endings, is_expired=False, now=now) if endings else _NONE_ENDED
            recorded = [one for one in endings if (one.id, one.fence) in ended.ids]
            results |= {(one.id, one.fence): LeaseResult(one.id, "ok", _NEXT.get(one.state, "failed")) for one in recorded}
            self.publisher.publish(ended.changes)
            missed = [one for one in endings if (one.id, one.fence) not in ended.ids]
            undecided = [LeaseRef(one.tenant_id, one.id, one.fence) for one in missed]
            if not ended.locked:
                tries += 1
                continue
            self.publisher.report_locked("task_end", [id_ for id_, _ in ended.locked])
            if (delay := next(delays, None)) is None:  # the worker repeats its report; what was recorded is returned again
                raise StoreLocked(LOCKED_MESSAGE)
            await asyncio.sleep(delay)
        stale = [lease for lease in leases if results[lease.id, lease.fence].status == "stale"]
        if stale:
            for past in await self._store.task_ended(stale):
                if was_reported(past):
                    results[past.id, past.fence] = LeaseResult(past.id, "ok", _PAST_NEXT.get(past.state))
            self.publisher.report_stale("end", sum(one.status == "stale" for one in results.values()))
        return results

    async def release(self, leases: Sequence[LeaseRef], now: datetime | None = None) -> LeaseResults:
        """Make the tasks ready again, or cancel them if that was requested. A released attempt does not count."""

        def decide(task: LeasedTask, _moment: datetime) -> tuple[RetryDecision, str | None]:
            if task.cancel_requested:
                return RetryDecision(AttemptOutcome.CANCELLED, TaskState.CANCELLED), None
            return RetryDecision(AttemptOutcome.RELEASED, TaskState.READY), None

        return await self.end(leases, decide, now, was_reported=lambda past: past.outcome in ("released", "cancelled"))

    async def release_claimed(self, lease_tenant_id: UUID | None, tasks: Sequence[ClaimedTask]) -> None:
        """Release tasks whose worker disconnected before it received them."""
        await self.release([LeaseRef(lease_tenant_id, task.id, task.fence) for task in tasks])


def attempt_end(task: LeasedTask, decision: RetryDecision, error: str | None, response: str | None = None) -> AttemptEnd:
    return AttemptEnd(
        task.id,
        task.tenant_id,
        task.fence,
        decision.outcome,
        decision.state,
        decision.run_at,
        error,
        decision.reason,
        response,
    )
