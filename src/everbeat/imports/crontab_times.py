"""When cron runs a line: the fields of crontab(5), and the times computed minute by minute.

This does not use Everbeat's triggers, so that an import can compare the two. It follows Vixie cron: the day fields are
combined with OR only if neither begins with a star (`*/2` begins with one). At a DST change, a line whose minute or hour begins
with a star follows elapsed time. Other lines run at the end of a gap, and once in a fold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple
from zoneinfo import ZoneInfo

# The weekday of 29 February repeats after 28 years, or 40 years across a year such as 2100.
_MAX_DAYS = 41 * 366
_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)

_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_DAYS = {name: number for number, name in enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])}

NICKNAMES: Mapping[str, str] = MappingProxyType(
    {
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
        "@monthly": "0 0 1 * *",
        "@weekly": "0 0 * * 0",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@hourly": "0 * * * *",
        "@every_minute": "* * * * *",
    }
)


class InvalidField(ValueError):
    """A field that cron does not accept, or that implementations of cron read differently."""


class _Range(NamedTuple):
    name: str
    low: int
    high: int
    names: Mapping[str, int] = MappingProxyType({})


_RANGES = (
    _Range("minute", 0, 59),
    _Range("hour", 0, 23),
    _Range("day of month", 1, 31),
    _Range("month", 1, 12, _MONTHS),
    _Range("day of week", 0, 7, _DAYS),
)


class LocalTimes:
    """The times at which the local time of a zone has these values.

    `are_days_joined`: a day matches if either day field does. `follows_elapsed_time`: local times in a gap are lost, and those
    in a fold occur twice.
    """

    def __init__(
        self, values: Sequence[set[int]], zone: ZoneInfo, *, are_days_joined: bool, follows_elapsed_time: bool
    ) -> None:
        self._minutes, self._hours, self._days, self._months, weekdays = values
        self._weekdays = {day % 7 for day in weekdays}
        self._are_days_joined = are_days_joined
        self._follows_elapsed_time = follows_elapsed_time
        self._zone = zone

    def next_times(self, after: datetime, count: int) -> list[datetime]:
        """Return the next times after an instant, in UTC."""
        times: list[datetime] = []
        first = after.astimezone(self._zone).date() - _DAY
        for number in range(_MAX_DAYS):
            day = datetime(first.year, first.month, first.day) + number * _DAY  # noqa: DTZ001
            if self._matches_day(day):
                times += [time for time in self._times_of(day) if time > after and time not in times]
            if len(times) >= count:
                break
        return sorted(times)[:count]

    def _matches_day(self, day: datetime) -> bool:
        if day.month not in self._months:
            return False
        in_month, in_week = day.day in self._days, day.isoweekday() % 7 in self._weekdays
        return (in_month or in_week) if self._are_days_joined else (in_month and in_week)

    def _times_of(self, day: datetime) -> list[datetime]:
        """Return the times on a local day."""
        found = []
        for hour in sorted(self._hours):
            for minute in sorted(self._minutes):
                local = day.replace(hour=hour, minute=minute)
                found += self._instants_of(local)
        return sorted(set(found))

    def _instants_of(self, local: datetime) -> list[datetime]:
        instants = [local.replace(tzinfo=self._zone, fold=fold).astimezone(UTC) for fold in (0, 1)]
        existing = sorted({each for each in instants if each.astimezone(self._zone).replace(tzinfo=None) == local})
        if existing:
            return existing if self._follows_elapsed_time else existing[:1]
        return [] if self._follows_elapsed_time else [self._end_of_gap(local)]

    def _end_of_gap(self, local: datetime) -> datetime:
        while True:
            local += _MINUTE
            instant = local.replace(tzinfo=self._zone).astimezone(UTC)
            if instant.astimezone(self._zone).replace(tzinfo=None) == local:
                return instant


class CrontabTimes(LocalTimes):
    """The times of five fields in a zone."""

    def __init__(self, expression: str, zone: ZoneInfo) -> None:
        texts = NICKNAMES.get(expression, expression).split()
        if len(texts) != len(_RANGES):
            raise InvalidField(f"has {len(texts)} fields, not {len(_RANGES)}")
        super().__init__(
            [_values(text, range_) for text, range_ in zip(texts, _RANGES, strict=True)],
            zone,
            are_days_joined=not texts[2].startswith("*") and not texts[4].startswith("*"),
            follows_elapsed_time=texts[0].startswith("*") or texts[1].startswith("*"),
        )


def _values(text: str, range_: _Range) -> set[int]:
    values: set[int] = set()
    for term in text.lower().split(","):
        values |= set(_term(term, text, range_))
    return values


def _term(term: str, text: str, range_: _Range) -> range:
    span, slash, step_text = term.partition("/")
    if "~" in term:
        raise InvalidField(
            f"{range_.name}: {text} is a random value, chosen when cron starts; use H in an Everbeat schedule, "
            "which is a stable value for each schedule"
        )
    if slash and span != "*" and "-" not in span:
        raise InvalidField(
            f"{range_.name}: {term} has a step after a single number, which some crons reject and others ignore; "
            f"write {span}-{range_.high}/{step_text} or {span}"
        )
    if slash and (not re.fullmatch(r"[0-9]+", step_text) or int(step_text) == 0):
        raise InvalidField(f"{range_.name}: {term} has no valid step")
    step = int(step_text) if slash else 1
    if span == "*":
        return range(range_.low, range_.high + 1, step)
    low_text, dash, high_text = span.partition("-")
    low = _number(low_text, range_)
    high = _number(high_text, range_) if dash else low
    if high < low:
        raise InvalidField(f"{range_.name}: the range {span} is reversed; cron does not accept it")
    return range(low, high + 1, step)


def _number(text: str, range_: _Range) -> int:
    number = range_.names.get(text, -1)
    if number < 0 and re.fullmatch(r"[0-9]+", text):
        number = int(text)
    if not range_.low <= number <= range_.high:
        raise InvalidField(f"{range_.name}: {text or 'an empty entry'} is not a value that cron accepts")
    return number
