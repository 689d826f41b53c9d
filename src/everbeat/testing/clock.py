"""A clock that changes only when a test advances it."""

from __future__ import annotations

from datetime import datetime, timedelta

from everbeat.client.durations import Duration, seconds_of
from everbeat.client.options import to_utc


class FakeClock:
    """The clock that Everbeat uses in a test. Advancing it does not run tasks; `Harness.run_due` does."""

    def __init__(self, now: datetime | str) -> None:
        self._now = to_utc(now, "now")
        self._processed = self._now

    def now(self) -> datetime:
        return self._now

    def advance(self, duration: Duration) -> datetime:
        return self.move_to(self._now + timedelta(seconds=seconds_of(duration, "duration")))

    def move_to(self, when: datetime | str) -> datetime:
        at = to_utc(when, "when")
        if at < self._now:
            raise ValueError(f"the clock cannot go backward: it is already {self._now.isoformat()}")
        self._now = at
        return at

    def skip(self) -> None:
        """Mark the time up to now as processed, so that nothing runs at earlier times. Called by the harness."""
        self._processed = self._now

    def step_back(self) -> datetime:
        """Go back to the time up to which everything has run, and return the time to advance to. Called by the harness."""
        until, self._now = self._now, self._processed
        return until

    def step_to(self, at: datetime) -> None:
        self._now = self._processed = at
