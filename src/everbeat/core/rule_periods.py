"""The periods in which the rules of a schedule were in force, and the ticks that they require."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from everbeat.core.ticks import Tick
from everbeat.core.timeline import Timeline

MICROSECOND = timedelta(microseconds=1)


class RulePeriod(NamedTuple):
    """The ticks of a rule that was in force in (since, until]."""

    since: datetime
    until: datetime
    timeline: Timeline

    def ticks_in(self, from_: datetime, to: datetime) -> int:
        """Return the number of its ticks in [from_, to)."""
        after, until = self._clipped(from_, to)
        return self.timeline.count_between(after, until) if until > after else 0

    def times_in(self, from_: datetime, to: datetime) -> Iterator[datetime]:
        """Yield its ticks in [from_, to) in order."""
        after, until = self._clipped(from_, to)
        if until > after:
            for occurrence in self.timeline.occurrences(after, until):
                yield occurrence.at

    def _clipped(self, from_: datetime, to: datetime) -> tuple[datetime, datetime]:
        return max(self.since, from_ - MICROSECOND), min(self.until, to - MICROSECOND)


def missing_ticks(
    periods: Sequence[RulePeriod], rows: Sequence[Tick], from_: datetime, to: datetime, *, limit: int
) -> list[datetime]:
    """Return the ticks in [from_, to) that no row of the ledger covers: at most `limit`, the oldest first."""
    recorded = {row.scheduled_for for row in rows}
    ranges = [(row.scheduled_for, row.until) for row in rows if row.until is not None]
    missing: set[datetime] = set()
    for period in periods:
        for at in period.times_in(from_, to):
            if at in recorded or any(first <= at <= last for first, last in ranges):
                continue
            missing.add(at)
            if len(missing) >= limit:
                break
    return sorted(missing)[:limit]
