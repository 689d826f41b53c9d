"""Parses cron expressions, with zone prefix, nicknames and H, into the dialect of cronsim. Errors name the field."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
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
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_SHOWN_LENGTH = 24


class Field(NamedTuple):
    """One field of an expression: its range, the maximum of H, and its named values."""

    name: str
    low: int
    high: int
    hash_high: int
    names: Mapping[str, int] = MappingProxyType({})
    noun: str = "a number"


SECOND = Field("second", 0, 59, 59)
MINUTE = Field("minute", 0, 59, 59)
HOUR = Field("hour", 0, 23, 23)
# The maximum of H is 28, so that the day exists in every month.
DAY_OF_MONTH = Field("day-of-month", 1, 31, 28)
MONTH = Field("month", 1, 12, 12, MappingProxyType({name: i + 1 for i, name in enumerate(_MONTHS)}), "a month")
DAY_OF_WEEK = Field("day-of-week", 0, 7, 6, MappingProxyType({name: i for i, name in enumerate(_DAYS)}), "a day")
FIELDS = (SECOND, MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK)


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


def read_fields(expression: str, seed: bytes) -> tuple[str, ...]:
    """Return six validated fields, seconds first, in the dialect of cronsim. The zone prefix must have been removed."""
    text = expression.strip()
    if text.startswith("@"):
        text = _nickname(text)
    parts = text.upper().split()
    if len(parts) == 5:
        parts.insert(0, "0")
    if len(parts) != 6:
        raise invalid_cron(_wrong_count_message(len(parts)))
    return tuple(_read_field(field, part, seed) for field, part in zip(FIELDS, parts, strict=True))


def follows_real_time(expression: str) -> bool:
    """Whether the minute or hour begins with a star. Seconds do not matter. The expression must be valid."""
    text = expression.strip()
    parts = NICKNAMES.get(text.lower(), text).split()
    return parts[-5].startswith("*") or parts[-4].startswith("*")


def _nickname(text: str) -> str:
    try:
        return NICKNAMES[text.lower()]
    except KeyError:
        hint = "; use the every_seconds trigger instead" if text.lower().startswith("@every") else ""
        raise invalid_cron(f"{_shown(text)} is not a known nickname; use one of {', '.join(NICKNAMES)}{hint}") from None


def _wrong_count_message(count: int) -> str:
    if count == 0:
        return "is empty; it needs 5 fields (minute hour day-of-month month day-of-week), for example 0 9 * * MON-FRI"
    fields = "1 field" if count == 1 else f"{count} fields"
    return f"has {fields}; expected 5 (minute hour day-of-month month day-of-week) or 6 with seconds first"


def _read_field(field: Field, text: str, seed: bytes) -> str:
    if text == "?":
        if field in (DAY_OF_MONTH, DAY_OF_WEEK):
            return "*"
        raise _wrong(field, "? is allowed only in day-of-month and day-of-week; use *")
    return ",".join(_read_term(field, term, seed) for term in text.split(","))


def _read_term(field: Field, term: str, seed: bytes) -> str:
    if not term:
        raise _wrong(field, "the list has an empty entry; remove the extra comma")
    if field is DAY_OF_MONTH and term in ("L", "LW"):
        return term
    if field is DAY_OF_MONTH and term.startswith("L-"):
        raise _wrong(field, f'"{_shown(term)}" is not supported; use L for the last day or LW for the last weekday')
    if term.startswith("H"):
        return _hashed(field, term, seed)
    if field is DAY_OF_WEEK:
        if "#" in term:
            return _nth_weekday(term)
        if term.endswith("L"):
            return _last_weekday(term)
    base, slash, step_text = term.partition("/")
    if not slash:
        return "*" if base == "*" else _list(_range(field, base))
    step = _step(field, step_text)
    if base == "*":
        # Not expanded, because a leading star also determines how the two day fields are combined.
        return f"*/{step}"
    values = _range(field, base)
    if "-" not in base:
        values = range(values.start, field.high + 1)
    return _list(values[::step])


def _list(values: range) -> str:
    return ",".join(map(str, values))


def _range(field: Field, text: str) -> range:
    low_text, dash, high_text = text.partition("-")
    low = _value(field, low_text)
    if not dash:
        return range(low, low + 1)
    high = _value(field, high_text)
    if field is DAY_OF_WEEK and high == 0 and low > 0:
        high = 7
    if high < low:
        raise _wrong(field, f"the range {_shown(text)} is reversed; put the smaller value first, or use two ranges in a list")
    return range(low, high + 1)


def _value(field: Field, text: str) -> int:
    if text in field.names:
        return field.names[text]
    if not _NUMBER.fullmatch(text):
        raise _wrong(field, _not_a_value(field, text))
    value = int(text)
    if not field.low <= value <= field.high:
        raise _wrong(field, f"{_shown(text)} is out of range {field.low}–{field.high}")
    return value


def _not_a_value(field: Field, text: str) -> str:
    if field is DAY_OF_MONTH and text.endswith("W") and len(text) > 1:
        return f'"{_shown(text)}" is not supported; use LW for the last weekday, or plain days'
    if field is DAY_OF_WEEK and text == "W":
        return '"W" is not a day; use MON-FRI'
    if "?" in text:
        return "? must be the only character of a field; use * here"
    span = f"{field.low}–{field.high}"
    if field.names:
        names = list(field.names)
        return f'"{_shown(text)}" is not {field.noun}; use {names[0]}–{names[-1]} or {span}'
    return f'"{_shown(text)}" is not a number; use {span}, *, a range such as 1-5, or a step such as */5'


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
    values = range(field.low, field.hash_high + 1)
    if span_text is not None:
        if "-" not in span_text:
            raise _wrong(field, f"H({_shown(span_text)}) needs a range, such as H({field.low}-{field.hash_high})")
        values = _range(field, span_text)
        if values[-1] > field.hash_high:
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
