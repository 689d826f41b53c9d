"""Circuit breakers: whether deliveries to a destination are attempted. Pure; the time is monotonic, and an argument.

closed: deliveries are attempted. After `failures` failures in a row, the breaker opens. open: nothing is attempted until
`open_until`. half-open: one delivery at a time is attempted. If it succeeds, the breaker closes; if it fails, the breaker opens
again, for twice as long, up to a maximum.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerPolicy(NamedTuple):
    """`failures`: how many failures in a row open the breaker. `open_seconds`: how long it is open at first."""

    failures: int = 5
    open_seconds: float = 5.0
    max_open_seconds: float = 300.0


DEFAULT_POLICY = BreakerPolicy()


class CircuitBreaker(NamedTuple):
    """`failures`: failures in a row. `openings`: how often it has opened since it was last closed."""

    failures: int = 0
    openings: int = 0
    open_until: float = 0.0

    def state(self, now: float) -> BreakerState:
        if self.openings == 0:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self.open_until else BreakerState.HALF_OPEN


CLOSED = CircuitBreaker()


def after_success() -> CircuitBreaker:
    return CLOSED


def after_failure(breaker: CircuitBreaker, policy: BreakerPolicy, now: float) -> CircuitBreaker:
    """Return the breaker after a failure. Failures of deliveries that began before it opened change nothing."""
    state = breaker.state(now)
    if state is BreakerState.OPEN:
        return breaker
    failures = breaker.failures + 1
    if state is BreakerState.CLOSED and failures < policy.failures:
        return breaker._replace(failures=failures)
    seconds = min(policy.open_seconds * 2 ** min(breaker.openings, 32), policy.max_open_seconds)
    return CircuitBreaker(failures, breaker.openings + 1, now + seconds)
