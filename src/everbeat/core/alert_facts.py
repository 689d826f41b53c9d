"""What the store tells the evaluation of alert rules. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.tasks import TaskState
from everbeat.core.ticks import SkipReason


class SignalKind(StrEnum):
    """failed: a task died. slow: one took a second or longer. skipped: ticks were skipped. missed, late: an audit found it."""

    FAILED = "failed"
    SLOW = "slow"
    SKIPPED = "skipped"
    MISSED = "missed"
    LATE = "late"


class AlertSignal(msgspec.Struct, frozen=True, kw_only=True):
    """What the database wrote in the transaction of an event, for the rules of a tenant. It is deleted when it is judged.

    A signal about a task has a queue, a type and labels; one about ticks has a schedule only. `seconds`: how long the attempt
    took, or how late the tick is.
    """

    id: UUID
    tenant_id: UUID
    kind: SignalKind
    at: datetime
    schedule_id: UUID | None = None
    schedule_name: str | None = None
    scheduled_for: datetime | None = None
    task_id: UUID | None = None
    queue: str | None = None
    type: str | None = None
    labels: Mapping[str, str] = {}
    reason: str | None = None
    seconds: float | None = None
    count: int = 1

    @property
    def skip_reason(self) -> SkipReason | None:
        return SkipReason(self.reason) if self.kind is SignalKind.SKIPPED and self.reason else None


class ScheduleRun(NamedTuple):
    """A finished task of a schedule."""

    id: UUID
    schedule_id: UUID
    state: TaskState
    scheduled_for: datetime | None
    started_at: datetime | None
    finished_at: datetime

    @property
    def seconds(self) -> float | None:
        return None if self.started_at is None else (self.finished_at - self.started_at).total_seconds()


class SlowTask(NamedTuple):
    """A running task whose attempt began some time ago."""

    id: UUID
    queue: str
    type: str
    schedule_id: UUID | None
    schedule: str | None
    labels: Mapping[str, str]
    started_at: datetime


class ReadyAge(NamedTuple):
    """The ready tasks of a queue and type that have waited for some time: how many, and since when the oldest one could run."""

    queue: str
    type: str
    tasks: int
    oldest_at: datetime
