"""Parses the text of recurrence rules (RFC 5545) into a validated Recurrence. rrule.py builds a trigger from it."""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import UTC, datetime
from typing import NamedTuple

from everbeat.core.errors import InvalidInput

MAX_LENGTH = 4000
MAX_DATES = 200
MAX_COUNT = 10_000
MAX_INTERVAL = 315_360_000
FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")

START_YEARS = range(1900, 9999)
_BY_NUMBERS = {
    "BYMONTH": (1, 12, False),
    "BYMONTHDAY": (1, 31, True),
    "BYYEARDAY": (1, 366, True),
    "BYWEEKNO": (1, 53, True),
    "BYHOUR": (0, 23, False),
    "BYMINUTE": (0, 59, False),
    "BYSECOND": (0, 59, False),
    "BYSETPOS": (1, 366, True),
}
_PARTS = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", *_BY_NUMBERS)
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")
_BY_DAY = re.compile(r"([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)")
_MOMENT = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})(?:T([0-9]{2})([0-9]{2})([0-9]{2})(Z)?)?")
_SHOWN_LENGTH = 24
# Long lines of iCalendar are folded: they continue after a line break and one space.
_FOLD = re.compile(r"\r?\n[ \t](?!\s*(?:(?:RRULE|DTSTART|EXDATE|RDATE|EXRULE)[:;]|FREQ=))", re.IGNORECASE)


class Moment(NamedTuple):
    """An iCalendar date, or date and time: aware in UTC if the text ends with Z, otherwise naive local time."""

    at: datetime
    is_date: bool


class ListedDate(NamedTuple):
    """One value of EXDATE or RDATE. `zone`: its TZID; None if it has none, also if it is in UTC."""

    moment: Moment
    zone: str | None


class Recurrence(NamedTuple):
    """The parts of an RRULE, its DTSTART, EXDATE and RDATE. Each value is within its range."""

    frequency: str
    interval: int = 1
    limit: int | None = None
    until: Moment | None = None
    week_start: int = 0
    by_month: tuple[int, ...] = ()
    by_month_day: tuple[int, ...] = ()
    by_year_day: tuple[int, ...] = ()
    by_week_number: tuple[int, ...] = ()
    by_day: tuple[tuple[int, int | None], ...] = ()
    by_hour: tuple[int, ...] = ()
    by_minute: tuple[int, ...] = ()
    by_second: tuple[int, ...] = ()
    by_position: tuple[int, ...] = ()
    start: Moment | None = None
    zone: str | None = None
    excluded: tuple[ListedDate, ...] = ()
    added: tuple[ListedDate, ...] = ()


def invalid_rrule(message: str) -> InvalidInput:
    return InvalidInput.of("rrule", message)


def read_recurrence(expression: str) -> Recurrence:
    """Parse RRULE:… or FREQ=…, with at most one DTSTART, and any EXDATE and RDATE. White space separates the lines."""
    if len(expression) > MAX_LENGTH:
        raise invalid_rrule(f"has {len(expression)} characters; at most {MAX_LENGTH} are allowed")
    rule: str | None = None
    start: Moment | None = None
    zone: str | None = None
    dates: dict[str, list[ListedDate]] = {"EXDATE": [], "RDATE": []}
    for line in _FOLD.sub("", expression).split():
        head, colon, value = line.partition(":")
        name, *parameters = head.split(";") if colon else ["RRULE"]
        if name.upper() == "RRULE" and not parameters:
            if rule is not None:
                raise invalid_rrule("has more than one RRULE; create a schedule for each")
            rule = value if colon else line
        elif name.upper() == "DTSTART":
            if start is not None:
                raise invalid_rrule("has more than one DTSTART; remove the others")
            start, zone = _read_start(parameters, value)
        elif name.upper() in dates:
            dates[name.upper()] += _read_dates(name.upper(), parameters, value)
        else:
            raise invalid_rrule(_unknown_line(name))
    if not rule:
        raise invalid_rrule("has no rule; use a rule such as FREQ=WEEKLY;BYDAY=MO,WE;BYHOUR=9;BYMINUTE=0;BYSECOND=0")
    if sum(map(len, dates.values())) > MAX_DATES:
        raise invalid_rrule(f"has more than {MAX_DATES} dates in EXDATE and RDATE; use a calendar instead")
    excluded, added = tuple(dates["EXDATE"]), tuple(dates["RDATE"])
    return _read_rule(rule)._replace(start=start, zone=zone, excluded=excluded, added=added)


