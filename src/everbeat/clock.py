"""Clocks: the monotonic one for local timers, and the database's, followed from a distance.

The database clock decides what is due. A node only needs to know when to ask, so it keeps an estimate that is never
ahead: each round trip brackets the moment the database looked at its clock between sending and receiving.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DRIFT_SECONDS = 0.005

Monotonic = Callable[[], float]


class DatabaseClock:
    """An estimate of the database's clock that lags it by at most the best round trip seen, and follows its steps."""

    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self.monotonic = monotonic
        self._offset: float | None = None

    @property
    def is_set(self) -> bool:
        return self._offset is not None

    def observe(self, sent: float, shown: datetime) -> None:
        """Learn from a call sent at that monotonic time and answered just now."""
        seconds = (shown - _EPOCH).total_seconds()
        lowest, highest = seconds - self.monotonic(), seconds - sent
        if self._offset is None or self._offset < lowest:
            self._offset = lowest
        elif self._offset > highest:
            # Rounding, or clocks that drift apart: put right by no more than that. The lowest would be behind by all of a slow
            # call, and ticks would fire so much later until a faster one.
            self._offset = highest if self._offset - highest < _DRIFT_SECONDS else lowest

    def now(self) -> datetime:
        return _EPOCH + timedelta(seconds=self.monotonic() + (self._offset or 0.0))

    def seconds_until(self, at: datetime) -> float:
        return (at - self.now()).total_seconds()
