"""EXDATE and RDATE of recurrence rules: times that are removed from those of a rule, or added to them.

Dates without a zone, or in the zone of the rule, are local times: they are removed and added before the policies for gaps and
folds apply. Times in UTC or in another zone are instants: they are removed and added after that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

from everbeat.core.rules import DstGap
from everbeat.core.triggers.rrule_text import ListedDate
from everbeat.core.triggers.wall_clock import (
    DAY,
    LocalTrigger,
    Pattern,
    WallClock,
    to_instant,
    to_seconds,
)
from everbeat.core.zones import load_zone


class Dates(NamedTuple):
    """The values of EXDATE or RDATE in seconds, sorted: local times, local days and instants."""

    times: tuple[int, ...] = ()
    days: tuple[int, ...] = ()
    instants: tuple[int, ...] = ()


def sort_dates(dates: Sequence[ListedDate], zone: ZoneInfo) -> Dates:
    """Convert dates to seconds. Raises InvalidInput for an unknown zone."""
    times, days, instants = set[int](), set[int](), set[int]()
    for (at, is_date), name in dates:
        if at.tzinfo is not None:
            instants.add(to_seconds(at))
        elif is_date:
            days.add(to_seconds(at.replace(tzinfo=UTC)) // DAY)
        elif name is None or name == zone.key:
            times.add(to_seconds(at.replace(tzinfo=UTC)))
        else:
            instants.add(to_seconds(at.replace(tzinfo=load_zone(name))))
    return Dates(tuple(sorted(times)), tuple(sorted(days)), tuple(sorted(instants)))


class DatedPattern:
    """A pattern with some local times added, and some local times and days removed. Removing takes precedence."""

    def __init__(self, pattern: Pattern, added: Dates, excluded: Dates) -> None:
        self._pattern = pattern
        self._days = frozenset(excluded.days)
        self._excluded = tuple(time for time in excluded.times if time // DAY not in self._days)
        self._added = tuple(time for time in added.times if time not in self._excluded and time // DAY not in self._days)

    def first(self, low: int, high: int, offset: int) -> int | None:
        index = bisect_left(self._added, low)
        added = self._added[index] if index < len(self._added) and self._added[index] < high else None
        while (found := self._pattern.first(low, high, offset)) is not None:
            if added is not None and added < found:
                return added
            if found // DAY in self._days:
                low = (found // DAY + 1) * DAY
            elif _contains(self._excluded, found):
                low = found + 1
            else:
                return found
        return added

    def last(self, low: int, high: int, offset: int) -> int | None:
        index = bisect_left(self._added, high)
        added = self._added[index - 1] if index and self._added[index - 1] >= low else None
        while (found := self._pattern.last(low, high, offset)) is not None:
            if added is not None and added > found:
                return added
            if found // DAY in self._days:
                high = found // DAY * DAY
            elif _contains(self._excluded, found):
                high = found
            else:
                return found
        return added

    def count(self, low: int, high: int, offset: int) -> int:
        if low >= high:
            return 0
        total = self._pattern.count(low, high, offset)
        for day in self._days:
            begin, end = max(low, day * DAY), min(high, (day + 1) * DAY)
            total -= self._pattern.count(begin, end, offset) if begin < end else 0
        total -= sum(self._matches(time, offset) for time in _between(self._excluded, low, high))
        return total + sum(not self._matches(time, offset) for time in _between(self._added, low, high))

    def none_before(self, low: int) -> int | None:
        hint = self._pattern.none_before(low)
        index = bisect_left(self._added, low)
        if index == len(self._added):
            return hint
        return self._added[index] if hint is None else min(hint, self._added[index])

    def none_after(self, high: int) -> int | None:
        hint = self._pattern.none_after(high)
        index = bisect_right(self._added, high)
        if index == 0:
            return hint
        return self._added[index - 1] if hint is None else max(hint, self._added[index - 1])

    def _matches(self, time: int, offset: int) -> bool:
        return self._pattern.first(time, time + 1, offset) == time


class RRuleTrigger(LocalTrigger):
    """A recurrence rule in its zone, with some instants added and some removed. Removing takes precedence."""

    def __init__(self, pattern: Pattern, clock: WallClock, gap: DstGap, added: Dates, excluded: Dates) -> None:
        if added.times or excluded.times or excluded.days:
            pattern = DatedPattern(pattern, added, excluded)
        super().__init__(pattern, clock, gap)
        self._excluded = excluded.instants
        self._added = tuple(instant for instant in added.instants if instant not in self._excluded)

    def search(self, after: int, max_windows: int | None = None) -> int | None:
        index = bisect_right(self._added, after)
        added = self._added[index] if index < len(self._added) else None
        found = self._search(after, max_windows)
        while found is not None and _contains(self._excluded, found):
            found = self._search(found, max_windows)
        return found if added is None or (found is not None and found < added) else added

    def last_until(self, t: datetime) -> datetime | None:
        until = to_seconds(t)
        index = bisect_right(self._added, until)
        added = to_instant(self._added[index - 1]) if index else None
        found = super().last_until(t)
        while found is not None and _contains(self._excluded, to_seconds(found)):
            found = super().last_until(to_instant(to_seconds(found) - 1))
        return found if added is None or (found is not None and found > added) else added

    def count_between(self, after: datetime, until: datetime) -> int:
        low, high = to_seconds(after) + 1, to_seconds(until) + 1
        total = super().count_between(after, until)
        total -= sum(self._ticks_at(instant) for instant in _between(self._excluded, low, high))
        return total + sum(not self._ticks_at(instant) for instant in _between(self._added, low, high))

    def gaps_between(self, after: datetime, until: datetime) -> list[datetime]:
        gaps = super().gaps_between(after, until)
        return [gap for gap in gaps if not _contains(self._added, to_seconds(gap))] if self._added else gaps

    def _search(self, after: int, max_windows: int | None) -> int | None:
        return super().search(after) if max_windows is None else super().search(after, max_windows)

    def _ticks_at(self, instant: int) -> bool:
        return super().last_until(to_instant(instant)) == to_instant(instant)


def _contains(values: Sequence[int], value: int) -> bool:
    index = bisect_left(values, value)
    return index < len(values) and values[index] == value


def _between(values: Sequence[int], low: int, high: int) -> Sequence[int]:
    return values[bisect_left(values, low) : bisect_left(values, high)]
