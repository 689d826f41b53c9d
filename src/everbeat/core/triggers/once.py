"""Triggers with a single tick at a given instant."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from everbeat.core.errors import InvalidInput

_EXAMPLE = "2026-12-24T18:00:00+01:00"
_RFC3339 = re.compile(r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}:(\d{2})(?:\.(\d+))?)([Zz]|[+-]\d{2}:\d{2})?", re.ASCII)
_MAX_LENGTH = 64


def parse_at(expression: str) -> OnceTrigger:
    """Parse an RFC 3339 instant. Raises InvalidInput for `at`."""
    match = _RFC3339.fullmatch(expression.strip()) if len(expression) <= _MAX_LENGTH else None
    if match is None:
        raise _invalid_at(f"must be a date and time with an offset, such as {_EXAMPLE} or 2026-12-24T17:00:00Z")
    day, time, second, fraction, offset = match.groups()
    if offset is None:
        raise _invalid_at(f"needs an offset from UTC, such as Z or +01:00 at its end: {_EXAMPLE}")
    if second == "60":
        raise _invalid_at("is a leap second (:60), which is not supported; use :59 or the next minute")
    if fraction is not None and len(fraction) > 6:
        raise _invalid_at("has more than six decimals; the resolution is one microsecond")
    try:
        moment = datetime.fromisoformat(f"{day}T{time}{'+00:00' if offset in 'Zz' else offset}")
        return OnceTrigger(moment.astimezone(UTC))
    except (ValueError, OverflowError):
        raise _invalid_at("has a date, time or offset that does not exist") from None


class OnceTrigger:
    """A trigger with exactly one tick."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def next_after(self, t: datetime) -> datetime | None:
        return self.at if t < self.at else None

    def last_until(self, t: datetime) -> datetime | None:
        return self.at if self.at <= t else None

    def count_between(self, after: datetime, until: datetime) -> int:
        return int(after < self.at <= until)

    def gaps_between(self, after: datetime, until: datetime) -> list[datetime]:
        return []


def _invalid_at(message: str) -> InvalidInput:
    return InvalidInput.of("at", message)
