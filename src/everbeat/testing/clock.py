"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import datetime, timedelta

from everbeat.client.durations import Duration, seconds_of
from everbeat.client.options import to_utc


class FakeClock:
    """The time as Everbeat sees it. Moving it runs nothing; `Harness.run_due` does."""

    def __init__(self, now: datetime | str) -> None:
        self._now = to_utc(now, "now")
        self._reached = self._now

    def now(self) -> datetime:
        return self._now

    def advance(self, duration: Duration) -> datetime:
        return self.move_to(self._now + timedelta(seconds=seconds_of(duration, "duration")))

    def move_to(self, when: datetime | str) -> datetime:
        at = to_utc(when, "when")
        if at < self._now:
            raise ValueError(f"time goes forward: it is {self._now.isoformat()} already")
        self._now = at
        return at

    def skip(self) -> None:
        """For the harness: nothing ran up to now, and nothing will have run."""
        self._reached = self._now

    def step_back(self) -> datetime:
        """For the harness: return to where things have happened already; the time to walk to."""
        until, self._now = self._now, self._reached
        return until

    def step_to(self, at: datetime) -> None:
        self._now = self._reached = at
