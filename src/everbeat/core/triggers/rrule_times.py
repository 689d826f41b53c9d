"""The local times of a recurrence rule: days combined with times of day, or elapsed time filtered by local time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from datetime import date, timedelta
from itertools import product
from math import gcd
from typing import NamedTuple

from everbeat.core.triggers.days import CrossedTimes, DayPattern, ListedTimes, Times
from everbeat.core.triggers.rrule_days import ChosenDays, RecurrenceDays, chosen_from
from everbeat.core.triggers.rrule_text import Recurrence
from everbeat.core.triggers.wall_clock import DAY, EPOCH, FIRST_DAY, LAST_DAY, MAX_INSTANT, MIN_INSTANT, Pattern, year_start

UNITS = {"HOURLY": 3600, "MINUTELY": 60, "SECONDLY": 1}

_MARGIN = 2 * DAY
_CACHED_TIMES = 64
_MAX_DAYS_SEARCHED = 2000


class BoundedPattern(DayPattern):
    """A pattern between DTSTART and UNTIL."""

    @abstractmethod
    def lowest(self, offset: int) -> int:
        """Return the first local time that is allowed."""

    @abstractmethod
    def end(self, offset: int) -> int:
        """Return the first local time after the end."""

    def first(self, low: int, high: int, offset: int) -> int | None:
        return super().first(max(low, self.lowest(offset)), min(high, self.end(offset)), offset)

    def last(self, low: int, high: int, offset: int) -> int | None:
        return super().last(max(low, self.lowest(offset)), min(high, self.end(offset)), offset)

    def count(self, low: int, high: int, offset: int) -> int:
        return super().count(max(low, self.lowest(offset)), min(high, self.end(offset)), offset)


class DatePattern(BoundedPattern):
    """The local times of a YEARLY to DAILY rule. `start` is a local time, `until` an instant."""

    def __init__(self, rule: Recurrence, start: int, until: int | None) -> None:
        wall = EPOCH + timedelta(seconds=start)
        self._start = start
        self._until = until
        self._last: int | None = None
        self._times: Times = CrossedTimes(
            rule.by_hour or (wall.hour,), rule.by_minute or (wall.minute,), rule.by_second or (wall.second,)
        )
        if rule.by_position and rule.frequency == "DAILY":  # the same choice on every day
            self._times = ListedTimes(sorted(chosen_from(self._times, rule.by_position)))
            rule = rule._replace(by_position=())
        self._chosen = ChosenDays(rule, wall.date(), self._times) if rule.by_position else None
        self._days = self._chosen or RecurrenceDays(rule, wall.date())

    @property
    def max_years_counted(self) -> int:
        return self._days.max_years_counted

    def ending_after(self, count: int) -> DatePattern | None:
        """Return the same pattern, limited to its first `count` times. None if they take more than `max_years_counted`."""
        ended = copy(self)
        begin = (EPOCH + timedelta(seconds=self._start)).year
        total = 0
        for year in range(begin, begin + self.max_years_counted):
            if year > date.max.year:
                return ended  # there are fewer
            low, high = year_start(year), year_start(year + 1)
            found = self.count(low, high, 0)
            if total + found >= count:
                ended._last = nth_time(self, low, high, 0, count - total)
                return ended
            total += found
        return None

    def lowest(self, offset: int) -> int:
        return self._start

    def end(self, offset: int) -> int:
        end = MAX_INSTANT + 1 if self._last is None else self._last + 1
        return end if self._until is None else min(end, self._until + offset + 1)

    def first_day(self, day: int, offset: int) -> int | None:
        return self._days.first(day)

    def last_day(self, day: int, offset: int) -> int | None:
        return self._days.last(day)

    def times_on(self, day: int, offset: int) -> Times:
        return self._times if self._chosen is None else self._chosen.times_on(day)

    def count_on_days(self, first: int, end: int, offset: int) -> int:
        years = self._days.between(first, end)
        if self._chosen is None:
            return sum(map(len, years)) * self._times.size
        return sum(self._chosen.times_on(day).size for days in years for day in days)

    def none_before(self, low: int) -> int | None:
        if self._times.size == 0:
            return None
        # UNTIL is the latest local time at the largest offset.
        return self.first(low, MAX_INSTANT + 1, DAY)

    def none_after(self, high: int) -> int | None:
        return self.last(MIN_INSTANT, high + 1, DAY)


class ElapsedPattern(BoundedPattern):
    """The local times of an HOURLY to SECONDLY rule. `start` and `until` are instants. The phase follows elapsed time."""

    def __init__(self, rule: Recurrence, start: int, until: int | None) -> None:
        self._rule = rule
        self._unit = UNITS[rule.frequency]
        self._step = self._unit * rule.interval
        self._same_every_day = DAY % self._step == 0
        self._start = start
        self._until = MAX_INSTANT + DAY if until is None else until
        self._minutes = frozenset(rule.by_minute if self._unit < 3600 else ())
        self._seconds = frozenset(rule.by_second if self._unit == 1 else ())
        self._filters_times = bool(rule.by_hour or self._minutes or self._seconds)
        filters_days = rule.by_month or rule.by_month_day or rule.by_year_day or rule.by_week_number or rule.by_day
        self._days = RecurrenceDays(rule, (EPOCH + timedelta(seconds=start)).date()) if filters_days else None
        self._frames: dict[int, Frame] = {}
        self._times: dict[tuple[int, int], Times] = {}

    def ending_at(self, last: int) -> ElapsedPattern:
        """Return the same pattern, limited to the times up to an instant."""
        ended = copy(self)
        ended._until = last
        return ended

    def work_on(self, days: int, since_start: int) -> int:
        """Return the effort to count the times of some days, in steps of a loop, when earlier days have been counted."""
        if self._same_every_day or (self._days is None and not self._filters_times):
            return 0
        phases = self._step // gcd(self._step, DAY)
        hours = len(self._rule.by_hour) or 24
        uncached = days if phases > _CACHED_TIMES else min(days, max(0, phases - since_start))
        steps = hours * len(self._minutes) * (60 // self._step + 1) if self._minutes else hours * 3600 // self._step
        return days * 20 + uncached * steps

    def lowest(self, offset: int) -> int:
        return self._start + offset

    def end(self, offset: int) -> int:
        return self._until + offset + 1

    def has_day(self, day: int, offset: int) -> bool:
        if not self._frame(offset).is_reachable or (self._step > DAY and self._phase(day, offset) >= DAY):
            return False
        return self._days is None or self._days.contains(day)

    def first_day(self, day: int, offset: int) -> int | None:
        if not self._frame(offset).is_reachable:
            return None
        for _ in range(_MAX_DAYS_SEARCHED):
            if self._step > DAY:
                day += self._phase(day, offset) // DAY
            if day > LAST_DAY:
                return None
            found = day if self._days is None else self._days.first(day)
            if found is None or found == day:
                return found
            day = found
        return None

    def last_day(self, day: int, offset: int) -> int | None:
        if not self._frame(offset).is_reachable:
            return None
        for _ in range(_MAX_DAYS_SEARCHED):
            if self._step > DAY:
                day = ((day + 1) * DAY + self._phase(day + 1, offset) - self._step) // DAY
            if day < FIRST_DAY:
                return None
            found = day if self._days is None else self._days.last(day)
            if found is None or found == day:
                return found
            day = found
        return None

    def times_on(self, day: int, offset: int) -> Times:
        key = (self._phase(day, offset), offset)
        times = self._times.get(key)
        if times is None:
            if len(self._times) >= _CACHED_TIMES:
                self._times.clear()
            self._times[key] = times = self._find_times(*key)
        return times

    def count_on_days(self, first: int, end: int, offset: int) -> int:
        if first >= end or not self._frame(offset).is_reachable:
            return 0
        if self._days is None and not self._filters_times:
            periods = -(-((end - first) * DAY - self._phase(first, offset)) // self._step)
            return max(periods, 0) * len(self._frame(offset).within)
        days = [range(first, end)] if self._days is None else self._days.between(first, end)
        if self._same_every_day:
            return sum(map(len, days)) * self.times_on(first, offset).size
        return sum(self.times_on(day, offset).size for each in days for day in each)

    def none_before(self, low: int) -> int | None:
        low = max(low, self._start - DAY)
        if low > self._until + _MARGIN:
            return None
        if self._days is not None:
            day = self._days.first(low // DAY)
            if day is None:
                return None
            low = max(low, day * DAY)
        period = low - _MARGIN + (self._start - low + _MARGIN) % self._step
        return max(low, period - DAY - self._unit)

    def none_after(self, high: int) -> int | None:
        if high < self._start - _MARGIN:
            return None
        day = high // DAY if self._days is None else self._days.last(high // DAY)
        return None if day is None else min(high, (day + 1) * DAY - 1)

    def _phase(self, day: int, offset: int) -> int:
        """Return the seconds from midnight of the day to the start of the next period, which may be after the day."""
        return (self._frame(offset).origin - day * DAY) % self._step

    def _frame(self, offset: int) -> Frame:
        frame = self._frames.get(offset)
        if frame is None:
            self._frames[offset] = frame = self._find_frame(offset)
        return frame

    def _find_frame(self, offset: int) -> Frame:
        rule, origin = self._rule, self._start + offset
        minute, second = origin // 60 % 60, origin % 60
        within: Sequence[int] = ()
        if self._unit == 3600 and (rule.by_minute or rule.by_second):
            within = [m * 60 + s for m in rule.by_minute or (minute,) for s in rule.by_second or (second,)]
        elif self._unit == 60:
            within = rule.by_second
        if within:
            origin -= origin % self._unit
        within = within or (0,)
        if rule.by_position:
            size = len(within)
            within = sorted({within[p - (p > 0)] for p in rule.by_position if -size <= p - (p > 0) < size})
        # The phase changes from day to day by a multiple of `common`, and eventually takes all such values.
        common = gcd(self._step, DAY)
        reachable = bool(within) and any(True for _ in self._periods(origin % common, common))
        return Frame(origin, tuple(within), reachable)

    def _find_times(self, phase: int, offset: int) -> Times:
        rule, frame = self._rule, self._frame(offset)
        seconds: Sequence[int]
        if rule.interval == 1 and not rule.by_position:
            local = self._start + offset
            minutes = rule.by_minute or (range(60) if self._unit < 3600 else (local // 60 % 60,))
            seconds = rule.by_second or (range(60) if self._unit == 1 else (local % 60,))
            return CrossedTimes(rule.by_hour or range(24), minutes, seconds)
        if frame.within == (0,) and 60 % self._step == 0:
            seconds = [second for second in self._seconds or range(60) if (second - phase) % self._step == 0]
            return CrossedTimes(rule.by_hour or range(24), rule.by_minute or range(60), seconds)
        if not self._filters_times and frame.within == (0,):
            return ListedTimes(range(phase, DAY, self._step))
        return ListedTimes([each + more for each in self._periods(phase, self._step) for more in frame.within])

    def _periods(self, phase: int, step: int) -> Iterator[int]:
        """Yield the starts of the periods of a day that match the filters, in order."""
        hours = self._rule.by_hour
        spans = [(hour * 3600, (hour + 1) * 3600) for hour in hours] if hours else [(0, DAY)]
        if self._minutes:
            minutes = product(hours or range(24), sorted(self._minutes))
            spans = [(hour * 3600 + minute * 60, hour * 3600 + minute * 60 + 60) for hour, minute in minutes]
        for low, high in spans:
            for each in range(low + (phase - low) % step, high, step):
                if not self._seconds or each % 60 in self._seconds:
                    yield each


def nth_time(pattern: Pattern, low: int, high: int, offset: int, number: int) -> int:
    """Return the time in [low, high) with this number, counted from 1. There must be that many."""
    begin = low
    while high - low > 1:
        middle = (low + high) // 2
        if pattern.count(begin, middle, offset) >= number:
            high = middle
        else:
            low = middle
    return low


class Frame(NamedTuple):
    """An elapsed pattern at one offset: the origin of its periods, its times within each, and whether any can match."""

    origin: int
    within: tuple[int, ...]
    is_reachable: bool
