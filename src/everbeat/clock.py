"""An estimate of the database clock, based on the monotonic clock of this process.

The database clock decides what is due. A node only needs to know when to query the database, so its estimate is never ahead.
The database reads its clock after a query was sent and before the result is received, so each round trip limits the offset
between the two clocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DRIFT_SECONDS = 0.005

Monotonic = Callable[[], float]


class DatabaseClock:
    """An estimate of the database clock. It lags by at most the shortest round trip so far, and follows steps of the clock."""

    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self.monotonic = monotonic
        self._offset: float | None = None

    @property
    def is_set(self) -> bool:
        return self._offset is not None

    def observe(self, sent: float, shown: datetime) -> None:
        """Update the estimate from a call that was sent at monotonic time `sent` and has just returned the time `shown`."""
        seconds = (shown - _EPOCH).total_seconds()
        lowest, highest = seconds - self.monotonic(), seconds - sent
        if self._offset is None or self._offset < lowest:
            self._offset = lowest
        elif self._offset > highest:
            # A small difference is due to rounding or drift. Correct only that: `lowest` would be behind by the duration of
            # this call, and until the next faster call, ticks would fire late by that much.
            self._offset = highest if self._offset - highest < _DRIFT_SECONDS else lowest

    def now(self) -> datetime:
        return _EPOCH + timedelta(seconds=self.monotonic() + (self._offset or 0.0))

    def seconds_until(self, at: datetime) -> float:
        return (at - self.now()).total_seconds()
