"""The protocol of triggers: when a rule ticks, regardless of its start, end and calendars. All instants are aware in UTC."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol


class Trigger(Protocol):
    """A parsed trigger. It is immutable and shared between schedules. A call takes tens of microseconds."""

    def next_after(self, t: datetime) -> datetime | None:
        """Return the first tick strictly after t, or None if there is none."""

    def last_until(self, t: datetime) -> datetime | None:
        """Return the last tick at or before t, or None if there is none."""

    def count_between(self, after: datetime, until: datetime) -> int:
        """Return the exact number of ticks in (after, until]. This is fast even for spans of years."""

    def gaps_between(self, after: datetime, until: datetime) -> Sequence[datetime]:
        """Return the instants in (after, until] at which a DST gap skipped a tick. Empty unless gap = skip."""
