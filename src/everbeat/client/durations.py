"""Parses durations: a number of seconds, a timedelta, or a string such as "90s" or "1h30m"."""

from __future__ import annotations

import re
from datetime import timedelta

from everbeat.core.errors import InvalidInput

Duration = float | timedelta | str

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*")
_UNIT_ORDER = ["w", "d", "h", "m", "s", "ms"]
_HELP = 'use a number of seconds, a timedelta, or a string such as "90s", "10m", "1h30m" or "2d"'


def seconds_of(duration: Duration, field: str) -> float:
    """Return the duration in seconds. Raises InvalidInput with the name of the field."""
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        seconds = _parse(duration, field)
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        seconds = float(duration)
    else:
        raise InvalidInput.of(field, f"{duration!r} is not a duration; {_HELP}")
    if not 0 <= seconds < float("inf"):
        raise InvalidInput.of(field, f"{duration!r} is negative or not finite; {_HELP}")
    return seconds


def _parse(text: str, field: str) -> float:
    rest = text.strip().lower()
    seconds, units = 0.0, list[str]()
    while rest and (match := _PART.match(rest)):
        seconds += float(match[1]) * _UNITS[match[2]]
        units.append(match[2])
        rest = rest[match.end() :]
    if rest or not units:
        hint = f'; write "{text}s" for seconds' if re.fullmatch(r"\d+(\.\d+)?", rest) and not units else ""
        raise InvalidInput.of(field, f"{text!r} is not a duration; {_HELP}{hint}")
    if units != sorted(set(units), key=_UNIT_ORDER.index):
        raise InvalidInput.of(field, f"{text!r}: use each unit once, the longest first, as in 1d12h30m")
    return round(seconds, 6)
