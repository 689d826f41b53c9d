"""Findings of the auditor: ticks that are missing, doubled, late or overdue, and faults of the whole cluster."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec


class FindingKind(StrEnum):
    """What the auditor found.

    overdue: a tick should have fired by now, and still can. missing: the ledger is past a tick, and has no row for it. doubled:
    a tick has more than one task. late: a tick fired later than allowed. clock_set_back: the database clock is behind an
    earlier time. unowned_partitions: no live node owns some partitions. The last two concern the cluster, not a schedule.
    """

    MISSING = "missing"
    DOUBLED = "doubled"
    LATE = "late"
    OVERDUE = "overdue"
    CLOCK_SET_BACK = "clock_set_back"
    UNOWNED_PARTITIONS = "unowned_partitions"


class Resolution(StrEnum):
    """Why a finding is resolved.

    fired: the tick fired after all. recorded: it has a ledger row now. backfilled: a backfill created its task. removed: its
    schedule was removed. over: the fault has ended. noted: there is nothing to resolve, as the tick only fired late.
    """

    FIRED = "fired"
    RECORDED = "recorded"
    BACKFILLED = "backfilled"
    REMOVED = "removed"
    OVER = "over"
    NOTED = "noted"


class FindingState(StrEnum):
    OPEN = "open"
    RESOLVED = "resolved"


class AuditFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. There is at most one of a kind for each tick.

    `tenant_id` and `schedule_id` None: it concerns the cluster. `scheduled_for`: the tick, or the beginning of the fault.
    `details`: fields that depend on the kind, as JSON; `name` is the name of the schedule.
    """

    id: UUID
    tenant_id: UUID | None
    schedule_id: UUID | None
    kind: FindingKind
    scheduled_for: datetime
    found_at: datetime
    resolved_at: datetime | None = None
    resolution: Resolution | None = None
    details: str = "{}"

    @property
    def state(self) -> FindingState:
        return FindingState.OPEN if self.resolved_at is None else FindingState.RESOLVED
