"""Parses cron expressions, with zone prefix, nicknames and H, into the dialect of cronsim. Errors name the field."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from everbeat.core.errors import InvalidInput

MAX_LENGTH = 256
NICKNAMES: Mapping[str, str] = MappingProxyType(
    {
        "@hourly": "0 * * * *",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@weekly": "0 0 * * 0",
        "@monthly": "0 0 1 * *",
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
    }
)

_ZONE_PREFIX = re.compile(r"\s*(?:CRON_TZ|TZ)=(\S*)(?:\s+|$)", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]+")
_HASH = re.compile(r"H(?:\(([^()]*)\))?(?:/(.*))?", re.DOTALL)
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_MONTH_NAMES = (
    *("JANUARY", "FEBRUARY", "MARCH", "APRIL", "MAY", "JUNE"),
    *("JULY", "AUGUST", "SEPTEMBER", "OCTOBER", "NOVEMBER", "DECEMBER"),
)
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_DAY_NAMES = ("SUNDAY", "MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY")
_FROM_END = re.compile(r"(?:L-([0-9]{1,9})(W?)|([0-9]{1,9})W)")
_MAX_DAYS_BEFORE_LAST = 30
_SHOWN_LENGTH = 24


class Field(NamedTuple):
    """One field of an expression: its range, the maximum of H, its named values, and their abbreviations for messages."""

    name: str
    low: int
    high: int
    hash_high: int
    names: Mapping[str, int] = MappingProxyType({})
    short_names: Sequence[str] = ()
    noun: str = "a number"

    @property
    def last(self) -> int:
        """The value after which a range that wraps around continues with the lowest value."""
        return 6 if self.name == "day-of-week" else self.high


def _numbered(*names: Sequence[str], start: int) -> Mapping[str, int]:
    return MappingProxyType({name: number for each in names for number, name in enumerate(each, start)})


SECOND = Field("second", 0, 59, 59)
MINUTE = Field("minute", 0, 59, 59)
HOUR = Field("hour", 0, 23, 23)
# The maximum of H is 28, so that the day exists in every month.
DAY_OF_MONTH = Field("day-of-month", 1, 31, 28)
MONTH = Field("month", 1, 12, 12, _numbered(_MONTHS, _MONTH_NAMES, start=1), _MONTHS, "a month")
DAY_OF_WEEK = Field("day-of-week", 0, 7, 6, _numbered(_DAYS, _DAY_NAMES, start=0), _DAYS, "a day")
YEAR = Field("year", 1970, 2999, 2999)
FIELDS = (SECOND, MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK, YEAR)
_CRONTAB_FIELDS = FIELDS[1:6]
YEARS = range(YEAR.low, YEAR.high + 1)


class CronFields(NamedTuple):
    """The validated fields of an expression. All but the year are in the dialect of cronsim, plus 15W, L-3 and L-3W."""

    second: str
    minute: str
    hour: str
    day: str
    month: str
    weekday: str
    year: str


def invalid_cron(message: str) -> InvalidInput:
    return InvalidInput.of("cron", message)


def split_zone(expression: str) -> tuple[str | None, str]:
    """Return the zone of a CRON_TZ= or TZ= prefix, if any, and the rest of the expression."""
    match = _ZONE_PREFIX.match(expression)
    return (match[1], expression[match.end() :]) if match else (None, expression)


def uses_hash(expression: str) -> bool:
    """Whether the expression contains H and therefore depends on the seed."""
    if "H" not in expression and "h" not in expression:
        return False
    _, rest = split_zone(expression)
    return any(term.startswith(("H", "h")) for term in re.split(r"[\s,]+", rest))


def check_length(expression: str) -> None:
    """Check the length of an expression. The error names the field with the longest list."""
    if len(expression) <= MAX_LENGTH:
        return
    message = f"has {len(expression)} characters; at most {MAX_LENGTH} are allowed"
    parts = split_zone(expression)[1].split()
    if 5 <= len(parts) <= 7:
        longest = max(parts, key=len)
        fields = _CRONTAB_FIELDS if len(parts) == 5 else FIELDS
        if "," in longest:
            name, entries = fields[parts.index(longest)].name, longest.count(",") + 1
            message = f"{name}: the list has {entries} entries; use a range or a step, because an expression {message}"
    raise invalid_cron(message)


def read_fields(expression: str, seed: bytes) -> CronFields:
    """Return the validated fields. The zone prefix must have been removed."""
    second, minute, hour, day, month, weekday, year = (
        _read_field(field, part, seed) for field, part in zip(FIELDS, split_fields(expression), strict=True)
    )
    return CronFields(second, minute, hour, day, month, weekday, year)


def split_fields(expression: str) -> list[str]:
    """Return seven fields in upper case, seconds first and the year last, without validating them."""
    text = expression.strip()
    if text.startswith("@"):
        text = _nickname(text)
    parts = text.upper().split()
    if not 5 <= len(parts) <= 7:
        raise invalid_cron(_wrong_count_message(parts))
    if len(parts) == 5:
        parts.insert(0, "0")
    if len(parts) == 6:
        parts.append("*")
    return parts


def follows_real_time(expression: str) -> bool:
    """Whether the minute or hour begins with a star. Seconds do not matter. The expression must be valid."""
    _, minute, hour, *_ = split_fields(expression)
    return minute.startswith("*") or hour.startswith("*")


def years_of(field: str) -> Sequence[int]:
    """Return the years of a validated year field, in order."""
    if field == "*":
        return range(1, 10_000)
    return sorted({year for term in field.split(",") for year in field_values(YEAR, term)})


def _nickname(text: str) -> str:
    try:
        return NICKNAMES[text.lower()]
    except KeyError:
        hint = ", or @every 1h30m" if text.lower().startswith("@every") else ""
        raise invalid_cron(f"{_shown(text)} is not a known nickname; use one of {', '.join(NICKNAMES)}{hint}") from None


def _wrong_count_message(parts: Sequence[str]) -> str:
    names = [field.name for field in _CRONTAB_FIELDS]
    if not parts:
        return f"is empty; it needs 5 fields ({' '.join(names)}), for example 0 9 * * MON-FRI"
    if len(parts) > len(FIELDS):
        return (
            f"expected 5 to 7 fields, got {len(parts)}: 5 are {' '.join(names)}; 6 begin with the second; 7 end with the year"
        )
    given = ", ".join(f'{name} "{_shown(part)}"' for name, part in zip(names, parts, strict=False))
    missing = names[len(parts) :]
    verb = "is" if len(missing) == 1 else "are"
    return f"expected 5 fields, got {len(parts)}: {given}; {' and '.join(missing)} {verb} missing"


def _read_field(field: Field, text: str, seed: bytes) -> str:
    if text == "?":
        if field in (DAY_OF_MONTH, DAY_OF_WEEK):
            return "*"
        raise _wrong(field, "? is allowed only in day-of-month and day-of-week; use *")
    if field is YEAR:
        return _read_years(text)
    return ",".join(_read_term(field, term, seed) for term in text.split(","))


def _read_years(text: str) -> str:
    for term in text.split(","):
        if term.startswith("H"):
            raise _wrong(YEAR, "H is not available here; use years such as 2027, 2027-2030 or *")
        field_values(YEAR, term)
    return "*" if "*" in text.split(",") else text


def _read_term(field: Field, term: str, seed: bytes) -> str:
    if term.startswith("H"):
        return _hashed(field, term, seed)
    if field is DAY_OF_MONTH and (term in ("L", "LW") or _FROM_END.fullmatch(term)):
        return _special_day(term)
    if field is DAY_OF_WEEK:
        if "#" in term:
            return _nth_weekday(term)
        if term.endswith("L"):
            return _last_weekday(term)
    if term == "*" or term.startswith("*/"):
        # Not expanded, because a leading star also determines how the two day fields are combined.
        return term if term == "*" else f"*/{_step(field, term[2:])}"
    return _list(field_values(field, term))


def _special_day(term: str) -> str:
    """Validate L, LW, L-3, L-3W or 15W. L-0 is L."""
    match = _FROM_END.fullmatch(term)
    if match is None:
        return term
    before_last, nearest, day = match.groups()
    if day is not None:
        return f"{_value(DAY_OF_MONTH, day)}W"
    if int(before_last) > _MAX_DAYS_BEFORE_LAST:
        raise _wrong(DAY_OF_MONTH, f'"{_shown(term)}": the number after L- must be 0–{_MAX_DAYS_BEFORE_LAST}')
    return (f"L-{int(before_last)}" if int(before_last) else "L") + nearest


def field_values(field: Field, term: str) -> Sequence[int]:
    """Return the values of *, a number, a range or one of these with a step. Raises InvalidInput."""
    if not term:
        raise _wrong(field, "the list has an empty entry; remove the extra comma")
    base, slash, step_text = term.partition("/")
    values = range(field.low, field.high + 1) if base == "*" else _range(field, base)
    if not slash:
        return values
    step = _step(field, step_text)
    if base != "*" and "-" not in base:
        values = range(values[0], field.high + 1)
    return values[::step]


def _list(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


def _range(field: Field, text: str) -> Sequence[int]:
    """Return the values of a number or range. A range whose first value is the greater one wraps around: 22-2, FRI-MON."""
    low_text, dash, high_text = text.partition("-")
    if dash and not low_text:
        problem = "is negative" if _NUMBER.fullmatch(high_text) else "is a range without a start"
        raise _wrong(field, f'"{_shown(text)}" {problem}; {_allowed(field)}')
    if dash and not high_text:
        raise _wrong(field, f'"{_shown(text)}" is a range without an end; {_allowed(field)}')
    low = _value(field, low_text)
    if not dash:
        return range(low, low + 1)
    high = _value(field, high_text)
    if field is DAY_OF_WEEK:
        high = 7 if high == 0 < low else high
        low = 0 if low == 7 > high else low
    if low <= high:
        return range(low, high + 1)
    if field is YEAR:
        raise _wrong(field, f"the range {_shown(text)} is reversed; put the smaller value first, or use two ranges in a list")
    return [*range(low, field.last + 1), *range(field.low, high + 1)]


def _value(field: Field, text: str) -> int:
    if text in field.names:
        return field.names[text]
    if not _NUMBER.fullmatch(text):
        raise _wrong(field, _not_a_value(field, text))
    value = int(text)
    if not field.low <= value <= field.high:
        hint = "; a year needs all 7 fields, with seconds first" if field is DAY_OF_WEEK and value in YEARS else ""
        raise _wrong(field, f"{_shown(text)} is out of range {field.low}–{field.high}{hint}")
    return value


def _not_a_value(field: Field, text: str) -> str:
    if field is DAY_OF_MONTH and text.endswith(("W", "L")):
        return f'"{_shown(text)}" must be alone in the list; use for example 15W, LW, L or L-3, without ranges or steps'
    if field is DAY_OF_WEEK and text == "W":
        return '"W" is not a day; use MON-FRI'
    if "?" in text:
        return "? must be the only character of a field; use * here"
    return f'"{_shown(text)}" is not {field.noun}; {_allowed(field)}'


def _allowed(field: Field) -> str:
    span = f"{field.low}–{field.high}"
    if field.names:
        return f"use {field.short_names[0]}–{field.short_names[-1]} or {span}"
    return f"use {span}, *, a range such as 1-5, or a step such as */5"


def _step(field: Field, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise _wrong(field, f'"{_shown(text)}" is not a step; use a number of 1 or more after the slash')
    step = int(text)
    if step == 0:
        raise _wrong(field, "the step must not be 0; use 1 or more")
    return step


def _nth_weekday(term: str) -> str:
    day_text, _, nth_text = term.partition("#")
    day = _value(DAY_OF_WEEK, day_text)
    if nth_text not in ("1", "2", "3", "4", "5"):
        raise _wrong(DAY_OF_WEEK, f'"{_shown(term)}": the number after # must be 1–5 (first to fifth of the month)')
    return f"{day}#{nth_text}"


def _last_weekday(term: str) -> str:
    if term == "L":
        raise _wrong(DAY_OF_WEEK, "L needs a day before it, such as FRIL for the last Friday of the month")
    return f"{_value(DAY_OF_WEEK, term[:-1])}L"


def _hashed(field: Field, term: str, seed: bytes) -> str:
    match = _HASH.fullmatch(term)
    if match is None:
        raise _wrong(field, f'"{_shown(term)}" is not valid; use H, H/15, H(0-29) or H(0-29)/10')
    span_text, step_text = match.groups()
    values: Sequence[int] = range(field.low, field.hash_high + 1)
    if span_text is not None:
        if "-" not in span_text:
            raise _wrong(field, f"H({_shown(span_text)}) needs a range, such as H({field.low}-{field.hash_high})")
        values = _range(field, span_text)
        if max(values) > field.hash_high:
            raise _wrong(field, f"H({_shown(span_text)}) is out of range {field.low}–{field.hash_high}")
    digest = hashlib.blake2b(field.name.encode() + b":" + seed, digest_size=8).digest()
    number = int.from_bytes(digest, "big")
    if step_text is None:
        return str(values[number % len(values)])
    step = _step(field, step_text)
    return _list(values[number % min(step, len(values)) :: step])


def _wrong(field: Field, problem: str) -> InvalidInput:
    return invalid_cron(f"{field.name}: {problem}")


def _shown(text: str) -> str:
    printable = "".join(each if each.isprintable() else "�" for each in text)
    return printable if len(printable) <= _SHOWN_LENGTH else f"{printable[:_SHOWN_LENGTH]}…"
