"""Patterns of days and of times within a day. Subclasses for cron and rrule define the days and times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from everbeat.core.triggers.wall_clock import DAY, MAX_INSTANT, MIN_INSTANT

# Only rules that count elapsed time and filter by local time have days without times. Some of them never match, for example
# every 7 hours, filtered to 3:00 on Mondays.
_MAX_DAYS_SEARCHED = 2000


class Times(Protocol):
    """A sorted set of seconds of a day."""

    @property
    def size(self) -> int: ...

    def __getitem__(self, index: int) -> int: ...

    def rank(self, time: int) -> int:
        """Return the number of times before this one."""


class ListedTimes:
    """The times in a list or range."""

    def __init__(self, times: Sequence[int]) -> None:
        self._times = times
        self.size = len(times)

    def __getitem__(self, index: int) -> int:
        return self._times[index]

    def rank(self, time: int) -> int:
        return bisect_left(self._times, time)


class CrossedTimes:
    """All combinations of hours, minutes and seconds, without a list of up to 86,400 entries."""

    def __init__(self, hours: Sequence[int], minutes: Sequence[int], seconds: Sequence[int]) -> None:
        self._hours, self._minutes, self._seconds = (tuple(sorted(set(each))) for each in (hours, minutes, seconds))
        self._per_minute = len(self._seconds)
        self._per_hour = len(self._minutes) * self._per_minute
        self.size = len(self._hours) * self._per_hour
        self.has_every_hour = len(self._hours) == 24

    def __getitem__(self, index: int) -> int:
        hour, rest = divmod(index, self._per_hour)
        minute, second = divmod(rest, self._per_minute)
        return self._hours[hour] * 3600 + self._minutes[minute] * 60 + self._seconds[second]

    def rank(self, time: int) -> int:
        hour, rest = divmod(time, 3600)
        position = bisect_left(self._hours, hour)
        rank = position * self._per_hour
        if position == len(self._hours) or self._hours[position] != hour:
            return rank
        minute, second = divmod(rest, 60)
        position = bisect_left(self._minutes, minute)
        rank += position * self._per_minute
        if position == len(self._minutes) or self._minutes[position] != minute:
            return rank
        return rank + bisect_left(self._seconds, second)


class DayPattern(ABC):
    """Implements wall_clock.Pattern. Days count from 1970-01-01. The times of a day may depend on the day and the offset."""

    @abstractmethod
    def first_day(self, day: int, offset: int) -> int | None:
        """Return the first day at or after this one that may have times."""

    @abstractmethod
    def last_day(self, day: int, offset: int) -> int | None:
        """Return the last day at or before this one that may have times."""

    def has_day(self, day: int, offset: int) -> bool:
        """Return whether this day may have times."""
        return self.first_day(day, offset) == day

    @abstractmethod
    def times_on(self, day: int, offset: int) -> Times:
        """Return the times of a day that first_day or last_day returned."""

    @abstractmethod
    def count_on_days(self, first: int, end: int, offset: int) -> int:
        """Return the number of times on the days in [first, end)."""

    def first(self, low: int, high: int, offset: int) -> int | None:
        low = max(low, MIN_INSTANT)
        day, time = divmod(low, DAY)
        found = self.first_day(day, offset)
        for _ in range(_MAX_DAYS_SEARCHED):
            if found is None or found * DAY >= high:
                break
            times = self.times_on(found, offset)
            rank = times.rank(time) if found == day else 0
            if rank < times.size:
                result = found * DAY + times[rank]
                return result if result < high else None
            found = self.first_day(found + 1, offset)
        return None

    def last(self, low: int, high: int, offset: int) -> int | None:
        high = min(high, MAX_INSTANT + 1)
        day, time = divmod(high, DAY)
        found = self.last_day(day, offset)
        for _ in range(_MAX_DAYS_SEARCHED):
            if found is None or (found + 1) * DAY <= low:
                break
            times = self.times_on(found, offset)
            rank = times.rank(time) if found == day else times.size
            if rank > 0:
                result = found * DAY + times[rank - 1]
                return result if result >= low else None
            found = self.last_day(found - 1, offset)
        return None

    def count(self, low: int, high: int, offset: int) -> int:
        low, high = max(low, MIN_INSTANT), min(high, MAX_INSTANT + 1)
        if low >= high:
            return 0
        (first, low_time), (last, high_time) = divmod(low, DAY), divmod(high, DAY)
        total = self.count_on_days(first, last, offset)
        if low_time and self.has_day(first, offset):
            total -= self.times_on(first, offset).rank(low_time)
        if high_time and self.has_day(last, offset):
            total += self.times_on(last, offset).rank(high_time)
        return total

    def none_before(self, low: int) -> int | None:
        return self.first(low, MAX_INSTANT + 1, 0)

    def none_after(self, high: int) -> int | None:
        return self.last(MIN_INSTANT, high + 1, 0)
