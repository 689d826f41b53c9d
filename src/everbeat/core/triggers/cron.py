"""Cron triggers: the days and times of an expression. cron_fields.py parses the text; wall_clock.py applies DST.

An expression whose minute or hour begins with a star follows elapsed time: it ticks whenever the local time matches. Other
expressions name local times, and the policies for gaps and folds apply to them. An expression that follows elapsed time, but
only in certain hours, loses the local times in a gap; see names_hours.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import date, datetime
from functools import lru_cache

from cronsim import CronSim

from everbeat.core.errors import InvalidInput
from everbeat.core.rules import DstFold, DstGap
from everbeat.core.triggers.cron_fields import (
    MONTH,
    CronFields,
    check_length,
    follows_real_time,
    invalid_cron,
    read_fields,
    split_zone,
)
from everbeat.core.triggers.days import CrossedTimes, DayPattern, Times
from everbeat.core.triggers.month_days import month_days
from everbeat.core.triggers.wall_clock import EPOCH_ORDINAL, FIRST_DAY, LAST_DAY, LocalTrigger, Mode, WallClock, wall_clock
from everbeat.core.zones import load_zone


class CronTrigger(LocalTrigger):
    """A cron expression in its zone."""

    def __init__(self, pattern: CronPattern, clock: WallClock, gap: DstGap) -> None:
        super().__init__(pattern, clock, gap, loses_ticks_in_gaps=pattern.names_hours)


def effective_zone(expression: str, timezone: str) -> str:
    """Return the zone of an expression: that of its CRON_TZ= prefix if it has one, otherwise that of the schedule."""
    return split_zone(expression)[0] or timezone


def parse_cron(expression: str, timezone: str, gap: DstGap, fold: DstFold, seed: bytes | None) -> CronTrigger:
    """Parse an expression. Raises InvalidInput for `cron`. The seed determines H; None is sufficient for validation."""
    check_length(expression)
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


@lru_cache(maxsize=4096)
def _times_of(second: str, minute: str, hour: str) -> CrossedTimes:
    sim = CronSim(f"{second} {minute} {hour} * * *", datetime(2000, 1, 1))  # noqa: DTZ001
    return CrossedTimes(list(sim.hours), list(sim.minutes), list(sim.seconds))


class CronPattern(DayPattern):
    """The local times of an expression."""

    def __init__(self, fields: CronFields) -> None:
        self._days = month_days(fields.day, fields.month, fields.weekday, fields.year)
        self._times = _times_of(fields.second, fields.minute, fields.hour)
        self.months = self._days.months

    @property
    def names_hours(self) -> bool:
        """Whether the expression is limited to certain hours of the day."""
        return not self._times.has_every_hour

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
        years = self._days.years
        for year in years[bisect_left(years, begin.year) :]:
            for month in self.months:
                if year > begin.year or month >= begin.month:
                    yield self._days.of_month(year, month)

    def _months_before(self, day: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        if day <= FIRST_DAY:
            return
        begin = date.fromordinal(day - 1 + EPOCH_ORDINAL)
        years = self._days.years
        for year in reversed(years[: bisect_right(years, begin.year)]):
            for month in reversed(self.months):
                if year < begin.year or month <= begin.month:
                    yield self._days.of_month(year, month)


def _no_match_message(fields: CronFields, months: tuple[int, ...]) -> str:
    where = "any month" if len(months) == 12 else " or ".join(MONTH.short_names[month - 1] for month in months)
    if fields.year != "*":
        where += f" of {_shown_years(fields.year)}"
    if fields.weekday == "*":
        return f"day-of-month: {fields.day} does not exist in {where}; use an earlier day, or L for the last day"
    return f"day-of-month: {fields.day} never falls on day-of-week {fields.weekday} in {where}; change one of the two"


def _shown_years(field: str) -> str:
    return field if len(field) <= 40 else f"{field[:40]}…"
