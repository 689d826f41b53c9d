"""What happens to a task whose attempt failed, was lost or timed out. Random numbers are an argument."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple, assert_never

import msgspec

from everbeat.core.schedules import Retry, RetryKind
from everbeat.core.tasks import AttemptOutcome, LeasedTask, TaskError, TaskState

CANCELLED_KIND = "cancelled"
TIMEOUT_KIND = "timeout"
PAYLOAD_MISSING_KIND = "payload-missing"
_MAX_DOUBLINGS = 64
_decode_retry = msgspec.json.Decoder(Retry).decode


class RetryDecision(NamedTuple):
    """The outcome of the attempt and the next state. `run_at`: set with `scheduled`. `reason`: why the task is not retried."""

    outcome: AttemptOutcome
    state: TaskState
    run_at: datetime | None = None
    reason: str | None = None


def backoff_seconds(retry: Retry, attempt: int, random_fraction: float) -> float:
    """Return the delay after `attempt` attempts. With jitter, it is multiplied by `random_fraction`, which is in [0, 1)."""
    match retry.kind:
        case RetryKind.FIXED:
            seconds = retry.base_seconds
        case RetryKind.LINEAR:
            seconds = retry.base_seconds * attempt
        case RetryKind.EXPONENTIAL:
            seconds = retry.base_seconds * retry.factor ** min(attempt - 1, _MAX_DOUBLINGS)
        case _:
            assert_never(retry.kind)
    seconds = min(seconds, retry.max_seconds)
    return seconds * random_fraction if retry.jitter else seconds


def after_failure(
    task: LeasedTask,
    error: TaskError,
    *,
    now: datetime,
    random_fraction: float,
    total_seconds: float,
    is_retryable: bool = True,
    retry_in_seconds: float | None = None,
) -> RetryDecision:
    """Decide what follows a failure that a worker has reported."""
    outcome = AttemptOutcome.TIMEOUT if error.kind == TIMEOUT_KIND else AttemptOutcome.FAILED
    if task.cancel_requested:
        if error.kind == CANCELLED_KIND:
            return RetryDecision(AttemptOutcome.CANCELLED, TaskState.CANCELLED)
        return RetryDecision(outcome, TaskState.FAILED, reason="it failed after a cancel was requested")
    if not is_retryable:
        return RetryDecision(outcome, TaskState.DEAD, reason="its worker reported that it is not retryable")
    return _retry_or_end(task, outcome, now, random_fraction, total_seconds, retry_in_seconds)


def after_expiry(task: LeasedTask, *, now: datetime, random_fraction: float, total_seconds: float) -> RetryDecision:
    """Decide what follows an expired lease. Either the attempt timed out, or its worker sent no heartbeats."""
    if task.cancel_requested:
        return RetryDecision(AttemptOutcome.CANCELLED, TaskState.CANCELLED)
    if now >= task.deadline_at:
        return _retry_or_end(task, AttemptOutcome.TIMEOUT, now, random_fraction, total_seconds, None)
    # The task has usually not caused the loss of its worker, so it is retried immediately. max_attempts limits a task that
    # crashes its workers.
    return _retry_or_end(task, AttemptOutcome.LOST, now, random_fraction, total_seconds, 0)


def _retry_or_end(
    task: LeasedTask,
    outcome: AttemptOutcome,
    now: datetime,
    random_fraction: float,
    total_seconds: float,
    wait_seconds: float | None,
) -> RetryDecision:
    if task.attempt >= task.max_attempts:
        attempts = "its only attempt" if task.max_attempts == 1 else f"all {task.max_attempts} attempts"
        return RetryDecision(outcome, TaskState.DEAD, reason=f"{attempts} failed (last outcome: {outcome.value})")
    if wait_seconds is None:
        wait_seconds = backoff_seconds(_decode_retry(task.retry), task.attempt, random_fraction)
    run_at = now + timedelta(seconds=wait_seconds)
    if run_at >= task.first_started_at + timedelta(seconds=total_seconds):
        return RetryDecision(
            outcome, TaskState.DEAD, reason=f"a retry would exceed the total limit of {total_seconds:.0f} seconds"
        )
    if wait_seconds <= 0:
        return RetryDecision(outcome, TaskState.READY)
    return RetryDecision(outcome, TaskState.SCHEDULED, run_at)
