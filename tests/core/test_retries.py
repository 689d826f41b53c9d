"""The state of a task after an attempt: backoff of every kind, its limits, and when there is no further attempt."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbeat.core.retries import RetryDecision, after_expiry, after_failure, backoff_seconds
from everbeat.core.schedules import DEFAULT_TENANT, Retry, RetryKind
from everbeat.core.tasks import TRANSITIONS, AttemptOutcome, LeasedTask, TaskError, TaskState

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
DAY = 86_400.0
BROKEN = TaskError(message="broken")
STOPPED = TaskError(message="stopped", kind="cancelled")
FAILED, LOST, TIMEOUT, CANCELLED = (AttemptOutcome(name) for name in ("failed", "lost", "timeout", "cancelled"))

NO_JITTER = Retry(jitter=False)
KINDS = st.sampled_from(RetryKind)
# The ranges that definitions allow.
RETRIES = st.builds(
    Retry,
    kind=KINDS,
    base_seconds=st.floats(0, DAY),
    factor=st.floats(1, 100),
    max_seconds=st.floats(0, 7 * DAY),
    jitter=st.booleans(),
)
FRACTIONS = st.floats(0, 1, exclude_max=True)
ATTEMPTS = st.integers(1, 2**31)


def task(**more: Any) -> LeasedTask:
    retry = more.pop("retry", NO_JITTER)
    given: dict[str, Any] = {
        "id": UUID(int=1),
        "tenant_id": DEFAULT_TENANT,
        "queue": "default",
        "fence": 1,
        "attempt": 1,
        "max_attempts": 3,
        "retry": msgspec.json.encode(retry).decode() if isinstance(retry, Retry) else retry,
        "cancel_requested": False,
        "deadline_at": NOW + timedelta(hours=1),
        "first_started_at": NOW,
    }
    return LeasedTask(**{**given, **more})


def fail(
    *, error: TaskError = BROKEN, now: datetime = NOW, random_fraction: float = 0.5, total: float = 7 * DAY, **more: Any
) -> RetryDecision:
    options = {name: more.pop(name) for name in ("is_retryable", "retry_in_seconds") if name in more}
    return after_failure(task(**more), error, now=now, random_fraction=random_fraction, total_seconds=total, **options)


def expire(*, now: datetime = NOW, random_fraction: float = 0.5, total: float = 7 * DAY, **more: Any) -> RetryDecision:
    return after_expiry(task(**more), now=now, random_fraction=random_fraction, total_seconds=total)


def later(seconds: float, outcome: AttemptOutcome = FAILED) -> RetryDecision:
    return RetryDecision(outcome, TaskState.SCHEDULED, NOW + timedelta(seconds=seconds))


# Backoff


@pytest.mark.parametrize(
    ("retry", "expected"),
    [
        (Retry(kind=RetryKind.FIXED, base_seconds=5, jitter=False), [5, 5, 5, 5]),
        (Retry(kind=RetryKind.LINEAR, base_seconds=5, jitter=False), [5, 10, 15, 20]),
        (Retry(kind=RetryKind.EXPONENTIAL, base_seconds=5, jitter=False), [5, 10, 20, 40]),
        (Retry(kind=RetryKind.EXPONENTIAL, base_seconds=5, factor=3, jitter=False), [5, 15, 45, 135]),
        (Retry(kind=RetryKind.EXPONENTIAL, base_seconds=5, factor=1, jitter=False), [5, 5, 5, 5]),
        (Retry(kind=RetryKind.EXPONENTIAL, base_seconds=0, jitter=False), [0, 0, 0, 0]),
        (Retry(kind=RetryKind.LINEAR, base_seconds=5, max_seconds=12, jitter=False), [5, 10, 12, 12]),
        (Retry(kind=RetryKind.EXPONENTIAL, base_seconds=5, max_seconds=12, jitter=False), [5, 10, 12, 12]),
        (Retry(kind=RetryKind.FIXED, base_seconds=5, max_seconds=3, jitter=False), [3, 3, 3, 3]),
    ],
)
def test_backoff_grows_by_its_kind_up_to_max_seconds(retry: Retry, expected: list[float]) -> None:
    assert [backoff_seconds(retry, attempt, 0.5) for attempt in (1, 2, 3, 4)] == expected


@pytest.mark.parametrize("kind", RetryKind)
def test_jitter_is_a_fraction_of_the_whole_backoff(kind: RetryKind) -> None:
    retry = Retry(kind=kind, base_seconds=10)
    whole = backoff_seconds(msgspec.structs.replace(retry, jitter=False), 3, 0.9)
    assert [backoff_seconds(retry, 3, random_fraction) for random_fraction in (0, 0.25, 0.5)] == [0, whole / 4, whole / 2]


@given(RETRIES, ATTEMPTS, FRACTIONS)
def test_backoff_is_between_zero_and_max_seconds(retry: Retry, attempt: int, random_fraction: float) -> None:
    seconds = backoff_seconds(retry, attempt, random_fraction)
    assert math.isfinite(seconds)
    assert 0 <= seconds <= retry.max_seconds
    if not retry.jitter:
        assert seconds == backoff_seconds(retry, attempt, 0.0), "the random fraction has no effect"


@given(RETRIES, st.integers(1, 1000), FRACTIONS)
def test_backoff_never_shrinks_with_the_attempts(retry: Retry, attempt: int, random_fraction: float) -> None:
    assert backoff_seconds(retry, attempt, random_fraction) <= backoff_seconds(retry, attempt + 1, random_fraction)


@given(RETRIES, ATTEMPTS, FRACTIONS, FRACTIONS)
def test_with_jitter_a_larger_fraction_is_never_a_shorter_backoff(retry: Retry, attempt: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert backoff_seconds(retry, attempt, low) <= backoff_seconds(retry, attempt, high)


@pytest.mark.parametrize("attempt", [1000, 10**6, 2**31, 10**30])
@pytest.mark.parametrize("factor", [1, 1.0001, 2, 100])
@pytest.mark.parametrize("kind", RetryKind)
def test_a_huge_number_of_attempts_does_not_overflow(kind: RetryKind, factor: float, attempt: int) -> None:
    retry = Retry(kind=kind, base_seconds=DAY, factor=factor, max_seconds=7 * DAY, jitter=False)
    assert DAY <= backoff_seconds(retry, attempt, 0.5) <= 7 * DAY


# Failures


def test_a_failed_attempt_is_retried_after_its_backoff() -> None:
    assert fail(retry=NO_JITTER) == later(1)
    assert fail(retry=NO_JITTER, attempt=2) == later(2)
    assert fail(retry=Retry(base_seconds=8), random_fraction=0.25) == later(2)


def test_a_task_without_a_retry_policy_has_the_default_one() -> None:
    assert fail(retry="{}", attempt=2, random_fraction=0.5) == later(1)


def test_a_backoff_of_zero_makes_the_task_ready() -> None:
    ready_now = RetryDecision(FAILED, TaskState.READY)
    assert fail(retry=Retry(base_seconds=0)) == ready_now
    assert fail(retry=Retry(base_seconds=5), random_fraction=0.0) == ready_now
    assert fail(retry_in_seconds=0) == ready_now


def test_a_worker_may_choose_the_delay() -> None:
    assert fail(retry_in_seconds=90) == later(90)
    assert fail(retry=Retry(max_seconds=5), retry_in_seconds=7200) == later(7200), (
        "the delay of the worker is not limited by max_seconds"
    )


@pytest.mark.parametrize("more", [{}, {"retry_in_seconds": 5}])
def test_after_the_last_attempt_the_task_is_dead(more: dict[str, Any]) -> None:
    decision = fail(attempt=3, max_attempts=3, **more)
    assert decision == RetryDecision(FAILED, TaskState.DEAD, reason="all 3 attempts failed (last outcome: failed)")


def test_the_reason_names_a_single_attempt() -> None:
    assert fail(max_attempts=1).reason == "its only attempt failed (last outcome: failed)"


def test_more_attempts_than_allowed_also_make_a_task_dead() -> None:
    """The limit may have been lowered, or an attempt counted twice."""
    assert fail(attempt=9, max_attempts=3).state is TaskState.DEAD


@pytest.mark.parametrize("more", [{}, {"retry_in_seconds": 5}])
def test_a_failure_that_is_not_retryable_makes_a_task_dead(more: dict[str, Any]) -> None:
    decision = fail(is_retryable=False, **more)
    assert decision == RetryDecision(FAILED, TaskState.DEAD, reason="its worker reported that it is not retryable")


# Cancels


@pytest.mark.parametrize("attempt", [1, 3])
@pytest.mark.parametrize("is_retryable", [True, False])
def test_an_error_of_kind_cancelled_after_a_cancel_cancels_the_task(attempt: int, is_retryable: bool) -> None:
    decision = fail(cancel_requested=True, error=STOPPED, attempt=attempt, is_retryable=is_retryable)
    assert decision == RetryDecision(CANCELLED, TaskState.CANCELLED)


@pytest.mark.parametrize("attempt", [1, 3])
@pytest.mark.parametrize("is_retryable", [True, False])
def test_a_failure_after_a_cancel_is_neither_retried_nor_dead(attempt: int, is_retryable: bool) -> None:
    decision = fail(cancel_requested=True, attempt=attempt, is_retryable=is_retryable, retry_in_seconds=5)
    assert (decision.outcome, decision.state, decision.run_at) == (FAILED, TaskState.FAILED, None)
    assert decision.reason == "it failed after a cancel was requested"


def test_an_error_of_kind_cancelled_without_a_cancel_is_a_failure() -> None:
    assert fail(error=STOPPED, retry=NO_JITTER) == later(1)


def test_an_expired_lease_after_a_cancel_cancels_the_task() -> None:
    for now in (NOW, NOW + timedelta(hours=2)):
        assert expire(cancel_requested=True, attempt=3, now=now) == RetryDecision(CANCELLED, TaskState.CANCELLED)


# Expired leases


def test_a_lost_attempt_is_retried_without_backoff() -> None:
    assert expire(retry=Retry(base_seconds=600)) == RetryDecision(LOST, TaskState.READY)


def test_a_timed_out_attempt_is_retried_with_backoff() -> None:
    assert expire(retry=NO_JITTER, deadline_at=NOW) == later(1, TIMEOUT)
    assert expire(retry=NO_JITTER, deadline_at=NOW + timedelta(microseconds=1)).outcome is LOST


@pytest.mark.parametrize(("deadline", "outcome"), [(1, LOST), (0, TIMEOUT)])
def test_a_task_that_kills_its_workers_is_finally_dead(deadline: float, outcome: AttemptOutcome) -> None:
    decision = expire(attempt=3, deadline_at=NOW + timedelta(seconds=deadline))
    assert (decision.outcome, decision.state) == (outcome, TaskState.DEAD)
    assert decision.reason == f"all 3 attempts failed (last outcome: {outcome.value})"


# Total time


def test_there_is_no_attempt_beyond_the_total_time() -> None:
    early: dict[str, Any] = {"first_started_at": NOW - timedelta(seconds=90)}
    assert fail(total=100, retry_in_seconds=9.999999, **early) == later(9.999999)
    decision = fail(total=100, retry_in_seconds=10, **early)
    assert decision == RetryDecision(FAILED, TaskState.DEAD, reason="a retry would exceed the total limit of 100 seconds")


def test_a_lost_task_past_its_total_time_is_dead() -> None:
    decision = expire(total=100, first_started_at=NOW - timedelta(seconds=100), deadline_at=NOW + timedelta(hours=1))
    assert (decision.outcome, decision.state) == (LOST, TaskState.DEAD)


# Any input


@given(
    retry=RETRIES,
    attempt=st.integers(1, 2**31),
    max_attempts=st.integers(1, 2**31),
    random_fraction=FRACTIONS,
    is_cancelled=st.booleans(),
    is_retryable=st.booleans(),
    retry_in=st.none() | st.floats(0, 30 * DAY),
    error=st.sampled_from([BROKEN, STOPPED]),
    age=st.floats(0, 14 * DAY),
    total=st.floats(1, 14 * DAY),
)
def test_every_decision_is_a_legal_transition(
    retry: Retry,
    attempt: int,
    max_attempts: int,
    random_fraction: float,
    is_cancelled: bool,
    is_retryable: bool,
    retry_in: float | None,
    error: TaskError,
    age: float,
    total: float,
) -> None:
    first = NOW - timedelta(seconds=age)
    running = task(
        retry=retry, attempt=attempt, max_attempts=max_attempts, cancel_requested=is_cancelled, first_started_at=first
    )
    at: dict[str, Any] = {"now": NOW, "random_fraction": random_fraction, "total_seconds": total}
    decisions = [
        after_failure(running, error, is_retryable=is_retryable, retry_in_seconds=retry_in, **at),
        after_expiry(running, **at),
        after_expiry(msgspec.structs.replace(running, deadline_at=NOW), **at),
    ]
    for decision in decisions:
        assert decision.state in TRANSITIONS[TaskState.RUNNING]
        assert (decision.run_at is not None) == (decision.state is TaskState.SCHEDULED)
        assert (decision.reason is not None) == (decision.state in (TaskState.DEAD, TaskState.FAILED))
        is_retried = decision.state in (TaskState.READY, TaskState.SCHEDULED)
        if is_retried:
            assert attempt < max_attempts
            assert not is_cancelled
            assert NOW <= (decision.run_at or NOW) < first + timedelta(seconds=total)
