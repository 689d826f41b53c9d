from __future__ import annotations

from everbeat.core.circuit_breakers import CLOSED, BreakerPolicy, BreakerState, CircuitBreaker, after_failure, after_success

POLICY = BreakerPolicy(failures=3, open_seconds=10, max_open_seconds=35)


def fail(breaker: CircuitBreaker, *times: float) -> CircuitBreaker:
    for at in times:
        breaker = after_failure(breaker, POLICY, at)
    return breaker


def test_it_opens_after_failures_in_a_row() -> None:
    assert fail(CLOSED, 0, 1).state(1) is BreakerState.CLOSED
    opened = fail(CLOSED, 0, 1, 2)
    assert opened.state(11.9) is BreakerState.OPEN
    assert opened.state(12) is BreakerState.HALF_OPEN


def test_a_success_starts_the_count_again() -> None:
    assert after_success() == CLOSED
    assert fail(after_success(), 3, 4).state(4) is BreakerState.CLOSED


def test_failures_of_earlier_deliveries_do_not_prolong_the_open_time() -> None:
    opened = fail(CLOSED, 0, 1, 2)
    assert fail(opened, 5, 8) == opened


def test_each_failed_attempt_doubles_the_open_time_up_to_the_maximum() -> None:
    breaker, now, durations = fail(CLOSED, 0, 0, 0), 0.0, []
    for _ in range(4):
        durations.append(breaker.open_until - now)
        now = breaker.open_until
        assert breaker.state(now) is BreakerState.HALF_OPEN
        breaker = fail(breaker, now)
    assert durations == [10, 20, 35, 35]
