"""Records the outcomes of deliveries under their leases. Outcomes that arrive together are written together.

If the database is unavailable, the outcome is written again until the lease has expired: a repeated write with the same fence
changes nothing. If the outcome cannot be recorded, the task is delivered again, with the same message id.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any, NamedTuple, assert_never
from uuid import UUID

import msgspec

from everbeat.core.deliveries import DeliveryResponse
from everbeat.core.errors import EverbeatError, StoreLocked, StoreUnavailable
from everbeat.core.retries import CANCELLED_KIND, RetryDecision, after_failure
from everbeat.core.submissions import error_text, result_text
from everbeat.core.tasks import ClaimedTask, LeasedTask, TaskError
from everbeat.delivery.base import Accepted, Delivered, DeliveryOutcome, Refused, RetryDelivery
from everbeat.services.attempts import AttemptEnder
from everbeat.services.group_commit import GroupCommit
from everbeat.services.leases import LeaseService
from everbeat.services.schedules import ScheduleService
from everbeat.store.base import Store
from everbeat.store.values import EndedAttempt, LeaseRef

_MAX_ROWS = 1000
_UNLIMITED_LEASE_SECONDS = 7 * 86_400.0
_FIRST_DELAY, _MAX_DELAY = 0.2, 5.0


class CancelledDelivery(NamedTuple):
    """The task was cancelled while it was being delivered. The destination may have received it."""


class _Failure(NamedTuple):
    lease: LeaseRef
    error: TaskError
    is_retryable: bool
    after: float | None
    response: str | None


class DeliveryReports:
    def __init__(
        self,
        store: Store,
        leases: LeaseService,
        attempts: AttemptEnder,
        schedules: ScheduleService,
        *,
        total_seconds: float,
        random_fraction: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._leases = leases
        self._attempts = attempts
        self._schedules = schedules
        self._total_seconds = total_seconds
        self._random_fraction = random_fraction
        self._failures: GroupCommit[_Failure, None] = GroupCommit(
            self._write_failures,
            max_rows=_MAX_ROWS,
            count_rows=lambda _one: 1,
            on_batch=attempts.publisher.report_group_commit("task_end"),
        )

    async def record(self, task: ClaimedTask, outcome: DeliveryOutcome | CancelledDelivery) -> None:
        """Record an outcome. Returns when it is written, or when the lease has expired meanwhile."""
        delay = _FIRST_DELAY
        deadline = asyncio.get_running_loop().time() + task.lease_seconds
        while True:
            try:
                await self._write(task, outcome)
                return
            except (StoreUnavailable, StoreLocked):
                if asyncio.get_running_loop().time() + delay > deadline:
                    return
                await asyncio.sleep(random.uniform(delay / 2, delay))
                delay = min(delay * 2, _MAX_DELAY)

    async def release(self, tasks: list[ClaimedTask]) -> None:
        """Give back tasks whose delivery was stopped with the node. They are delivered again; the attempt does not count."""
        if tasks:
            with contextlib.suppress(EverbeatError):  # their leases expire
                await self._attempts.release([_lease_of(task) for task in tasks])

    async def _write(self, task: ClaimedTask, outcome: DeliveryOutcome | CancelledDelivery) -> None:
        lease = _lease_of(task)
        match outcome:
            case Delivered():
                await self._leases.complete_delivery(
                    lease, result_text(msgspec.Raw(msgspec.json.encode(outcome.result))), _response_text(outcome.response)
                )
            case Accepted():
                seconds = _UNLIMITED_LEASE_SECONDS if outcome.lease_seconds is None else outcome.lease_seconds
                await self._store.task_accept([(lease, seconds, _response_text(outcome.response))])
            case RetryDelivery():
                error = TaskError(message=outcome.why, kind=outcome.kind)
                await self._failures.add(_Failure(lease, error, True, outcome.after, _response_text(outcome.response)))
            case Refused():
                error = TaskError(message=outcome.why, kind=outcome.kind)
                await self._failures.add(_Failure(lease, error, False, None, _response_text(outcome.response)))
                if outcome.pauses_schedule and task.schedule_id is not None:
                    await self._pause(task.tenant_id, task.schedule_id, outcome.why)
            case CancelledDelivery():
                error = TaskError(message="the task was cancelled while it was being delivered", kind=CANCELLED_KIND)
                await self._failures.add(_Failure(lease, error, True, None, None))
            case _:
                assert_never(outcome)

    async def _pause(self, tenant_id: UUID, schedule_id: UUID, note: str) -> None:
        with contextlib.suppress(EverbeatError):  # it was deleted, or is finished
            await self._schedules.pause(tenant_id, str(schedule_id), note=note[:500])

    async def _write_failures(self, failures: list[_Failure]) -> list[None]:
        by_lease = {(one.lease.id, one.lease.fence): one for one in failures}

        def decide(task: LeasedTask, moment: Any) -> tuple[RetryDecision, str | None]:
            failure = by_lease[task.id, task.fence]
            decision = after_failure(
                task,
                failure.error,
                now=moment,
                random_fraction=self._random_fraction(),
                total_seconds=self._total_seconds,
                is_retryable=failure.is_retryable,
                retry_in_seconds=failure.after,
            )
            if not failure.is_retryable and not task.cancel_requested:
                decision = decision._replace(reason=f"the delivery was refused: {failure.error.message}"[:1000])
            return decision, error_text(failure.error.message, failure.error.kind)

        def was_reported(past: EndedAttempt) -> bool:
            return past.outcome in ("failed", "timeout", "cancelled")

        responses = {key: one.response for key, one in by_lease.items() if one.response is not None}
        leases = [one.lease for one in failures]
        await self._attempts.end(leases, decide, None, was_reported=was_reported, responses=responses)
        return [None] * len(failures)


def _lease_of(task: ClaimedTask) -> LeaseRef:
    return LeaseRef(task.tenant_id, task.id, task.fence)


def _response_text(response: DeliveryResponse | None) -> str | None:
    return None if response is None else msgspec.json.encode(response).decode()
