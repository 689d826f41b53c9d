"""Import of ICS files as days and hours. Recurring events are expanded over a limited number of years, with limited work.

The parser is icalendar. The extra `everbeat[ics]` installs it, and it is imported on first use.
"""

from __future__ import annotations

import calendar
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from types import ModuleType
from typing import Any, NamedTuple

from everbeat.core.errors import InvalidInput

MAX_BYTES = 1024 * 1024
MAX_ENTRIES = 10_000
MAX_LINES_PER_EVENT = 1000
MAX_YEARS_AHEAD = 10
# Past days are included so that a skipped tick can be explained up to a year before the import.
PAST = timedelta(days=366)

_MAX_DAYS_EXAMINED = 1_000_000
_YEARS = range(1900, 2201)
_PROPERTY = re.compile(r"(DTSTART|DTEND|DURATION|RRULE|RDATE|EXDATE|UID|STATUS|RECURRENCE-ID)[;:]", re.IGNORECASE)
_FREQUENCIES = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_WEEKDAY = re.compile(r"([+-]?\d{1,2})?(MO|TU|WE|TH|FR|SA|SU)")
_RULE_PARTS = frozenset(
    {"FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYMONTH", "BYMONTHDAY", "BYYEARDAY", "BYDAY", "BYSETPOS"}
)


class ImportedIcs(NamedTuple):
    """Whole days (both ends included), and hours (end excluded; in UTC, or naive if the file has no zone for them)."""

    days: list[tuple[date, date]]
    hours: list[tuple[datetime, datetime]]


class IcsRecurrence(NamedTuple):
    """An RRULE. `weekdays` has pairs of n and day (Monday is 0): the nth such day or, if n is 0, every such day."""

    frequency: str
    interval: int
    times: int | None
    until: date | datetime | None
    week_start: int
    months: frozenset[int]
    month_days: frozenset[int]
    year_days: frozenset[int]
    weekdays: frozenset[tuple[int, int]]
    positions: tuple[int, ...]


class _Event(NamedTuple):
    start: date | datetime
    length: timedelta
    recurrence: IcsRecurrence | None
    extra: frozenset[date | datetime]
    excluded: frozenset[date | datetime]
    uid: str
    replaces: date | datetime | None
    is_cancelled: bool


class _Budget:
    """Limits the number of days examined in one import, so that no set of rules blocks the process."""

    def __init__(self, days: int) -> None:
        self._left = days

    def spend(self, days: int) -> None:
        self._left -= days
        if self._left < 0:
            raise InvalidInput.of("ics", "has recurring events that take too long to expand; list the dates instead")


def import_ics(text: str, today: date, years_ahead: int = MAX_YEARS_AHEAD) -> ImportedIcs:
    """Return the days and hours of all events. Recurring events are expanded from PAST before to `years_ahead` after today."""
    if len(text) > MAX_BYTES or len(text.encode(errors="replace")) > MAX_BYTES:
        raise InvalidInput.of("ics", f"must be at most {MAX_BYTES} bytes")
    parser = _load_parser()
    events = [_event(parser, lines, number) for number, lines in enumerate(_event_lines(text), start=1)]
    replaced: dict[str, set[date | datetime]] = defaultdict(set)
    for event in events:
        if event.replaces is not None:
            replaced[event.uid].add(_key(event.replaces))
    window = (today - PAST, today + timedelta(days=366 * years_ahead))
    budget = _Budget(_MAX_DAYS_EXAMINED)
    imported = ImportedIcs([], [])
    for event in events:
        if event.is_cancelled:
            continue
        excluded = event.excluded if event.replaces is not None else event.excluded | replaced[event.uid]
        for start in _starts(event, window, budget):
            if _key(start) not in excluded and _day_of(start) not in excluded:
                _add(imported, start, event.length)
    return imported


def _load_parser() -> ModuleType:
    try:
        import icalendar
    except ImportError:
        raise InvalidInput.of("ics", "needs the package icalendar on the server: pip install 'everbeat[ics]'") from None
    module: ModuleType = icalendar
    return module


