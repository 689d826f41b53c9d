"""The log of a relay. Rows are counted, and their number is logged from time to time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

import structlog

from everbeat.outbox.table import RejectedRow

_LOG_SECONDS = 10.0
_MAX_REJECTED_LOGGED = 10


class RelayTelemetry:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._log = structlog.get_logger("everbeat")
        self._clock = clock
        self._moved = 0
        self._logged_at = float("-inf")
        self._waiting_for: str | None = None

    def moved(self, accepted: int, rejected: Sequence[RejectedRow]) -> None:
        self._moved += accepted
        for row in rejected[:_MAX_REJECTED_LOGGED]:
            self._log.error("outbox_row_rejected", row=str(row.id), error=row.error, meaning="see everbeat_outbox_rejected")
        if len(rejected) > _MAX_REJECTED_LOGGED:
            self._log.error("outbox_rows_rejected", count=len(rejected))
        if self._clock() - self._logged_at >= _LOG_SECONDS:
            self._log_moved()

    def started(self, server: str) -> None:
        self._log.info("relay_started", server=server)

    def stopped(self) -> None:
        self._log_moved()
        self._log.info("relay_stopped")

    def waiting(self, error: Exception, seconds: float) -> None:
        """Log why rows have to wait, once for each reason."""
        reason = type(error).__name__
        if reason != self._waiting_for:
            self._waiting_for = reason
            self._log.warning("relay_waiting", error=str(error) or reason, retry_in_seconds=round(seconds, 1))

    def recovered(self) -> None:
        if self._waiting_for is not None:
            self._waiting_for = None
            self._log.info("relay_recovered")

    def _log_moved(self) -> None:
        if self._moved:
            self._log.info("outbox_rows_moved", count=self._moved)
            self._moved, self._logged_at = 0, self._clock()
