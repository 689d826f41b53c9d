"""Service levels: objectives, error budgets and burn rates. Pure: computed from counts in buckets of five minutes.

A burn rate is the ratio of bad events, divided by the ratio that the objective allows. At a rate of 1, the budget of 30 days is
used up in exactly 30 days. Two windows have to burn at the same time: the long one, so that a short disturbance is not
reported, and the short one, so that the report ends soon after the disturbance.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

BUCKET = timedelta(minutes=5)
BUCKET_MINUTES = 5
BUDGET_WINDOW = timedelta(days=30)
WINDOWS = {"5m": timedelta(minutes=5), "1h": timedelta(hours=1), "6h": timedelta(hours=6), "30d": BUDGET_WINDOW}
# All windows but the longest are computed from single buckets.
RECENT = timedelta(hours=6)
# (long window, short window, burn rate): 2 % of the budget of 30 days in an hour, and 5 % in six hours.
BURN_ALERTS = (("1h", "5m", 14.4), ("6h", "1h", 6.0))


class Sli(StrEnum):
    """What is measured."""

    FIRE = "fire"
    PICKUP = "pickup"
    AVAILABILITY = "availability"
    SUCCESS = "success"


class LevelStatus(StrEnum):
    """`no_data`: there were no events. `burning`: the budget is used up too fast. `exhausted`: nothing is left of it."""

    OK = "ok"
    BURNING = "burning"
    EXHAUSTED = "exhausted"
    NO_DATA = "no_data"


class Objective(NamedTuple):
    """`target`: the ratio of good events that is promised. `threshold_seconds`: what is good, if it is a duration."""

    sli: Sli
    target: float
    threshold_seconds: float | None = None


class LevelBucket(NamedTuple):
    """The counts of five minutes. A bit of the masks is a minute; one that is in both masks was not available."""

    at: datetime
    fire_good: int = 0
    fire_total: int = 0
    pickup_good: int = 0
    pickup_total: int = 0
    success_good: int = 0
    success_total: int = 0
    available_minutes: int = 0
    unavailable_minutes: int = 0


class LevelTotal(NamedTuple):
    """The counts of a longer time, added up by the database. `first_minutes`: the marks of its first bucket.

    `available`: the number of available minutes.
    """

    first_at: datetime
    first_minutes: int
    fire_good: int
    fire_total: int
    pickup_good: int
    pickup_total: int
    success_good: int
    success_total: int
    available: int


class Level(NamedTuple):
    """How an objective is met. `good` and `total`: of the last 30 days. `budget_left`: 1 at first, and 0 if it is used up."""

    objective: Objective
    good: int
    total: int
    budget_left: float | None
    burn_rates: dict[str, float | None]
    status: LevelStatus

    @property
    def ratio(self) -> float | None:
        return self.good / self.total if self.total else None


def bucket_of(at: datetime) -> datetime:
    """Return the beginning of the bucket."""
    return at.replace(minute=at.minute - at.minute % BUCKET_MINUTES, second=0, microsecond=0)


def minute_bit(at: datetime) -> int:
    """Return the bit of the minute in its bucket."""
    return 1 << at.minute % BUCKET_MINUTES


def recent_since(now: datetime) -> datetime:
    """Return since when the counts are needed by bucket: for all windows but the longest."""
    return bucket_of(now - RECENT)


def levels(
    total: LevelTotal | None, recent: Sequence[LevelBucket], objectives: Sequence[Objective], now: datetime
) -> list[Level]:
    """Return how the objectives are met.

    `recent`: the buckets from `recent_since`, oldest first. `total`: those of the last 30 days before them.
    """
    return [_level(total, recent, objective, now) for objective in objectives]


def _level(total: LevelTotal | None, recent: Sequence[LevelBucket], objective: Objective, now: datetime) -> Level:
    counts = {name: _counts(total, recent, objective.sli, window, now) for name, window in WINDOWS.items()}
    allowed = 1 - objective.target
    rates = {name: _burn_rate(good, all_, allowed) for name, (good, all_) in counts.items()}
    good, all_ = counts["30d"]
    left = None if all_ == 0 else 1 - (all_ - good) / (all_ * allowed)
    return Level(objective, good, all_, left, rates, _status(left, rates))


def _counts(
    total: LevelTotal | None, recent: Sequence[LevelBucket], sli: Sli, window: timedelta, now: datetime
) -> tuple[int, int]:
    """Return the good events and all events of the buckets that end within the window."""
    since = now - window
    older = total if window > RECENT else None
    chosen = [bucket for bucket in recent if bucket.at + BUCKET > since]
    if sli is Sli.AVAILABILITY:
        return _minutes(older, chosen, max(bucket_of(since), _first_mark(total, recent) or now), now)
    match sli:
        case Sli.FIRE:
            pairs = [(one.fire_good, one.fire_total) for one in (older, *chosen) if one is not None]
        case Sli.PICKUP:
            pairs = [(one.pickup_good, one.pickup_total) for one in (older, *chosen) if one is not None]
        case Sli.SUCCESS:
            pairs = [(one.success_good, one.success_total) for one in (older, *chosen) if one is not None]
    return sum(good for good, _ in pairs), sum(all_ for _, all_ in pairs)


def _first_mark(total: LevelTotal | None, recent: Sequence[LevelBucket]) -> datetime | None:
    """Return the first minute with a mark. Nothing was counted before it."""
    if total is not None and total.first_minutes:
        return total.first_at + _first_minute(total.first_minutes)
    if total is not None:
        return total.first_at + BUCKET
    marked = ((one.at, one.available_minutes | one.unavailable_minutes) for one in recent)
    return next((at + _first_minute(minutes) for at, minutes in marked if minutes), None)


def _first_minute(mask: int) -> timedelta:
    return timedelta(minutes=(mask & -mask).bit_length() - 1)


def _minutes(older: LevelTotal | None, chosen: Sequence[LevelBucket], begin: datetime, now: datetime) -> tuple[int, int]:
    """Return the available minutes, and all from `begin` to the current one, which is not counted.

    A minute without a mark was not available: nothing ran.
    """
    end = now.replace(second=0, microsecond=0)
    good = 0 if older is None else older.available
    for bucket in chosen:
        available = bucket.available_minutes & ~bucket.unavailable_minutes
        moments = (bucket.at + timedelta(minutes=minute) for minute in range(BUCKET_MINUTES) if available & 1 << minute)
        good += sum(begin <= moment < end for moment in moments)
    total = max(0, int((end - begin).total_seconds() // 60))
    return min(good, total), total


def _burn_rate(good: int, total: int, allowed: float) -> float | None:
    return None if total == 0 else (total - good) / total / allowed


def _status(budget_left: float | None, rates: dict[str, float | None]) -> LevelStatus:
    if budget_left is None:
        return LevelStatus.NO_DATA
    if budget_left <= 0:
        return LevelStatus.EXHAUSTED
    if any((rates[long] or 0) > rate and (rates[short] or 0) > rate for long, short, rate in BURN_ALERTS):
        return LevelStatus.BURNING
    return LevelStatus.OK