def _add(imported: ImportedIcs, start: date | datetime, length: timedelta) -> None:
    if not isinstance(start, datetime):
        imported.days.append((start, start + max(length, timedelta(days=1)) - timedelta(days=1)))
    elif length:
        key = start if start.tzinfo is None else start.astimezone(UTC)
        imported.hours.append((key, key + length))
    if len(imported.days) + len(imported.hours) > MAX_ENTRIES:
        raise InvalidInput.of("ics", f"contains more than {MAX_ENTRIES} days and hours in the imported period")


def _key(moment: date | datetime) -> date | datetime:
    """Normalize to UTC, so that EXDATE and RECURRENCE-ID match an occurrence that is given in another zone."""
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        return moment.astimezone(UTC)
    return moment


def _day_of(moment: date | datetime) -> date:
    return moment.date() if isinstance(moment, datetime) else moment


def _event_lines(text: str) -> Iterator[list[str]]:
    """Yield the relevant lines of each VEVENT. Nothing else is parsed, because VTIMEZONE rules can be infinite."""
    lines = [line.rstrip("\r") for line in re.sub(r"\r?\n[ \t]", "", text.lstrip("\ufeff")).split("\n")]
    if not any(line.upper().strip() == "BEGIN:VCALENDAR" for line in lines):
        raise InvalidInput.of("ics", "is not an ICS file: it has no BEGIN:VCALENDAR")
    open_components: list[str] = []
    relevant: list[str] = []
    events = 0
    for line in lines:
        marker, _, component = line.strip().upper().partition(":")
        if marker == "BEGIN":
            open_components.append(component)
            if component == "VEVENT":
                relevant = []
        elif marker == "END":
            if not open_components or open_components.pop() != component:
                raise InvalidInput.of("ics", f"has END:{component[:40]} without BEGIN")
            if component == "VEVENT":
                events += 1
                if events > MAX_ENTRIES:
                    raise InvalidInput.of("ics", f"must have at most {MAX_ENTRIES} events")
                yield relevant
        elif open_components and open_components[-1] == "VEVENT" and _PROPERTY.match(line):
            relevant.append(line)
            if len(relevant) > MAX_LINES_PER_EVENT:
                raise InvalidInput.of("ics", f"must have at most {MAX_LINES_PER_EVENT} lines of dates and rules per event")
    if open_components:
        raise InvalidInput.of("ics", f"has BEGIN:{open_components[-1][:40]} without END")


def _event(parser: ModuleType, lines: list[str], number: int) -> _Event:
    source = "\r\n".join(["BEGIN:VEVENT", *lines, "END:VEVENT", ""])
    try:
        component = parser.Event.from_ical(source)
        if component.errors:
            name, message = component.errors[0]
            raise ValueError(f"{name}: {message}")
        return _read(component)
    except Exception as problem:
        # The text is untrusted. The parser raises many kinds of exceptions, and all of them mean that the file is invalid.
        raise InvalidInput.of("ics", f"event {number}: {str(problem)[:200] or 'cannot be read'}") from None


def _read(component: Any) -> _Event:
    if "DTSTART" not in component:
        raise ValueError("has no DTSTART")
    start = _moment(component["DTSTART"])
    replaces = component.get("RECURRENCE-ID")
    rule = component.get("RRULE")
    if isinstance(rule, list):
        raise ValueError("has more than one RRULE")
    return _Event(
        start=start,
        length=_length(component, start),
        recurrence=None if rule is None else _recurrence(rule, start),
        extra=_moments(component.get("RDATE")),
        excluded=frozenset(_key(moment) for moment in _moments(component.get("EXDATE"))),
        uid=str(component.get("UID", "")),
        replaces=None if replaces is None else _moment(replaces),
        is_cancelled=str(component.get("STATUS", "")).upper() == "CANCELLED",
    )


def _moment(value: Any) -> date | datetime:
    moment = getattr(value, "dt", None)
    if not isinstance(moment, date) or moment.year not in _YEARS:
        raise ValueError("has an invalid date, or one that is not between 1900 and 2200")
    if isinstance(moment, datetime) and moment.tzinfo is None and "TZID" in value.params:
        raise ValueError(f"has an unknown time zone: {str(value.params['TZID'])[:64]}")
    return moment


