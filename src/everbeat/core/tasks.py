"""Tasks: origins, states and the legal moves between them, as data."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec


class Origin(StrEnum):
    SUBMIT = "submit"
    TICK = "tick"
    TRIGGER = "trigger"
    BACKFILL = "backfill"
    REPLAY = "replay"


class TaskState(StrEnum):
    HELD = "held"
    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    DEAD = "dead"
    CANCELLED = "cancelled"


LIVE_STATES = frozenset({TaskState.HELD, TaskState.SCHEDULED, TaskState.READY, TaskState.RUNNING})

TRANSITIONS: dict[TaskState, frozenset[TaskState]] = {
    TaskState.HELD: frozenset({TaskState.SCHEDULED, TaskState.READY, TaskState.CANCELLED}),
    TaskState.SCHEDULED: frozenset({TaskState.READY, TaskState.CANCELLED}),
    TaskState.READY: frozenset({TaskState.RUNNING, TaskState.CANCELLED}),
    TaskState.RUNNING: frozenset(
        {
            TaskState.READY,
            TaskState.SCHEDULED,
            TaskState.COMPLETED,
            TaskState.FAILED,
            TaskState.DEAD,
            TaskState.CANCELLED,
        }
    ),
    TaskState.COMPLETED: frozenset(),
    TaskState.FAILED: frozenset(),
    TaskState.DEAD: frozenset(),
    TaskState.CANCELLED: frozenset(),
}


class ClaimedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task in the hands of a worker: the fence proves the right to finish it."""

    id: UUID
    tenant_id: UUID
    queue: str
    type: str
    payload: bytes
    attempt: int
    fence: int
    lease_until: datetime
    schedule_id: UUID | None
    scheduled_for: datetime | None
