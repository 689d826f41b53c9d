"""A rule: the part of a schedule that decides when it ticks. Compiling one into a timeline happens in timeline.py."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec


class TriggerKind(StrEnum):
    CRON = "cron"
    EVERY = "every"
    RRULE = "rrule"
    AT = "at"


TRIGGER_FIELDS = {
    TriggerKind.CRON: "cron",
    TriggerKind.EVERY: "every_seconds",
    TriggerKind.RRULE: "rrule",
    TriggerKind.AT: "at",
}


class DstGap(StrEnum):
    """What to do with a tick at a local time that does not exist, because a DST change skips it."""

    AFTER = "after"
    SKIP = "skip"


class DstFold(StrEnum):
    """Which instant to use for a local time that occurs twice, because a DST change repeats it."""

    FIRST = "first"
    SECOND = "second"
    BOTH = "both"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Trigger, zone, DST policy, calendars and window. `anchor` is the origin of `every` and of an rrule without DTSTART."""

    kind: TriggerKind
    expression: str
    timezone: str = "UTC"
    anchor: datetime | None = None
    gap: DstGap = DstGap.AFTER
    fold: DstFold = DstFold.FIRST
    exclude: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    starts_at: datetime | None = None
    ends_at: datetime | None = None