def _unknown_line(name: str) -> str:
    if name.upper() == "EXRULE":
        return "EXRULE is not supported; use EXDATE, or a calendar to exclude days"
    return f'"{_shown(name)}" is not supported; use RRULE and, if needed, DTSTART, EXDATE and RDATE'


def _read_start(parameters: list[str], value: str) -> tuple[Moment, str | None]:
    zone = _read_zone("DTSTART", parameters)
    return _read_date("DTSTART", value, zone), zone


def _read_dates(name: str, parameters: list[str], text: str) -> list[ListedDate]:
    zone = _read_zone(name, parameters)
    dates = [ListedDate(_read_date(name, value, zone), zone) for value in text.split(",")]
    if name == "RDATE" and any(date.moment.is_date for date in dates):
        raise invalid_rrule("RDATE: needs a time of day, such as 20261231T090000")
    return dates


def _read_zone(name: str, parameters: list[str]) -> str | None:
    zone = None
    for parameter in parameters:
        key, _, content = parameter.partition("=")
        if key.upper() == "TZID" and content:
            zone = content
        elif key.upper() != "VALUE" or content.upper() not in ("DATE", "DATE-TIME"):
            raise invalid_rrule(f'{name}: "{_shown(parameter)}" is not supported; use TZID=Zone or VALUE=DATE')
    return zone


def _read_date(name: str, text: str, zone: str | None) -> Moment:
    moment = _read_moment(name, text)
    if moment.at.year not in START_YEARS:
        raise invalid_rrule(f"{name}: the year must be {START_YEARS.start}–{START_YEARS.stop - 1}")
    if zone is not None and moment.at.tzinfo is not None:
        raise invalid_rrule(f"{name}: has both TZID and Z; remove one of them")
    return moment


def _read_moment(name: str, text: str) -> Moment:
    match = _MOMENT.fullmatch(text.upper())
    if match is None:
        raise invalid_rrule(f'{name}: "{_shown(text)}" is not a time; use 20261231T235959Z, 20261231T235959 or 20261231')
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    try:
        at = datetime(year, month, day, hour, minute, second, tzinfo=UTC if match[7] else None)
    except ValueError:
        raise invalid_rrule(f"{name}: {_shown(text)} does not exist") from None
    return Moment(at, match[4] is None)


def _read_rule(text: str) -> Recurrence:
    parts: dict[str, str] = {}
    for part in text.upper().rstrip(";").split(";"):
        name, equals, value = part.partition("=")
        if name not in _PARTS:
            raise invalid_rrule(f'"{_shown(name)}" is not a part of a rule; use {", ".join(_PARTS)}')
        if not equals or not value:
            raise invalid_rrule(f"{name}: has no value")
        if name in parts:
            raise invalid_rrule(f"{name}: occurs twice; remove one of them")
        parts[name] = value
    if parts.get("FREQ") not in FREQUENCIES:
        raise invalid_rrule(f"FREQ: is required; use one of {', '.join(FREQUENCIES)}")
    numbers = {name: _numbers(name, parts[name]) if name in parts else () for name in _BY_NUMBERS}
    recurrence = Recurrence(
        frequency=parts["FREQ"],
        interval=_number("INTERVAL", parts.get("INTERVAL", "1"), 1, MAX_INTERVAL),
        limit=_number("COUNT", parts["COUNT"], 1, MAX_COUNT) if "COUNT" in parts else None,
        until=_read_moment("UNTIL", parts["UNTIL"]) if "UNTIL" in parts else None,
        week_start=_week_start(parts.get("WKST", "MO")),
        by_month=numbers["BYMONTH"],
        by_month_day=numbers["BYMONTHDAY"],
        by_year_day=numbers["BYYEARDAY"],
        by_week_number=numbers["BYWEEKNO"],
        by_day=_by_day(parts["BYDAY"]) if "BYDAY" in parts else (),
        by_hour=numbers["BYHOUR"],
        by_minute=numbers["BYMINUTE"],
        by_second=numbers["BYSECOND"],
        by_position=numbers["BYSETPOS"],
    )
    _check_together(recurrence, any(name.startswith("BY") and name != "BYSETPOS" for name in parts))
    return recurrence


