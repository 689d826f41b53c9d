"""Triggers with a fixed interval of elapsed time, counted from an anchor. Time zones do not matter.

The cron nickname `@every 1h30m` is another notation for such an interval.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from everbeat.core.errors import InvalidInput
from everbeat.core.triggers.cron_fields import invalid_cron, split_zone
from everbeat.core.zones import load_zone

MIN_SECONDS = 1
MAX_SECONDS = 315_360_000

_MICROSECOND = timedelta(microseconds=1)
_LAST = datetime.max.replace(tzinfo=UTC)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_MAX_LENGTH = 40
_EVERY = re.compile(r"@every(?:\s+(.*))?", re.IGNORECASE | re.DOTALL)
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:h|ms|m|s|us|µs))+")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|m|s|us|µs)")
_UNITS = {
    **{"h": Decimal(3600), "m": Decimal(60), "s": Decimal(1)},
    **{"ms": Decimal("0.001"), "us": Decimal("0.000001"), "µs": Decimal("0.000001")},
}


class Every(NamedTuple):
    """The interval of an @every expression as the text of `every_seconds`, and the zone of its prefix, if any."""

    seconds: str
    zone: str | None


def read_every(expression: str) -> Every | None:
    """Read `@every 1h30m`; None if the expression is something else. Raises InvalidInput for `cron`."""
    prefix, rest = split_zone(expression)
    match = _EVERY.fullmatch(rest.strip())
    if match is None:
        return None
    duration = match[1] or ""
    if len(duration) > _MAX_LENGTH or not _DURATION.fullmatch(duration):
        raise invalid_cron("@every: needs a duration in h, m and s, such as 1h30m or 90s; a day of elapsed time is 24h")
    seconds = sum(Decimal(number) * _UNITS[unit] for number, unit in _PART.findall(duration))
    text = f"{Decimal(seconds):f}"
    if prefix is not None:
        load_zone(prefix)
    try:
        _read_seconds(text)
    except InvalidInput as invalid:
        raise invalid_cron(f"@every: {invalid.errors[0].message}") from None
    return Every(text.rstrip("0").rstrip(".") if "." in text else text, prefix)


def parse_every(expression: str, anchor: datetime) -> IntervalTrigger:
    """Parse a number of seconds. Raises InvalidInput for `every_seconds`."""
    return IntervalTrigger(_read_seconds(expression), anchor)


def _read_seconds(expression: str) -> Decimal:
    text = expression.strip()
    if len(text) > _MAX_LENGTH or not _NUMBER.fullmatch(text):
        raise _invalid_every("must be a number of seconds, such as 90 or 1.5")
    seconds = Decimal(text)
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise _invalid_every(f"must be between {MIN_SECONDS} and {MAX_SECONDS} (ten years)")
    if seconds * 1_000_000 % 1:
        raise _invalid_every("has more than six decimals; the resolution is one microsecond")
    return seconds


class IntervalTrigger:
    """Ticks at anchor + n × seconds for n = 0, 1, 2, …"""

    def __init__(self, seconds: Decimal | float, anchor: datetime) -> None:
        self._step = round(Decimal(seconds) * 1_000_000)
        if self._step < 1:
            raise ValueError("an interval must be at least one microsecond")
        self._anchor = anchor.astimezone(UTC)
        self._count = 1 + (_LAST - self._anchor) // _MICROSECOND // self._step

    def next_after(self, t: datetime) -> datetime | None:
        number = max(self._passed(t), 0)
        return self._tick(number) if number < self._count else None

    def last_until(self, t: datetime) -> datetime | None:
        number = min(self._passed(t), self._count)
        return self._tick(number - 1) if number > 0 else None

    def count_between(self, after: datetime, until: datetime) -> int:
        first, last = (min(max(self._passed(t), 0), self._count) for t in (after, until))
        return max(last - first, 0)

    def gaps_between(self, after: datetime, until: datetime) -> list[datetime]:
        return []

    def _passed(self, t: datetime) -> int:
        """Return the number of ticks at or before t; zero or less if there are none."""
        return (t - self._anchor) // _MICROSECOND // self._step + 1

    def _tick(self, number: int) -> datetime:
        return self._anchor + timedelta(microseconds=number * self._step)


def _invalid_every(message: str) -> InvalidInput:
    return InvalidInput.of("every_seconds", message)
