"""A rate limit with bursts, as a pure function. The only state per client is the time at which its budget is full again."""

from __future__ import annotations

from typing import NamedTuple


class Rate(NamedTuple):
    """A limit of `per_second` on average, with bursts of up to `burst`."""

    per_second: float
    burst: float


class Admission(NamedTuple):
    """The decision. `wait_seconds` 0: admitted; the caller stores `full_at`. Otherwise rejected; retry after `wait_seconds`."""

    full_at: float
    wait_seconds: float


def admit(rate: Rate, full_at: float, now: float, amount: float = 1.0) -> Admission:
    """Decide whether `amount` more is within the rate. `full_at` is in the past if the budget is full."""
    new_full_at = max(full_at, now) + amount / rate.per_second
    wait = new_full_at - now - rate.burst / rate.per_second
    # A rounding error must not reject the last request of a burst.
    return Admission(new_full_at, 0.0) if wait <= 1e-9 else Admission(full_at, wait)
