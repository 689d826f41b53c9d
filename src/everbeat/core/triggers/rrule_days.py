"""The days of a recurrence rule, one year at a time: first those that match the BY parts, then those that INTERVAL selects.

The weekday of January 1 and whether the year and the one before are leap years determine which days match, so they are
computed once per kind of year.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import isleap
from collections import defaultdict
from collections.abc import Iterable
from datetime import date
from itertools import groupby

from everbeat.core.triggers.days import ListedTimes, Times
from everbeat.core.triggers.rrule_text import Recurrence
from everbeat.core.triggers.wall_clock import EPOCH_ORDINAL, FIRST_DAY, LAST_DAY

_CACHED_YEARS = 64


class RecurrenceDays:
    """The days of a rule, counted from 1970, including those before DTSTART in the same phase."""

    # The calendar repeats after 400 years, but with INTERVAL a leap day may take longer to match.
    max_years_searched = 1000
    # The last tick of a rule with COUNT has to be found within milliseconds.
    max_years_counted = 400

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

    def contains(self, day: int) -> bool:
        days = self.of_year(_year_of(day))
        index = bisect_left(days, day)
        return index < len(days) and days[index] == day

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
        offsets = self._of_kind(year, months)
        if rule.interval == 1 or rule.frequency not in ("WEEKLY", "DAILY"):
            return tuple(first + offset for offset in offsets)
        origin, length = (self._week_origin, 7) if rule.frequency == "WEEKLY" else (self._start_day, 1)
        step = rule.interval * length
        earliest = first - length + 1
        if len(offsets) < 732 // step:
            return tuple(day for offset in offsets if ((day := first + offset) - origin) % step < length)
        starts = range(earliest + (origin - earliest) % step, first + 366, step)
        selected = (
            offsets[bisect_left(offsets, each - first) : bisect_left(offsets, each - first + length)] for each in starts
        )
        return tuple(first + offset for days in selected for offset in days)

    def _of_kind(self, year: int, months: tuple[int, ...]) -> tuple[int, ...]:
        kind = (date(year, 1, 1).weekday(), isleap(year), isleap(year - 1), months)
        offsets = self._kinds.get(kind)
        if offsets is None:
            self._kinds[kind] = offsets = _matching_days(self._rule, 2000 + year % 400, months)
        return offsets


class ChosenDays(RecurrenceDays):
    """The days of a rule with BYSETPOS, which selects times from each year, month, week or day."""

    # A year takes longer to compute here. The rarest results, such as the fifth Monday of February, are at most 40 years apart.
    max_years_searched = 120

    def __init__(self, rule: Recurrence, start: date, times: Times) -> None:
        super().__init__(rule, start)
        self._all_times = times
        self._times_by_year: dict[int, dict[int, Times]] = {}
        self._chosen_by_kind: dict[tuple[int, ...], dict[int, Times]] = {}
        # Weeks reach into adjacent years, so their choices cannot be shared between years of the same kind.
        self.max_years_counted = 20 if rule.frequency == "WEEKLY" else 100

    def of_year(self, year: int) -> tuple[int, ...]:
        return tuple(self._times_of_year(year))

    def times_on(self, day: int) -> Times:
        return self._times_of_year(_year_of(day))[day]

    def _times_of_year(self, year: int) -> dict[int, Times]:
        times = self._times_by_year.get(year)
        if times is None:
            if len(self._times_by_year) >= _CACHED_YEARS:
                self._times_by_year.clear()
            self._times_by_year[year] = times = self._choose_year(year)
        return times

    def _choose_year(self, year: int) -> dict[int, Times]:
        if self._rule.frequency == "WEEKLY":
            chosen = self._choose_all(self._periods_of_year(year))
            return {day: times for day, times in chosen.items() if _year_of(day) == year}
        first = date(year, 1, 1).toordinal() - EPOCH_ORDINAL
        kind = tuple(day - first for day in super().of_year(year))
        if kind not in self._chosen_by_kind:
            periods = ([day - first for day in days] for days in self._periods_of_year(year))
            self._chosen_by_kind[kind] = self._choose_all(periods)
        chosen = self._chosen_by_kind[kind]
        return {first + offset: times for offset, times in chosen.items()}

    def _choose_all(self, periods: Iterable[list[int]]) -> dict[int, Times]:
        chosen: dict[int, set[int]] = defaultdict(set)
        for days in periods:
            for day, time in self._choose(days):
                chosen[day].add(time)
        return {day: ListedTimes(sorted(chosen[day])) for day in sorted(chosen)}

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


def chosen_from(times: Times, positions: Iterable[int]) -> set[int]:
    """Return the times that BYSETPOS chooses."""
    indexes = (position - 1 if position > 0 else times.size + position for position in positions)
    return {times[index] for index in indexes if 0 <= index < times.size}


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


def _matching_days(rule: Recurrence, year: int, months: tuple[int, ...]) -> tuple[int, ...]:
    """Return the days of a year, counted from 0, that match all BY parts. Empty `months`: every month."""
    first = date(year, 1, 1)
    length = 365 + isleap(year)
    starts = [(date(year, month, 1) - first).days for month in range(1, 13)] + [length]
    spans = [(starts[month - 1], starts[month]) for month in months or range(1, 13)]
    if rule.by_month_day:
        days = {day for span in spans for each in rule.by_month_day if (day := _counted_day(each, *span)) is not None}
    else:
        days = {day for span in spans for day in range(*span)}
    if rule.by_year_day:
        days &= {day for each in rule.by_year_day if (day := _counted_day(each, 0, length)) is not None}
    if rule.by_week_number:
        days &= _days_of_weeks(rule, year, length)
    if rule.by_day:
        days &= _days_of_weekdays(rule, spans if months else [(0, length)], first.weekday())
    return tuple(sorted(days))


def _counted_day(number: int, low: int, high: int) -> int | None:
    """Return the day with this number in [low, high), counted from its end if the number is negative."""
    day = low + number - 1 if number > 0 else high + number
    return day if low <= day < high else None


def _days_of_weekdays(rule: Recurrence, spans: Iterable[tuple[int, int]], first_weekday: int) -> set[int]:
    days: set[int] = set()
    for weekday, nth in rule.by_day:
        for low, high in spans:
            every = range(low + (weekday - first_weekday - low) % 7, high, 7)
            index = None if nth is None else _counted_day(nth, 0, len(every))
            days.update(every if nth is None else () if index is None else (every[index],))
    return days


def _days_of_weeks(rule: Recurrence, year: int, length: int) -> set[int]:
    """Return the days in the weeks of BYWEEKNO. Week 1 contains January 4. The year also has days of adjacent years' weeks."""
    first = date(year, 1, 1).toordinal()
    before, this, after = (_first_week(each, rule.week_start) - first for each in (year - 1, year, year + 1))
    wanted = rule.by_week_number
    days: set[int] = set()
    for low, start, end in ((before, 0, this), (this, max(this, 0), min(after, length))):
        count = ((this if low == before else after) - low) // 7
        numbers = {number if number > 0 else count + 1 + number for number in wanted}
        days.update(day for day in range(start, end) if (day - low) // 7 + 1 in numbers)
    if 1 in wanted:
        days.update(range(after, length))
    return days


def _first_week(year: int, week_start: int) -> int:
    """Return the first day of the week that contains January 4, as an ordinal."""
    fourth = date(year, 1, 4)
    return fourth.toordinal() - (fourth.weekday() - week_start) % 7


def _year_of(day: int) -> int:
    return date.fromordinal(min(day, LAST_DAY) + EPOCH_ORDINAL).year
