"""Schedules: the spec that a user defines, the position that the engine maintains, and the comparison of specs."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

from everbeat.core.hooks import NO_HOOKS, Hooks
from everbeat.core.rules import Rule, TriggerKind
from everbeat.core.targets import Target, WorkerTarget, destination_of, queue_of, target_kind

DEFAULT_TENANT = UUID(int=0)
MAX_CONCURRENT = 10_000


class Status(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    FINISHED = "finished"


class Overlap(StrEnum):
    SKIP = "skip"
    QUEUE = "queue"
    CANCEL_PREVIOUS = "cancel_previous"
    ALLOW = "allow"


class CatchUp(StrEnum):
    LATEST = "latest"
    ALL = "all"
    NONE = "none"


class RetryKind(StrEnum):
    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class Retry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: RetryKind = RetryKind.EXPONENTIAL
    base_seconds: float = 1
    factor: float = 2
    max_seconds: float = 3600
    jitter: bool = True


# One object each, so that requests leave them out: the encoder recognizes a default by its identity.
DEFAULT_RETRY = Retry()
DEFAULT_TIMEOUT_SECONDS: float = 3600


def default_concurrency(overlap: Overlap) -> int:
    return MAX_CONCURRENT if overlap is Overlap.ALLOW else 1


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of a schedule. `max_concurrent` None: the default of the overlap policy."""

    name: str
    rule: Rule
    target: Target
    payload: bytes = b"{}"
    description: str = ""
    overlap: Overlap = Overlap.SKIP
    max_concurrent: int | None = None
    catch_up: CatchUp = CatchUp.LATEST
    misfire_grace_seconds: float = 3600
    jitter_seconds: float = 0
    priority: int = 100
    max_attempts: int = 3
    retry: Retry = DEFAULT_RETRY
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    labels: dict[str, str] = {}
    hooks: Hooks = NO_HOOKS
    enabled: bool = True

    @property
    def concurrency(self) -> int:
        """The number of unfinished tasks of the schedule from which a due tick is an overlap."""
        return default_concurrency(self.overlap) if self.max_concurrent is None else self.max_concurrent

    @property
    def target_kind(self) -> str:
        return target_kind(self.target)

    @property
    def queue(self) -> str:
        return queue_of(self.target)

    @property
    def fair_key(self) -> str:
        """The fair key of the tasks: the destination of deliveries, and nothing for workers."""
        return destination_of(self.target)

    @property
    def task_type(self) -> str:
        return self.target.type if isinstance(self.target, WorkerTarget) else self.name


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A spec with its identity and its position.

    `cursor_at`: the ledger is complete up to this instant. `next_tick_at`: the next tick to fire. `due_at`: when to fire it,
    which is later than the tick by the jitter or the catch-up rate. `rule_at`: when the current rule took effect.
    `moved_tick_at`: the tick that was next until a change of the tz database moved it. It gets a row when the cursor passes it.
    """

    id: UUID
    tenant_id: UUID
    partition: int
    spec: Spec
    status: Status
    revision: int
    cursor_at: datetime
    rule_at: datetime
    created_at: datetime
    updated_at: datetime
    next_tick_at: datetime | None = None
    due_at: datetime | None = None
    last_tick_at: datetime | None = None
    moved_tick_at: datetime | None = None
    fault: str | None = None
    note: str | None = None


class PastRule(msgspec.Struct, frozen=True, kw_only=True):
    """A former rule of a schedule, in force in (since, until]. The audit computes the expected ticks from it."""

    schedule_id: UUID
    rule: Rule
    since: datetime
    until: datetime


def anchored(rule: Rule, previous: Rule | None, now: datetime) -> Rule:
    """Return the rule with an anchor: its anchor, that of the rule it replaces, or now. Once set, an anchor does not change."""
    if rule.anchor is not None or rule.kind not in (TriggerKind.EVERY, TriggerKind.RRULE):
        return rule
    if previous is not None and previous.kind is rule.kind and previous.anchor is not None:
        return msgspec.structs.replace(rule, anchor=previous.anchor)
    return msgspec.structs.replace(rule, anchor=now.replace(microsecond=0))


def same_spec(one: Spec, other: Spec) -> bool:
    """Whether two specs are equal. The order of keys in the payload does not matter."""
    if msgspec.structs.replace(one, payload=b"") != msgspec.structs.replace(other, payload=b""):
        return False
    return one.payload == other.payload or msgspec.json.decode(one.payload) == msgspec.json.decode(other.payload)
