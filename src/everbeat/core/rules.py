"""A rule: the part of a schedule that decides when it ticks. timeline.py compiles a rule into a timeline."""

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
    """What happens to a tick at a local time that a DST change skips.

    `after`: it moves to the end of the gap. `shift`: it moves by the length of the gap, because it keeps the offset from before
    the gap, as in RFC 5545.
    """

    AFTER = "after"
    SHIFT = "shift"
    SKIP = "skip"


class DstFold(StrEnum):
    """Which instant to use for a local time that a DST change repeats."""

    FIRST = "first"
    SECOND = "second"
    BOTH = "both"


def default_gap(kind: TriggerKind) -> DstGap:
    """Return the policy of a rule that does not specify one."""
    return DstGap.SHIFT if kind is TriggerKind.RRULE else DstGap.AFTER


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Trigger, zone, DST policy, calendars, start and end. `anchor`: the origin of `every`, and of an rrule without DTSTART."""

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
