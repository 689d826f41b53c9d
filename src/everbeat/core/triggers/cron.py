"""Cron triggers: the days and times of an expression. cron_fields.py parses the text; wall_clock.py applies DST.

An expression whose minute or hour begins with a star follows elapsed time: it ticks whenever the local time matches. Other
expressions name local times, and the policies for gaps and folds apply to them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Iterator
from datetime import date, datetime
from functools import lru_cache

from cronsim import CronSim

from everbeat.core.errors import InvalidInput
from everbeat.core.rules import DstFold, DstGap
from everbeat.core.triggers.cron_fields import MAX_LENGTH, MONTH, follows_real_time, invalid_cron, read_fields, split_zone
from everbeat.core.triggers.days import CrossedTimes, DayPattern, Times
from everbeat.core.triggers.wall_clock import EPOCH_ORDINAL, FIRST_DAY, LAST_DAY, LocalTrigger, Mode, wall_clock
from everbeat.core.zones import load_zone

# Months with the same length and the same first weekday have the same matching days. There are 28 such kinds, all of which
# occur within 28 years. cronsim computes the days of each kind once.
_SAMPLES = {monthrange(year, month): (year, month) for year in range(2000, 2028) for month in range(1, 13)}


class CronTrigger(LocalTrigger):
    """A cron expression in its zone."""


def effective_zone(expression: str, timezone: str) -> str:
    """Return the zone of an expression: that of its CRON_TZ= prefix if it has one, otherwise that of the schedule."""
    return split_zone(expression)[0] or timezone


def parse_cron(expression: str, timezone: str, gap: DstGap, fold: DstFold, seed: bytes | None) -> CronTrigger:
    """Parse an expression. Raises InvalidInput for `cron`. The seed determines H; None is sufficient for validation."""
    if len(expression) > MAX_LENGTH:
        raise invalid_cron(f"has {len(expression)} characters; at most {MAX_LENGTH} are allowed")
    prefix, rest = split_zone(expression)
    try:
        zone = load_zone(timezone if prefix is None else prefix)
    except InvalidInput as invalid:
        if prefix is None:
            raise
        raise invalid_cron(f"CRON_TZ: {invalid.errors[0].message}") from None
    fields = read_fields(rest, seed or b"")
    pattern = CronPattern(fields)
    if not pattern.ever_matches():
        raise invalid_cron(_no_match_message(fields, pattern.months))
    mode = Mode.REAL if follows_real_time(rest) else Mode.of(fold)
    return CronTrigger(pattern, wall_clock(zone, mode), gap)


class MonthDays:
    """The days of an expression. Expressions that differ only in their times share this object."""

    def __init__(self, day: str, month: str, weekday: str) -> None:
        # Only the parser and the day matching of cronsim are used, not its iteration, so the date does not matter. The month
        # is parsed separately, because the error of cronsim for a day such as April 31 is less precise.
        start = datetime(2000, 1, 1)  # noqa: DTZ001
        self._sim = CronSim(f"0 0 {day} * {weekday}", start)
        self.months: tuple[int, ...] = tuple(sorted(CronSim(f"0 0 1 {month} *", start).months))
        self._kinds: dict[tuple[int, int], tuple[int, ...]] = {}
        self._recent: tuple[int, int, tuple[int, ...]] = (0, 0, ())
        self.ever_match = self._ever_match()

    def around(self, day: int) -> tuple[int, int, tuple[int, ...]]:
        """Return the first day of the month that contains a day, the first day of the next month, and the matching days."""
        recent = self._recent
        if recent[0] <= day < recent[1]:
            return recent
        on = date.fromordinal(day + EPOCH_ORDINAL)
        kind = monthrange(on.year, on.month)
        start = day - on.day + 1
        offsets = self._of_kind(kind) if on.month in self.months else ()
        self._recent = found = (start, start + kind[1], tuple(start + offset for offset in offsets))
        return found

    def of_month(self, year: int, month: int) -> tuple[int, tuple[int, ...]]:
        """Return the first day of a month and the offsets of its matching days."""
        return date(year, month, 1).toordinal() - EPOCH_ORDINAL, self._of_kind(monthrange(year, month))

    def _ever_match(self) -> bool:
        """Whether any day matches. Every kind of each month occurs within 400 years, after which the calendar repeats."""
        lengths = {monthrange(year, month)[1] for year in (2000, 2001) for month in self.months}
        return any(self._of_kind((weekday, length)) for length in lengths for weekday in range(7))

    def _of_kind(self, kind: tuple[int, int]) -> tuple[int, ...]:
        offsets = self._kinds.get(kind)
        if offsets is None:
            year, month = _SAMPLES[kind]
            days = range(kind[1])
            offsets = tuple(each for each in days if self._sim.match_day(date(year, month, each + 1)))
            self._kinds[kind] = offsets
        return offsets


@lru_cache(maxsize=1024)
def _days_of(day: str, month: str, weekday: str) -> MonthDays:
    return MonthDays(day, month, weekday)


@lru_cache(maxsize=4096)
def _times_of(second: str, minute: str, hour: str) -> CrossedTimes:
    sim = CronSim(f"{second} {minute} {hour} * * *", datetime(2000, 1, 1))  # noqa: DTZ001
    return CrossedTimes(list(sim.hours), list(sim.minutes), list(sim.seconds))


class CronPattern(DayPattern):
    """The local times of an expression."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        second, minute, hour, day, month, weekday = fields
        self._days = _days_of(day, month, weekday)
        self._times = _times_of(second, minute, hour)
        self.months = self._days.months

    def ever_matches(self) -> bool:
        return self._days.ever_match

    def times_on(self, day: int, offset: int) -> Times:
        return self._times

    def first_day(self, day: int, offset: int) -> int | None:
        if day > LAST_DAY:
            return None
        _, end, days = self._days.around(day)
        index = bisect_left(days, day)
        if index < len(days):
            return days[index]
        for start, offsets in self._months_from(end):
            if offsets:
                return start + offsets[0]
        return None

    def last_day(self, day: int, offset: int) -> int | None:
        if day < FIRST_DAY:
            return None
        start, _, days = self._days.around(min(day, LAST_DAY))
        index = bisect_right(days, day)
        if index:
            return days[index - 1]
        for first, offsets in self._months_before(start):
            if offsets:
                return first + offsets[-1]
        return None

    def count_on_days(self, first: int, end: int, offset: int) -> int:
        if first >= end:
            return 0
        _, month_end, days = self._days.around(first)
        total = bisect_left(days, end) - bisect_left(days, first)
        for start, offsets in self._months_from(month_end):
            if start >= end:
                break
            total += bisect_left(offsets, end - start)
        return total * self._times.size

    def _months_from(self, day: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the first day and matching offsets of each of its months, beginning with the month that starts on this day."""
        if day > LAST_DAY:
            return
        begin = date.fromordinal(day + EPOCH_ORDINAL)
        for year in range(begin.year, date.max.year + 1):
            for month in self.months:
                if year > begin.year or month >= begin.month:
                    yield self._days.of_month(year, month)

    def _months_before(self, day: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        if day <= FIRST_DAY:
            return
        begin = date.fromordinal(day - 1 + EPOCH_ORDINAL)
        for year in range(begin.year, 0, -1):
            for month in reversed(self.months):
                if year < begin.year or month <= begin.month:
                    yield self._days.of_month(year, month)


def _no_match_message(fields: tuple[str, ...], months: tuple[int, ...]) -> str:
    names = list(MONTH.names)
    where = "any month" if len(months) == 12 else " or ".join(names[month - 1] for month in months)
    if fields[5] == "*":
        return f"day-of-month: {fields[3]} does not exist in {where}; use an earlier day, or L for the last day"
    return f"day-of-month: {fields[3]} never falls on day-of-week {fields[5]} in {where}; change one of the two"
