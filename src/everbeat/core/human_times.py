"""Times as people write them: "yesterday 02:00", "2h ago", "in 10 minutes", or ISO 8601. Read in a given time zone."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from everbeat.core.definitions import rfc3339
from everbeat.core.errors import InvalidInput

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_WORDS = {"second": "s", "sec": "s", "minute": "m", "min": "m", "hour": "h", "hr": "h", "day": "d", "week": "w"}
_PART = re.compile(r"(\d+(?:\.\d+)?|an?)\s*([a-z]+)(?:\s*,?\s*(?:and\s+)?)")
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_NAMED_CLOCKS = {"midnight": time(0), "noon": time(12)}
_FORMS = 'use "now", "2h ago", "in 10 minutes", "yesterday 02:00", "last monday 09:00" or ISO 8601 such as 2026-11-01T02:00'
_MAX_SPAN = timedelta(days=36_500)


class HumanTime(NamedTuple):
    """A time as it was written and as it was understood. `is_repeated`: the local time occurs twice; this is the first."""

    text: str
    at: datetime
    zone: ZoneInfo
    is_repeated: bool = False

    def __str__(self) -> str:
        local = self.at.astimezone(self.zone).isoformat(sep=" ", timespec="seconds")
        repeated = "; the first of the two times with this name" if self.is_repeated else ""
        return f'"{self.text}" is {local} in {self.zone.key} ({rfc3339(self.at)}{repeated})'


def parse_time(text: str, now: datetime, zone: ZoneInfo, field: str = "time") -> HumanTime:
    """Return the instant that the text means. Raises InvalidInput with the forms that are understood."""
    words = " ".join(text.lower().split())
    if words == "now":
        return HumanTime(text, now, zone)
    if (span := _relative(words, field)) is not None:
        return HumanTime(text, now + span, zone)
    named = _named(words, now.astimezone(zone))
    if named is not None:
        return _in_zone(text, named, zone, field)
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInput.of(field, f'"{text}" is not understood; {_FORMS}') from None
    if found.tzinfo is not None:
        return HumanTime(text, found.astimezone(UTC), zone)
    return _in_zone(text, found, zone, field)


def _relative(words: str, field: str) -> timedelta | None:
    if words.startswith("in "):
        return _span(words[3:], field)
    if words.endswith(" ago"):
        return -_span(words[:-4], field)
    if re.match(r"[+-]\s*\d", words) and not _CLOCK.search(words):
        span = _span(words[1:].strip(), field)
        return span if words[0] == "+" else -span
    return None


def _span(words: str, field: str) -> timedelta:
    seconds, position = 0.0, 0
    while position < len(words) and (match := _PART.match(words, position)):
        unit = match[2] if match[2] in _SECONDS else _WORDS.get(match[2].removesuffix("s"), "")
        if not unit:
            break
        seconds += (1.0 if match[1].startswith("a") else float(match[1])) * _SECONDS[unit]
        position = match.end()
    if position != len(words) or not words:
        raise InvalidInput.of(field, f'"{words}" is not a duration; write it as in 90s, 10m, 1h30m, 2 days or 1 week')
    if seconds > _MAX_SPAN.total_seconds():
        raise InvalidInput.of(field, f'"{words}" is longer than 100 years')
    return timedelta(seconds=seconds)


def _named(words: str, now: datetime) -> datetime | None:
    """Return the local time that a day and a time of day name; None if the words are not of this form."""
    day_words, clock = _split_clock(words.replace(" at ", " "))
    day = now.date() if not day_words and clock is not None else _day(day_words, now.date())
    return None if day is None else datetime.combine(day, clock or time(0))


def _split_clock(words: str) -> tuple[str, time | None]:
    rest, _, last = words.rpartition(" ")
    if last in _NAMED_CLOCKS:
        return rest, _NAMED_CLOCKS[last]
    match = _CLOCK.fullmatch(last)
    if match is None:
        return words, None
    hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
    return (rest, time(hour, minute, second)) if hour < 24 and minute < 60 and second < 60 else (words, None)


def _day(words: str, today: date) -> date | None:
    near = {"today": 0, "yesterday": -1, "tomorrow": 1}
    if words in near:
        return today + timedelta(days=near[words])
    which, _, name = words.partition(" ")
    found = [
        index for index, weekday in enumerate(_WEEKDAYS) if name == weekday or (len(name) == 3 and weekday.startswith(name))
    ]
    if which in ("last", "next") and found:
        if which == "last":
            return today - timedelta(days=(today.weekday() - found[0] - 1) % 7 + 1)
        return today + timedelta(days=(found[0] - today.weekday() - 1) % 7 + 1)
    return _iso_day(words)


def _iso_day(words: str) -> date | None:
    try:
        return date.fromisoformat(words)
    except ValueError:
        return None


def _in_zone(text: str, local: datetime, zone: ZoneInfo, field: str) -> HumanTime:
    first, second = local.replace(tzinfo=zone, fold=0), local.replace(tzinfo=zone, fold=1)
    at = first.astimezone(UTC)
    if at.astimezone(zone).replace(tzinfo=None) != local:
        raise InvalidInput.of(
            field,
            f'"{text}" does not exist in {zone.key}: the clocks skip {local:%H:%M} on {local:%Y-%m-%d}; name another time',
        )
    return HumanTime(text, at, zone, is_repeated=first.utcoffset() != second.utcoffset())
