"""Ticks, the rows of the ledger: their outcomes, and the closed list of skip reasons."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import msgspec


class Outcome(StrEnum):
    FIRED = "fired"
    SKIPPED = "skipped"


class SkipReason(StrEnum):
    """Why a tick was skipped. A closed list: adding a reason changes the API contract."""

    OVERLAP = "overlap"
    MISFIRE = "misfire"
    PAUSED = "paused"
    CALENDAR = "calendar"
    DST_GAP = "dst_gap"
    ZONE_CHANGED = "zone_changed"
    QUOTA = "quota"
    ENDED = "ended"


class Occurrence(NamedTuple):
    """One tick of a timeline. `skip`: the reason if it does not fire, otherwise None."""

    at: datetime
    skip: SkipReason | None


class Skip(msgspec.Struct, frozen=True):
    """Consecutive ticks, from first to last, that were skipped for the same reason."""

    first: datetime
    last: datetime
    count: int
    reason: SkipReason


class Tick(msgspec.Struct, frozen=True):
    """One row of the ledger."""

    schedule_id: UUID
    scheduled_for: datetime
    outcome: Outcome
    reason: SkipReason | None
    task_id: UUID | None
    fired_at: datetime
    until: datetime | None
    count: int
    node: UUID | None = None
    epoch: int | None = None
