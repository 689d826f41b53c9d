"""Calendars: named sets of days and hours that schedules exclude or are restricted to. Parses their definitions."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Any, NamedTuple, TypeVar

import msgspec

from everbeat.core.errors import FieldError, InvalidInput
from everbeat.core.ics import MAX_ENTRIES, import_ics
from everbeat.core.names import has_control_characters

MAX_DESCRIPTION_LENGTH = 2000
MAX_ERRORS = 20
WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_YEARLY = re.compile(r"(\d{2})-(\d{2})")
_LEAP_YEAR = 2000

Parsed = TypeVar("Parsed")


class DateSpan(NamedTuple):
    """Whole days from first to last, both included."""

    first: date
    last: date


class Interval(NamedTuple):
    """From start (included) to end (excluded). Both are naive, in local time of the schedule, or both are aware in UTC."""

    start: datetime
    end: datetime


class Calendar(msgspec.Struct, frozen=True, kw_only=True):
    """A calendar as returned by parse_calendar. Spans and intervals are sorted and do not overlap."""

    name: str
    description: str = ""
    revision: int = 1
    dates: tuple[DateSpan, ...] = ()
    weekdays: frozenset[int] = frozenset()
    yearly: frozenset[tuple[int, int]] = frozenset()
    intervals: tuple[Interval, ...] = ()
    utc_intervals: tuple[Interval, ...] = ()

    def covers(self, local: datetime) -> bool:
        """Whether the calendar contains this local time. The time must be aware, because some intervals are in UTC."""
        wall = local.replace(tzinfo=None, fold=0)
        return (
            wall.weekday() in self.weekdays
            or (wall.month, wall.day) in self.yearly
            or self._has_date(wall.date())
            or _has_instant(self.intervals, wall)
            or (bool(self.utc_intervals) and _has_instant(self.utc_intervals, local.astimezone(UTC)))
        )

    def to_definition(self) -> dict[str, Any]:
        """Return the definition with which a PUT creates this calendar. An imported ICS appears as dates and intervals."""
        return {
            "description": self.description,
            "dates": [_span_text(span) for span in self.dates],
            "weekdays": [WEEKDAYS[day] for day in sorted(self.weekdays)],
            "yearly": [f"{month:02d}-{day:02d}" for month, day in sorted(self.yearly)],
            "intervals": [
                {"from": _moment_text(interval.start), "to": _moment_text(interval.end)}
                for interval in (*self.intervals, *self.utc_intervals)
            ],
        }

    def _has_date(self, day: date) -> bool:
        index = bisect_right(self.dates, day, key=lambda span: span.first)
        return index > 0 and day <= self.dates[index - 1].last


def parse_calendar(name: str, definition: Mapping[str, Any], *, revision: int = 1, today: date | None = None) -> Calendar:
    """Parse a definition. Raises InvalidInput with all invalid fields. `today` is required to expand an ICS."""
    errors: list[FieldError] = []
    if not _NAME.fullmatch(name):
        errors.append(FieldError("name", "must be 1 to 200 letters, digits, or any of . _ : -"))
    known = ("description", "dates", "weekdays", "yearly", "intervals", "ics")
    errors += [FieldError(str(field), "is not a known field") for field in definition if field not in known]
    description = _description(definition, errors)
    dates = _entries(definition, "dates", _date_span, errors)
    weekdays = _entries(definition, "weekdays", _weekday, errors)
    yearly = _entries(definition, "yearly", _yearly, errors)
    intervals = _entries(definition, "intervals", _interval, errors)
    imported_dates, imported_intervals = _imported(definition, today, errors)
    dates += imported_dates
    intervals += imported_intervals
    errors += [
        FieldError("ics", f"has more than {MAX_ENTRIES} {what}, including the other entries of the calendar")
        for what, entries in (("dates", dates), ("intervals", intervals))
        if len(entries) > MAX_ENTRIES
    ]
    if errors:
        raise InvalidInput(*errors[:MAX_ERRORS])
    return Calendar(
        name=name,
        description=description,
        revision=revision,
        dates=_merged_spans(dates),
        weekdays=frozenset(weekdays),
        yearly=frozenset(yearly),
        intervals=_merged_intervals(each for each in intervals if each.start.tzinfo is None),
        utc_intervals=_merged_intervals(each for each in intervals if each.start.tzinfo is not None),
    )


def _has_instant(intervals: tuple[Interval, ...], at: datetime) -> bool:
    index = bisect_right(intervals, at, key=lambda interval: interval.start)
    return index > 0 and at < intervals[index - 1].end


def _merged_spans(spans: Iterable[DateSpan]) -> tuple[DateSpan, ...]:
    merged: list[DateSpan] = []
    for span in sorted(spans):
        if merged and span.first <= merged[-1].last:
            merged[-1] = DateSpan(merged[-1].first, max(merged[-1].last, span.last))
        else:
            merged.append(span)
    return tuple(merged)


def _merged_intervals(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    merged: list[Interval] = []
    for interval in sorted(intervals):
        if merged and interval.start <= merged[-1].end:
            merged[-1] = Interval(merged[-1].start, max(merged[-1].end, interval.end))
        else:
            merged.append(interval)
    return tuple(merged)


def _description(definition: Mapping[str, Any], errors: list[FieldError]) -> str:
    description = definition.get("description")
    if description is None:
        return ""
    if not isinstance(description, str) or has_control_characters(description):
        errors.append(FieldError("description", "must be text without control characters"))
        return ""
    if len(description) > MAX_DESCRIPTION_LENGTH:
        errors.append(FieldError("description", f"must be at most {MAX_DESCRIPTION_LENGTH} characters"))
    return description


def _entries(
    definition: Mapping[str, Any], field: str, parse: Callable[[Any], Parsed], errors: list[FieldError]
) -> list[Parsed]:
    values = definition.get(field)
    if values is None:
        return []
    if not isinstance(values, list | tuple):
        errors.append(FieldError(field, "must be a list"))
        return []
    if len(values) > MAX_ENTRIES:
        errors.append(FieldError(field, f"must have at most {MAX_ENTRIES} entries"))
        return []
    parsed = []
    for index, value in enumerate(values):
        try:
            parsed.append(parse(value))
        except ValueError as problem:
            errors.append(FieldError(f"{field}[{index}]", str(problem)))
    return parsed


def _imported(
    definition: Mapping[str, Any], today: date | None, errors: list[FieldError]
) -> tuple[list[DateSpan], list[Interval]]:
    text = definition.get("ics")
    if text is None:
        return [], []
    if not isinstance(text, str):
        errors.append(FieldError("ics", "must be text"))
        return [], []
    if today is None:
        raise TypeError("parse_calendar needs today's date to import an ICS")
    try:
        imported = import_ics(text, today)
    except InvalidInput as invalid:
        errors += invalid.errors
        return [], []
    return [DateSpan(*days) for days in imported.days], [Interval(*hours) for hours in imported.hours]


def _date_span(value: Any) -> DateSpan:
    if isinstance(value, str):
        return DateSpan(_day(value), _day(value))
    span = DateSpan(*_from_to(value, _day))
    if span.last < span.first:
        raise ValueError("`to` must not be before `from`")
    return span


def _interval(value: Any) -> Interval:
    interval = Interval(*_from_to(value, _moment))
    if (interval.start.tzinfo is None) != (interval.end.tzinfo is None):
        raise ValueError("`from` and `to` must both have an offset, or neither")
    if interval.end <= interval.start:
        raise ValueError("`to` must be after `from`")
    return interval


def _from_to(value: Any, parse: Callable[[Any], Parsed]) -> tuple[Parsed, Parsed]:
    if not isinstance(value, Mapping) or set(value) != {"from", "to"}:
        raise ValueError("must be an object with `from` and `to`" + (", or a date" if parse is _day else ""))
    return parse(value["from"]), parse(value["to"])


def _day(value: Any) -> date:
    if isinstance(value, str) and _DAY.fullmatch(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise ValueError(f"{value} does not exist") from None
    raise ValueError("must be a date such as 2026-12-25")


def _moment(value: Any) -> datetime:
    hint = "must be a date and time such as 2026-12-24T14:00"
    if not isinstance(value, str) or "T" not in value:
        raise ValueError(hint)
    try:
        moment = datetime.fromisoformat(value)
        return moment if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(hint) from None


def _weekday(value: Any) -> int:
    if isinstance(value, str) and value.upper() in WEEKDAYS:
        return WEEKDAYS.index(value.upper())
    raise ValueError(f"must be one of {', '.join(WEEKDAYS)}")


def _yearly(value: Any) -> tuple[int, int]:
    match = _YEARLY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a month and day such as 12-25")
    month, day = int(match[1]), int(match[2])
    try:
        date(_LEAP_YEAR, month, day)
    except ValueError:
        raise ValueError(f"{value} does not exist in any year") from None
    return month, day


def _span_text(span: DateSpan) -> str | dict[str, str]:
    if span.first == span.last:
        return span.first.isoformat()
    return {"from": span.first.isoformat(), "to": span.last.isoformat()}


def _moment_text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
