"""Service levels: budgets, burn rates, and which minutes were available."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbeat.core.service_levels import (
    BUCKET,
    BUDGET_WINDOW,
    Level,
    LevelBucket,
    LevelStatus,
    LevelTotal,
    Objective,
    Sli,
    bucket_of,
    levels,
    minute_bit,
    recent_since,
)
from tests.factories import NOW, minutes

ALL = 0b11111
FIRE = Objective(Sli.FIRE, 0.999, 1.0)
AVAILABILITY = Objective(Sli.AVAILABILITY, 0.9)


def level(buckets: list[LevelBucket], objective: Objective = FIRE, now: datetime = NOW) -> Level:
    """Return the level as the server computes it: the older buckets are added up by the database."""
    recent_at = recent_since(now)
    older = [one for one in buckets if one.at < recent_at and one.at >= bucket_of(now - BUDGET_WINDOW)]
    recent = [one for one in buckets if one.at >= recent_at]
    (found,) = levels(total_of(older), recent, [objective], now)
    return found


def total_of(buckets: list[LevelBucket]) -> LevelTotal | None:
    if not buckets:
        return None
    first = buckets[0]
    counts = [sum(bucket[index] for bucket in buckets) for index in range(1, 7)]  # type: ignore[misc]
    available = sum((bucket.available_minutes & ~bucket.unavailable_minutes).bit_count() for bucket in buckets)
    return LevelTotal(first.at, first.available_minutes | first.unavailable_minutes, *counts, available)  # type: ignore[call-arg]


def fired(minutes_ago: float, good: int, total: int) -> LevelBucket:
    return LevelBucket(bucket_of(NOW - minutes(minutes_ago)), fire_good=good, fire_total=total)


def test_without_events_nothing_is_known() -> None:
    found = level([])
    assert (found.status, found.ratio, found.budget_left, found.good, found.total) == (LevelStatus.NO_DATA, None, None, 0, 0)
    assert set(found.burn_rates.values()) == {None}


def test_the_budget_is_the_allowed_part_of_all_events() -> None:
    found = level([fired(60 * 24 * 20, 9_995, 10_000), fired(60 * 24, 90_000, 90_000)])
    assert (found.good, found.total, found.ratio) == (99_995, 100_000, 0.99995)
    assert found.budget_left == pytest.approx(0.95)
    assert found.burn_rates["30d"] == pytest.approx(0.05)
    assert (found.burn_rates["6h"], found.status) == (None, LevelStatus.OK)


def test_events_before_the_window_do_not_count() -> None:
    found = level([fired(60 * 24 * 31, 0, 1000), fired(10, 10, 10)])
    assert (found.total, found.budget_left) == (10, 1.0)


def test_more_bad_events_than_allowed_exhaust_the_budget() -> None:
    found = level([fired(60 * 24 * 20, 998, 1000)])
    assert found.budget_left == pytest.approx(-1.0)
    assert found.status is LevelStatus.EXHAUSTED


@pytest.mark.parametrize(
    ("bad_5m", "bad_1h", "bad_6h", "status"),
    [
        (20, 20, 0, LevelStatus.BURNING),  # 2 % are bad: 20 times what is allowed
        (0, 20, 0, LevelStatus.OK),  # it is over
        (20, 0, 0, LevelStatus.OK),  # it has only just begun
        (0, 7, 7, LevelStatus.BURNING),
        (0, 0, 7, LevelStatus.OK),
    ],
)
def test_a_budget_burns_if_a_long_and_a_short_window_do(bad_5m: int, bad_1h: int, bad_6h: int, status: LevelStatus) -> None:
    past = [fired(60 * 24 * day, 10_000_000, 10_000_000) for day in range(20, 1, -1)]
    six_hours = [fired(ago, 1000 - bad_6h, 1000) for ago in range(355, 60, -5)]
    hour = [fired(ago, 1000 - bad_1h, 1000) for ago in range(55, 5, -5)]
    assert level([*past, *six_hours, *hour, fired(2, 1000 - bad_5m, 1000)]).status is status


def test_a_minute_without_a_mark_was_not_available() -> None:
    start = bucket_of(NOW - minutes(30))
    buckets = [LevelBucket(start, available_minutes=ALL), LevelBucket(start + 2 * BUCKET, available_minutes=ALL)]
    found = level(buckets, AVAILABILITY, start + 3 * BUCKET)
    assert (found.good, found.total) == (10, 15)


def test_minutes_of_older_buckets_count_too() -> None:
    now = bucket_of(NOW) + minutes(3.2)
    old = [LevelBucket(bucket_of(NOW - minutes(60 * 24)), available_minutes=0b11000, unavailable_minutes=0b00100)]
    new = [LevelBucket(bucket_of(now), available_minutes=0b00111)]
    found = level([*old, *new], AVAILABILITY, now)
    assert (found.good, found.total) == (5, 60 * 24 + 3 - 2)


def test_a_minute_that_one_node_found_unavailable_was_not_available() -> None:
    start = bucket_of(NOW - minutes(30))
    bucket = LevelBucket(start, available_minutes=ALL, unavailable_minutes=0b00110)
    found = level([bucket], AVAILABILITY, start + BUCKET)
    assert (found.good, found.total) == (3, 5)
    assert found.budget_left == pytest.approx(1 - 2 / (5 * 0.1))


def test_the_minutes_before_the_first_mark_and_the_current_one_are_not_counted() -> None:
    start = bucket_of(NOW - minutes(30))
    bucket = LevelBucket(start, available_minutes=0b11100)
    assert level([bucket], AVAILABILITY, start + minutes(4.5))[1:3] == (2, 2)
    assert level([bucket], AVAILABILITY, start + minutes(2.5))[1:3] == (0, 0)


@given(st.lists(st.tuples(st.integers(0, ALL), st.integers(0, ALL)), max_size=20), st.integers(0, 200))
def test_there_are_never_more_good_minutes_than_minutes(masks: list[tuple[int, int]], later: int) -> None:
    start = bucket_of(NOW)
    buckets = [LevelBucket(start + number * BUCKET, 0, 0, 0, 0, 0, 0, *pair) for number, pair in enumerate(masks)]
    found = level(buckets, AVAILABILITY, start + minutes(later))
    assert 0 <= found.good <= found.total <= later


def test_buckets_begin_at_every_fifth_minute() -> None:
    at = datetime.fromisoformat("2026-03-29T01:59:59.999999+00:00")
    assert bucket_of(at) == datetime.fromisoformat("2026-03-29T01:55:00+00:00")
    assert [minute_bit(at + timedelta(minutes=number)) for number in range(3)] == [16, 1, 2]
