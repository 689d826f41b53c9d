"""The roll-up of the ledger: the counts of a schedule for one day (UTC)."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from everbeat.core.ticks import SkipReason

DAY = timedelta(days=1)
ROLL_UP_NAME = "roll_up"
REASON_COLUMNS = {reason.value: f"skipped_{reason.value}" for reason in SkipReason}


class DayCounts(msgspec.Struct, kw_only=True):
    """Numbers of ticks; skipped ticks by reason. `lag_seconds`: the largest lag of those that fired."""

    expected: int = 0
    fired: int = 0
    missing: int = 0
    doubled: int = 0
    skipped: dict[str, int] = {}
    lag_seconds: float = 0.0


def day_of(at: datetime) -> datetime:
    """Return the beginning of the day (UTC)."""
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def whole_days(start: datetime, end: datetime, closed: tuple[datetime, datetime]) -> tuple[datetime, datetime] | None:
    """Return the whole closed days inside a window as [first, end), or None if there are none."""
    first = start if day_of(start) == start else day_of(start) + DAY
    first, last = max(first, closed[0]), min(day_of(end), closed[1])
    return (first, last) if first < last else None


class LedgerDay(DayCounts, kw_only=True):
    """A row of the roll-up. `cursor_at`: the cursor at that time, if the ledger of the day was not complete yet."""

    day: datetime
    schedule_id: UUID
    tenant_id: UUID
    first_at: datetime | None = None
    last_at: datetime | None = None
    cursor_at: datetime | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.expected or self.fired or self.doubled or self.skipped or self.cursor_at)


class RecheckPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    day: datetime | None = None
    after: UUID | None = None


class RollUpPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The closed days are [closed_from, closed_until). `after`: the last schedule counted of the day after them."""

    closed_from: datetime | None = None
    closed_until: datetime | None = None
    after: UUID | None = None
    recheck: RecheckPosition = RecheckPosition()


_decode = msgspec.json.Decoder(RollUpPosition).decode


def decode_roll_up_position(text: str) -> RollUpPosition:
    """Return the position of the roll-up; the beginning, if another version has written it."""
    try:
        return _decode(text)
    except msgspec.MsgspecError:
        return RollUpPosition()


def closed_days(position: str) -> tuple[datetime, datetime] | None:
    """Return the closed days as [first, end), from the position of the roll-up."""
    found = decode_roll_up_position(position)
    return None if found.closed_from is None or found.closed_until is None else (found.closed_from, found.closed_until)
