"""The estimate of the database's clock is never ahead of it, and follows its steps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from everbeat.clock import DatabaseClock

_START = datetime(2026, 11, 16, 2, 0, tzinfo=UTC)


class _Time:
    def __init__(self) -> None:
        self.monotonic = 1000.0
        self.step = timedelta(0)

    def database(self) -> datetime:
        return _START + timedelta(seconds=self.monotonic) + self.step

    def round_trip(self, clock: DatabaseClock, there: float, back: float) -> None:
        sent = self.monotonic
        self.monotonic += there
        shown = self.database()
        self.monotonic += back
        clock.observe(sent, shown)


_TRIPS = st.lists(st.tuples(st.floats(0.0001, 2), st.floats(0.0001, 2)), min_size=1, max_size=20)


@given(_TRIPS)
def test_it_is_never_ahead_and_behind_by_at_most_one_network_delay(trips: list[tuple[float, float]]) -> None:
    time = _Time()
    clock = DatabaseClock(lambda: time.monotonic)
    for there, back in trips:
        time.round_trip(clock, there, back)
    behind = (time.database() - clock.now()).total_seconds()
    assert -1e-5 <= behind <= max(back for _, back in trips) + 1e-5


@given(st.integers(-7200, 7200).filter(lambda seconds: abs(seconds) > 10))
def test_it_follows_a_step_within_one_round_trip(step: int) -> None:
    time = _Time()
    clock = DatabaseClock(lambda: time.monotonic)
    time.round_trip(clock, 0.001, 0.001)
    time.step = timedelta(seconds=step)
    time.round_trip(clock, 0.001, 0.001)
    assert abs((time.database() - clock.now()).total_seconds()) < 0.01


def test_it_returns_how_long_to_wait() -> None:
    time = _Time()
    clock = DatabaseClock(lambda: time.monotonic)
    assert not clock.is_set
    time.round_trip(clock, 0.0, 0.0)
    assert clock.is_set
    assert abs(clock.seconds_until(time.database() + timedelta(seconds=5)) - 5) < 1e-5


def test_a_rounding_difference_is_corrected_by_its_own_size() -> None:
    """A slow call that differs from the estimate only by rounding must not set the estimate back by the length of the call."""
    time = _Time()
    clock = DatabaseClock(lambda: time.monotonic)
    time.round_trip(clock, 0.0, 0.0)
    time.step = timedelta(microseconds=-3)
    time.round_trip(clock, 0.0, 0.5)
    assert abs((time.database() - clock.now()).total_seconds()) < 1e-4