def _moments(value: Any) -> frozenset[date | datetime]:
    lists = [] if value is None else value if isinstance(value, list) else [value]
    return frozenset(_moment(each) for dates in lists for each in dates.dts)


def _length(component: Any, start: date | datetime) -> timedelta:
    length = timedelta(days=0 if isinstance(start, datetime) else 1)
    if "DTEND" in component:
        end = _moment(component["DTEND"])
        if isinstance(end, datetime) != isinstance(start, datetime):
            raise ValueError("DTSTART and DTEND must both be dates or both be times")
        first, last = _key(start), _key(end)
        length = last - first
    elif "DURATION" in component:
        length = component["DURATION"].dt
    if not isinstance(length, timedelta) or length < timedelta(0):
        raise ValueError("ends before it starts")
    if length > timedelta(days=366 * MAX_YEARS_AHEAD):
        raise ValueError(f"lasts longer than {MAX_YEARS_AHEAD} years")
    return length if isinstance(start, datetime) else timedelta(days=length.days)


def _recurrence(rule: Any, start: date | datetime) -> IcsRecurrence:
    parts = {str(key).upper(): list(values) for key, values in rule.items()}
    frequency = str(parts.get("FREQ", [""])[0]).upper()
    if frequency not in _FREQUENCIES:
        raise ValueError(f"RRULE: FREQ must be one of {', '.join(_FREQUENCIES)}")
    if unknown := sorted(set(parts) - _RULE_PARTS):
        raise ValueError(f"RRULE: {unknown[0][:40]} is not supported")
    weekdays = frozenset(_weekday(value) for value in parts.get("BYDAY", []))
    if frequency in ("DAILY", "WEEKLY") and any(nth for nth, _ in weekdays):
        raise ValueError("RRULE: numbered weekdays need FREQ=MONTHLY or YEARLY")
    months, month_days = _integers(parts, "BYMONTH"), _integers(parts, "BYMONTHDAY")
    year_days = _integers(parts, "BYYEARDAY")
    if not (weekdays or month_days or year_days):
        if frequency == "WEEKLY":
            weekdays = frozenset({(0, start.weekday())})
        elif frequency in ("MONTHLY", "YEARLY"):
            month_days = frozenset({start.day})
            months = months or (frozenset({start.month}) if frequency == "YEARLY" else months)
    return IcsRecurrence(
        frequency=frequency,
        interval=_positive(parts, "INTERVAL") or 1,
        times=_positive(parts, "COUNT"),
        until=_last_moment(parts),
        week_start=_WEEKDAYS.index(str(parts.get("WKST", ["MO"])[0]).upper()),
        months=months,
        month_days=month_days,
        year_days=year_days,
        weekdays=weekdays,
        positions=tuple(_integers(parts, "BYSETPOS")),
    )


def _last_moment(parts: dict[str, list[Any]]) -> date | datetime | None:
    if "UNTIL" not in parts:
        return None
    until = parts["UNTIL"][0]
    if not isinstance(until, date) or until.year < _YEARS.start:
        raise ValueError(f"RRULE: UNTIL must be a date in or after {_YEARS.start}")
    # Some programs write the year 9999 for "no end". Its conversion to a time zone would overflow.
    return until if until.year in _YEARS else None


def _weekday(value: object) -> tuple[int, int]:
    match = _WEEKDAY.fullmatch(str(value).upper())
    if match is None:
        raise ValueError("RRULE: BYDAY is invalid")
    return int(match[1] or 0), _WEEKDAYS.index(match[2])


def _integers(parts: dict[str, list[Any]], name: str) -> frozenset[int]:
    return frozenset(int(value) for value in parts.get(name, []))


def _positive(parts: dict[str, list[Any]], name: str) -> int | None:
    if name not in parts:
        return None
    value = int(parts[name][0])
    if value < 1:
        raise ValueError(f"RRULE: {name} must be at least 1")
    return value


