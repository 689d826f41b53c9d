"""The Trigger contract: when a rule ticks, before windows and calendars. All instants are aware UTC datetimes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol


class Trigger(Protocol):
    """A parsed trigger. Immutable and shared between schedules. A call takes tens of microseconds."""

    def next_after(self, t: datetime) -> datetime | None:
        """The first tick strictly after t, or None if there is none."""

    def last_until(self, t: datetime) -> datetime | None:
        """The last tick at or before t, or None if there is none."""

    def count_between(self, after: datetime, until: datetime) -> int:
        """The exact number of ticks in (after, until]; fast even for spans of years."""

    def gaps_between(self, after: datetime, until: datetime) -> Sequence[datetime]:
        """The instants in (after, until] at which a DST gap skipped a tick; empty unless gap = skip."""
