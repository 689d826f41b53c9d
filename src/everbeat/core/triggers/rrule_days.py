"""The days of a recurrence rule, one year at a time. dateutil computes the days of a year; INTERVAL is applied here.

dateutil iterates from DTSTART and, for a rule that never matches, up to the year 9999. It is therefore used only for single
years, once per kind of year. The weekday of January 1 and whether the year and the one before are leap years
determine all days of a rule.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import isleap
from collections import defaultdict
from collections.abc import Iterable
from datetime import date, datetime
from itertools import groupby
from typing import TYPE_CHECKING

from everbeat.core.triggers.days import ListedTimes, Times
from everbeat.core.triggers.rrule_text import Recurrence
from everbeat.core.triggers.wall_clock import EPOCH_ORDINAL, FIRST_DAY, LAST_DAY

if TYPE_CHECKING:
    from dateutil.rrule import weekday

_CACHED_YEARS = 64
# dateutil ends a yearly rule when the next year would be after 9999. With this interval it computes only one year.
_INTERVAL_BEYOND_RANGE = 10_000


class RecurrenceDays:
    """The days of a rule, counted from 1970, including those before DTSTART in the same phase."""

    # The calendar repeats after 400 years, but with INTERVAL a leap day may take longer to match.
    max_years_searched = 1000

    def __init__(self, rule: Recurrence, start: date) -> None:
        self._rule = with_defaults(rule, start)
        self._start = start
        self._start_day = start.toordinal() - EPOCH_ORDINAL
        self._start_month = start.year * 12 + start.month - 1
        self._week_origin = self._start_day - (start.weekday() - rule.week_start) % 7
        self._kinds: dict[tuple[int, bool, bool, tuple[int, ...]], tuple[int, ...]] = {}
        self._years: dict[int, tuple[int, ...]] = {}

    def of_year(self, year: int) -> tuple[int, ...]:
        days = self._years.get(year)
        if days is None:
            if len(self._years) >= _CACHED_YEARS:
                self._years.clear()
            self._years[year] = days = self._find(year)
        return days

    def first(self, day: int) -> int | None:
        if day > LAST_DAY:
            return None
        begin = _year_of(max(day, FIRST_DAY))
        for year in self._candidate_years(begin, 1):
            days = self.of_year(year)
            index = bisect_left(days, day)
            if index < len(days):
                return days[index]
        return None

    def last(self, day: int) -> int | None:
        if day < FIRST_DAY:
            return None
        begin = _year_of(min(day, LAST_DAY))
        for year in self._candidate_years(begin, -1):
            days = self.of_year(year)
            index = bisect_right(days, day)
            if index:
                return days[index - 1]
        return None

    def between(self, first: int, end: int) -> Iterable[tuple[int, ...]]:
        """Yield the days in [first, end), year by year."""
        for year in range(_year_of(first), _year_of(end - 1) + 1) if first < end else ():
            days = self.of_year(year)
            yield days[bisect_left(days, first) : bisect_left(days, end)]

    def _candidate_years(self, year: int, direction: int) -> Iterable[int]:
        step = self._rule.interval if self._rule.frequency == "YEARLY" else 1
        begin = year + direction * ((self._start.year - year) * direction % step)
        end = date.max.year + 1 if direction > 0 else 0
        return range(begin, end, direction * step)[: self.max_years_searched]

    def _find(self, year: int) -> tuple[int, ...]:
        rule = self._rule
        months = rule.by_month
        if rule.frequency == "YEARLY" and (year - self._start.year) % rule.interval:
            return ()
        if rule.frequency == "MONTHLY":
            in_phase = (m for m in range(1, 13) if (year * 12 + m - 1 - self._start_month) % rule.interval == 0)
            months = tuple(month for month in in_phase if not rule.by_month or month in rule.by_month)
            if not months:
                return ()
        first = date(year, 1, 1).toordinal() - EPOCH_ORDINAL
        wanted = self._in_phase(first)
        if wanted is None:
            return tuple(first + offset for offset in self._of_kind(year, months))
        return tuple(day for offset in self._of_kind(year, months) if (day := first + offset) in wanted) if wanted else ()

    def _in_phase(self, first: int) -> set[int] | None:
        """Return the days of the year from `first` that INTERVAL selects, by weeks or days, or None if it selects all."""
        if self._rule.interval == 1 or self._rule.frequency not in ("WEEKLY", "DAILY"):
            return None
        origin, length = (self._week_origin, 7) if self._rule.frequency == "WEEKLY" else (self._start_day, 1)
        step = self._rule.interval * length
        earliest = first - length + 1
        starts = range(earliest + (origin - earliest) % step, first + 366, step)
        return {start + each for start in starts for each in range(length)}

    def _of_kind(self, year: int, months: tuple[int, ...]) -> tuple[int, ...]:
        kind = (date(year, 1, 1).weekday(), isleap(year), isleap(year - 1), months)
        offsets = self._kinds.get(kind)
        if offsets is None:
            self._kinds[kind] = offsets = _dateutil_days(self._rule, 2000 + year % 400, months)
        return offsets


class ChosenDays(RecurrenceDays):
    """The days of a rule with BYSETPOS, which selects times from each year, month, week or day."""

    # A year takes longer to compute here. The rarest results, such as the fifth Monday of February, are at most 40 years apart.
    max_years_searched = 120

    def __init__(self, rule: Recurrence, start: date, times: Times) -> None:
        super().__init__(rule, start)
        self._all_times = times
        self._times_by_year: dict[int, dict[int, Times]] = {}

    def of_year(self, year: int) -> tuple[int, ...]:
        return tuple(self._times_of_year(year))

    def times_on(self, day: int) -> Times:
        return self._times_of_year(_year_of(day))[day]

    def _times_of_year(self, year: int) -> dict[int, Times]:
        times = self._times_by_year.get(year)
        if times is None:
            if len(self._times_by_year) >= _CACHED_YEARS:
                self._times_by_year.clear()
            chosen: dict[int, set[int]] = defaultdict(set)
            for days in self._periods_of_year(year):
                for day, time in self._choose(days):
                    chosen[day].add(time)
            times = {day: ListedTimes(sorted(chosen[day])) for day in sorted(chosen) if _year_of(day) == year}
            self._times_by_year[year] = times
        return times

    def _choose(self, days: list[int]) -> Iterable[tuple[int, int]]:
        total = len(days) * self._all_times.size
        for position in self._rule.by_position:
            index = position - 1 if position > 0 else total + position
            if 0 <= index < total:
                day, time = divmod(index, self._all_times.size)
                yield days[day], self._all_times[time]

    def _periods_of_year(self, year: int) -> Iterable[list[int]]:
        """Return the days of the year, grouped by period. Weeks at its ends include their days in adjacent years."""
        days = list(super().of_year(year))
        if self._rule.frequency == "WEEKLY":
            before, after = super().of_year(max(year - 1, 1)), super().of_year(min(year + 1, date.max.year))
            days = sorted({*before[-7:], *days, *after[:7]})
        return (list(group) for _, group in groupby(days, self._period_of))

    def _period_of(self, day: int) -> int:
        match self._rule.frequency:
            case "YEARLY":
                return 0
            case "MONTHLY":
                return date.fromordinal(day + EPOCH_ORDINAL).month
            case "WEEKLY":
                return (day - self._week_origin) // 7
            case _:
                return day


def with_defaults(rule: Recurrence, start: date) -> Recurrence:
    """Return the rule with missing day parts taken from DTSTART, as RFC 5545 requires."""
    if rule.by_week_number or rule.by_year_day or rule.by_month_day or rule.by_day:
        return rule
    match rule.frequency:
        case "YEARLY":
            return rule._replace(by_month=rule.by_month or (start.month,), by_month_day=(start.day,))
        case "MONTHLY":
            return rule._replace(by_month_day=(start.day,))
        case "WEEKLY":
            return rule._replace(by_day=((start.weekday(), None),))
        case _:
            return rule


def _dateutil_days(rule: Recurrence, year: int, months: tuple[int, ...]) -> tuple[int, ...]:
    from dateutil.rrule import YEARLY, rrule  # not at the top: few schedules need it, and imports should be fast

    month_days = rule.by_month_day
    if not (rule.by_week_number or rule.by_year_day or rule.by_month_day or rule.by_day):
        if not months:
            return tuple(range(365 + isleap(year)))
        month_days = tuple(range(1, 32))
    start = datetime(year, 1, 1)  # noqa: DTZ001
    found = rrule(
        YEARLY,
        dtstart=start,
        interval=_INTERVAL_BEYOND_RANGE,
        wkst=rule.week_start,
        bymonth=months or None,
        bymonthday=month_days or None,
        byyearday=rule.by_year_day or None,
        byweekno=rule.by_week_number or None,
        byweekday=_weekdays(rule, bool(months)) or None,
        byhour=0,
        byminute=0,
        bysecond=0,
    )
    return tuple((day - start).days for day in found)


def _weekdays(rule: Recurrence, within_months: bool) -> list[weekday]:
    """Expand MO in MO,1TU to 1MO,2MO,…, because dateutil would require days to match both parts."""
    from dateutil.rrule import weekday

    if all(nth is None for _, nth in rule.by_day):
        return [weekday(day) for day, _ in rule.by_day]
    every = range(1, 6 if within_months else 54)
    return [weekday(day, each) for day, nth in rule.by_day for each in (every if nth is None else (nth,))]


def _year_of(day: int) -> int:
    return date.fromordinal(min(day, LAST_DAY) + EPOCH_ORDINAL).year
