"""A rate limit with a burst, as a pure function. The only state per client is the time at which its budget is full again."""

from __future__ import annotations

from typing import NamedTuple


class Rate(NamedTuple):
    """`per_second` on average, and up to `burst` at once."""

    per_second: float
    burst: float


class Admission(NamedTuple):
    """`wait_seconds` 0: admitted; store `full_at`. Otherwise: refused, and would be admitted after `wait_seconds`."""

    full_at: float
    wait_seconds: float


def admit(rate: Rate, full_at: float, now: float, amount: float = 1.0) -> Admission:
    """Decide whether `amount` more is within the rate. `full_at`: when the budget is full again; a past time if it is full."""
    then = max(full_at, now) + amount / rate.per_second
    wait = then - now - rate.burst / rate.per_second
    # A rounding error must not refuse the last request of a burst.
    return Admission(then, 0.0) if wait <= 1e-9 else Admission(full_at, wait)
