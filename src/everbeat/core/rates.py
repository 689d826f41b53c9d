"""A rate with a burst, as a pure decision. One number is remembered of everybody: when their budget is full again."""

from __future__ import annotations

from typing import NamedTuple


class Rate(NamedTuple):
    """So many a second in the long run, and `burst` of them at once."""

    per_second: float
    burst: float


class Admission(NamedTuple):
    """`wait_seconds` 0: admitted, and `full_at` is to be remembered. Otherwise it would be admitted after so long."""

    full_at: float
    wait_seconds: float


def admit(rate: Rate, full_at: float, now: float, amount: float = 1.0) -> Admission:
    """Whether so much more is within the rate. `full_at`: when the budget is full again; anything in the past if it is."""
    then = max(full_at, now) + amount / rate.per_second
    wait = then - now - rate.burst / rate.per_second
    # Rounding must not refuse the last one of a burst.
    return Admission(then, 0.0) if wait <= 1e-9 else Admission(full_at, wait)