def _starts(event: _Event, window: tuple[date, date], budget: _Budget) -> Iterator[date | datetime]:
    starts = {event.start} if event.recurrence is None else set()
    yield from sorted(starts | event.extra, key=lambda moment: (_day_of(moment), str(moment)))
    if event.recurrence is None:
        return
    first = _day_of(event.start)
    at, zone = (event.start.time(), event.start.tzinfo) if isinstance(event.start, datetime) else (time(), None)
    until = _until(event.recurrence.until, zone)
    for day in recurring_days(event.recurrence, first, window, lambda day: datetime.combine(day, at) > until, budget.spend):
        yield datetime.combine(day, at, zone) if isinstance(event.start, datetime) else day


def _until(until: date | datetime | None, zone: tzinfo | None) -> datetime:
    """Return the end of a rule as local time of its zone."""
    if until is None:
        until = date.max
    if not isinstance(until, datetime):
        return datetime.combine(until, time.max)
    return (until if until.tzinfo is None or zone is None else until.astimezone(zone)).replace(tzinfo=None)


def recurring_days(
    rule: IcsRecurrence,
    first: date,
    window: tuple[date, date],
    is_over: Callable[[date], bool],
    spend: Callable[[int], None],
) -> Iterator[date]:
    """Yield the days of a rule in a window. dateutil would examine a rule without matches until the year 9999."""
    number = _period_of(rule, first)
    if rule.times is None:
        periods_before = _period_of(rule, window[0]) - number
        number += max(periods_before, 0) // rule.interval * rule.interval
    counted = 0
    while number <= _period_of(rule, window[1]):
        days = _days_of_period(rule, number)
        spend(len(days) + 1)
        for day in _at_positions(rule, [day for day in days if _matches(rule, day)]):
            if day < first:
                continue
            counted += 1
            if is_over(day) or (rule.times is not None and counted > rule.times) or day > window[1]:
                return
            if day >= window[0]:
                yield day
        number += rule.interval


def _period_of(rule: IcsRecurrence, day: date) -> int:
    match rule.frequency:
        case "DAILY":
            return day.toordinal()
        case "WEEKLY":
            return (day.toordinal() - 1 - rule.week_start) // 7
        case "MONTHLY":
            return day.year * 12 + day.month - 1
        case _:
            return day.year


def _days_of_period(rule: IcsRecurrence, number: int) -> Sequence[date]:
    match rule.frequency:
        case "DAILY":
            return [date.fromordinal(number)]
        case "WEEKLY":
            first = number * 7 + 1 + rule.week_start
            return [date.fromordinal(ordinal) for ordinal in range(first, first + 7)]
        case "MONTHLY":
            return _days_of_month(number // 12, number % 12 + 1)
        case _:
            months = sorted(rule.months & set(range(1, 13))) or range(1, 13)
            return [day for month in months for day in _days_of_month(number, month)]


def _days_of_month(year: int, month: int) -> list[date]:
    return [date(year, month, day) for day in range(1, calendar.monthrange(year, month)[1] + 1)]


def _matches(rule: IcsRecurrence, day: date) -> bool:
    if rule.months and day.month not in rule.months:
        return False
    month_length = calendar.monthrange(day.year, day.month)[1]
    if rule.month_days and rule.month_days.isdisjoint((day.day, day.day - month_length - 1)):
        return False
    year_length = 366 if calendar.isleap(day.year) else 365
    of_year = day.timetuple().tm_yday
    if rule.year_days and rule.year_days.isdisjoint((of_year, of_year - year_length - 1)):
        return False
    if not rule.weekdays:
        return True
    within_year = rule.frequency == "YEARLY" and not rule.months
    index, length = (of_year, year_length) if within_year else (day.day, month_length)
    numbers = (0, (index - 1) // 7 + 1, -((length - index) // 7 + 1))
    return any((nth, day.weekday()) in rule.weekdays for nth in numbers)


def _at_positions(rule: IcsRecurrence, days: list[date]) -> list[date]:
    if not rule.positions:
        return days
    selected = {days[at - 1 if at > 0 else at] for at in rule.positions if at and -len(days) <= at <= len(days)}
    return sorted(selected)