def _check_together(rule: Recurrence, has_sets: bool) -> None:
    if rule.limit is not None and rule.until is not None:
        raise invalid_rrule("COUNT and UNTIL cannot be used together; remove one of them")
    if rule.by_position and not has_sets:
        raise invalid_rrule("BYSETPOS: needs another BY part from which to select, such as BYDAY")
    which = [nth for _, nth in rule.by_day if nth is not None]
    if which and rule.frequency not in ("MONTHLY", "YEARLY"):
        raise invalid_rrule(f"BYDAY: a number before a day needs FREQ=MONTHLY or YEARLY, not {rule.frequency}")
    if any(abs(nth) > 5 for nth in which) and (rule.frequency == "MONTHLY" or rule.by_month):
        raise invalid_rrule("BYDAY: a month has at most five of each day")
    if rule.by_month and rule.by_month_day and not _some_day_exists(rule.by_month, rule.by_month_day):
        raise invalid_rrule("BYMONTHDAY: none of these days exists in the months of BYMONTH, so the rule would never match")


def _some_day_exists(months: tuple[int, ...], days: tuple[int, ...]) -> bool:
    longest = max(monthrange(2000, month)[1] for month in months)
    return any(abs(day) <= longest for day in days)


def _number(name: str, text: str, low: int, high: int, signed: bool = False) -> int:
    hint = f"{low}–{high}" + (f" or -{high}–-{low}" if signed else "")
    if not _NUMBER.fullmatch(text):
        raise invalid_rrule(f'{name}: "{_shown(text)}" is not a number; use {hint}')
    value = int(text)
    if not low <= (abs(value) if signed else value) <= high:
        raise invalid_rrule(f"{name}: {_shown(text)} is out of range {hint}")
    return value


def _numbers(name: str, text: str) -> tuple[int, ...]:
    return tuple(sorted({_number(name, each, *_BY_NUMBERS[name]) for each in text.split(",")}))


def _by_day(text: str) -> tuple[tuple[int, int | None], ...]:
    days: dict[tuple[int, int | None], None] = {}
    for each in text.split(","):
        match = _BY_DAY.fullmatch(each)
        nth = int(match[1]) if match and match[1] else None
        if match is None or nth == 0 or abs(nth or 1) > 53:
            raise invalid_rrule(f'BYDAY: "{_shown(each)}" is not a day; use {", ".join(WEEKDAYS)}, or for example 1MO or -1FR')
        days[WEEKDAYS.index(match[2]), nth] = None
    return tuple(days)


def _week_start(text: str) -> int:
    if text not in WEEKDAYS:
        raise invalid_rrule(f'WKST: "{_shown(text)}" is not a day; use {", ".join(WEEKDAYS)}')
    return WEEKDAYS.index(text)


def _shown(text: str) -> str:
    printable = "".join(each if each.isprintable() else "�" for each in text)
    return printable if len(printable) <= _SHOWN_LENGTH else f"{printable[:_SHOWN_LENGTH]}…"
