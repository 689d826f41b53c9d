"""The days that the day, month and year fields of a cron expression match, one month at a time."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterable
from datetime import date, datetime
from functools import lru_cache

from cronsim import CronSim

from everbeat.core.triggers.cron_fields import years_of
from everbeat.core.triggers.wall_clock import EPOCH_ORDINAL

# Months with the same length and the same first weekday have the same matching days. There are 28 such kinds, all of which
# occur within 28 years. The days of each kind are computed once.
_SAMPLES = {monthrange(year, month): (year, month) for year in range(2000, 2028) for month in range(1, 13)}
_SATURDAY, _SUNDAY = 5, 6
# Only the parser and the day matching of cronsim are used, not its iteration, so the date does not matter.
_START = datetime(2000, 1, 1)  # noqa: DTZ001


class MonthDays:
    """The days of an expression. Expressions that differ only in their times share this object."""

    def __init__(self, day: str, month: str, weekday: str, year: str) -> None:
        # 15W, L-3 and L-3W, which cronsim does not support.
        self._special = [term for term in day.split(",") if term != "LW" and (term.startswith("L-") or term.endswith("W"))]
        plain = ",".join(term for term in day.split(",") if term not in self._special)
        # The month is parsed separately, because the error of cronsim for a day such as April 31 is less precise.
        if self._special:
            self._day = CronSim(f"0 0 {plain} * *", _START) if plain else None
            self._weekday = CronSim(f"0 0 * * {weekday}", _START)
        else:
            self._both = CronSim(f"0 0 {day} * {weekday}", _START)
        self._must_match_both = day.startswith("*") or weekday.startswith("*")
        self.months: tuple[int, ...] = tuple(sorted(CronSim(f"0 0 1 {month} *", _START).months))
        self.years = years_of(year)
        self._every_year = year == "*"
        self._year_set = frozenset() if self._every_year else frozenset(self.years)
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
        is_included = on.month in self.months and (self._every_year or on.year in self._year_set)
        offsets = self._of_kind(kind) if is_included else ()
        self._recent = found = (start, start + kind[1], tuple(start + offset for offset in offsets))
        return found

    def of_month(self, year: int, month: int) -> tuple[int, tuple[int, ...]]:
        """Return the first day of a month and the offsets of its matching days."""
        return date(year, month, 1).toordinal() - EPOCH_ORDINAL, self._of_kind(monthrange(year, month))

    def _ever_match(self) -> bool:
        """Whether any day matches. Every kind of each month occurs within 400 years, after which the calendar repeats."""
        if not self._every_year:
            kinds: Iterable[tuple[int, int]] = {monthrange(year, month) for year in self.years for month in self.months}
        else:
            lengths = {monthrange(year, month)[1] for year in (2000, 2001) for month in self.months}
            kinds = ((weekday, length) for length in lengths for weekday in range(7))
        return any(self._of_kind(kind) for kind in kinds)

    def _of_kind(self, kind: tuple[int, int]) -> tuple[int, ...]:
        offsets = self._kinds.get(kind)
        if offsets is None:
            self._kinds[kind] = offsets = tuple(sorted(self._find(kind)))
        return offsets

    def _find(self, kind: tuple[int, int]) -> Iterable[int]:
        year, month = _SAMPLES[kind]
        days = range(kind[1])
        if not self._special:
            return (each for each in days if self._both.match_day(date(year, month, each + 1)))
        by_day = {offset for term in self._special if (offset := _special_offset(term, kind)) is not None}
        if self._day is not None:
            by_day.update(each for each in days if self._day.match_day(date(year, month, each + 1)))
        by_weekday = {each for each in days if self._weekday.match_day(date(year, month, each + 1))}
        return by_day & by_weekday if self._must_match_both else by_day | by_weekday


def _special_offset(term: str, kind: tuple[int, int]) -> int | None:
    """Return the offset of 15W, L-3 or L-3W in a month of this kind, or None if the month does not have that day."""
    first_weekday, length = kind
    body = term.removesuffix("W")
    day = length - int(body[2:]) if body.startswith("L-") else int(body)
    if not 1 <= day <= length:
        return None
    if term.endswith("W"):
        day = _nearest_weekday(day, (first_weekday + day - 1) % 7, length)
    return day - 1


def _nearest_weekday(day: int, weekday: int, length: int) -> int:
    """Return the weekday nearest to a day, within the same month."""
    if weekday == _SATURDAY:
        return day - 1 if day > 1 else day + 2
    if weekday == _SUNDAY:
        return day + 1 if day < length else day - 2
    return day


@lru_cache(maxsize=1024)
def month_days(day: str, month: str, weekday: str, year: str) -> MonthDays:
    return MonthDays(day, month, weekday, year)
