"""The deadline of an attempt, and the end of a lease."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbeat.core.leases import attempt_deadline, lease_end
from tests.factories import NOW, seconds

durations = st.floats(0.001, 366 * 86_400)


@pytest.mark.parametrize(
    ("timeout_seconds", "first_started_at", "total_seconds", "expected"),
    [
        (90, NOW, 600, NOW + seconds(90)),
        (90, NOW - seconds(550), 600, NOW + seconds(50)),
        (90, NOW - seconds(700), 600, NOW - seconds(100)),
        (90, NOW, None, NOW + seconds(90)),
    ],
    ids=["timeout", "total", "total-has-passed", "no-total"],
)
def test_an_attempt_ends_after_its_timeout_and_within_the_total_time(
    timeout_seconds: float, first_started_at: datetime, total_seconds: float | None, expected: datetime
) -> None:
    assert attempt_deadline(NOW, timeout_seconds, first_started_at, total_seconds) == expected


def test_a_lease_ends_at_the_deadline_at_the_latest() -> None:
    assert lease_end(NOW, 30, NOW + seconds(31)) == NOW + seconds(30)
    assert lease_end(NOW, 30, NOW + seconds(29)) == NOW + seconds(29)


@given(durations, durations, durations, durations)
def test_a_lease_never_outlives_its_attempt(lease: float, timeout: float, total: float, since: float) -> None:
    deadline = attempt_deadline(NOW, timeout, NOW - timedelta(seconds=since), total)
    assert lease_end(NOW, lease, deadline) <= min(deadline, NOW + timedelta(seconds=timeout))


@pytest.mark.parametrize("microseconds", [290_000, 1_001, 8_412_345_677, 604_800_000_001])
def test_durations_are_rounded_to_the_nearest_microsecond(microseconds: int) -> None:
    """Some of these have no exact float, and would lose a microsecond if the product were truncated."""
    assert lease_end(NOW, microseconds / 1_000_000, datetime.max.replace(tzinfo=NOW.tzinfo)) == NOW + timedelta(
        microseconds=microseconds
    )
