"""When an attempt must have ended, and when the lease of its worker ends. The stores compute the same in SQL."""

from __future__ import annotations

from datetime import datetime, timedelta


def attempt_deadline(
    started_at: datetime, timeout_seconds: float, first_started_at: datetime, total_seconds: float | None
) -> datetime:
    """Return when an attempt must have ended: after its timeout, and before the time limit of all attempts of the task."""
    deadline = started_at + _duration(timeout_seconds)
    return deadline if total_seconds is None else min(deadline, first_started_at + _duration(total_seconds))


def lease_end(now: datetime, lease_seconds: float, deadline: datetime) -> datetime:
    """Return the end of a lease that is granted or renewed now: at most the deadline of the attempt."""
    return min(now + _duration(lease_seconds), deadline)


def _duration(seconds: float) -> timedelta:
    # Rounded like in the databases. timedelta(seconds=…) rounds the fraction only, which can differ by a microsecond.
    return timedelta(microseconds=round(seconds * 1_000_000))
