"""Checks: jobs that run elsewhere and report by pings. What a user defines, and what the database keeps of a check."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.definitions import TriggerInput
from everbeat.core.errors import FieldError, InvalidInput
from everbeat.core.names import NAME_MESSAGE, has_control_characters, is_encodable, is_name, label_errors
from everbeat.core.rules import Rule, TriggerKind
from everbeat.core.timeline import compile_rule

MAX_BODY_BYTES = 10_000
MAX_OPEN_RUNS = 100
MAX_PINGS_KEPT = 1000
TOKEN_BYTES = 16
OLD_TOKEN_VALID = timedelta(hours=24)

_YEAR_SECONDS = 365 * 86_400
_ORIGIN = datetime(1970, 1, 1, tzinfo=UTC)
_TOKEN = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class CheckState(StrEnum):
    """The stored state. A change of it is a transition, which is recorded and can raise an alert."""

    NEW = "new"
    UP = "up"
    DOWN = "down"
    PAUSED = "paused"


class CheckStatus(StrEnum):
    """The state as it is shown. `started` and `late` follow from the stored values and the time."""

    NEW = "new"
    UP = "up"
    STARTED = "started"
    LATE = "late"
    DOWN = "down"
    PAUSED = "paused"


class DownReason(StrEnum):
    """Why a check is down. A closed list: adding a reason changes the API contract.

    missed: no ping arrived in time. failed: the job reported a failure. unfinished: a run started and did not end in time.
    """

    MISSED = "missed"
    FAILED = "failed"
    UNFINISHED = "unfinished"


class PingKind(StrEnum):
    SUCCESS = "success"
    START = "start"
    FAIL = "fail"
    LOG = "log"


class CheckOutcome(StrEnum):
    """What became of an expected ping. `skipped`: the check was paused."""

    PINGED = "pinged"
    FAILED = "failed"
    MISSED = "missed"
    SKIPPED = "skipped"


class CheckInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A check in requests: when pings are expected, and how late they may be.

    `timeout_seconds` limits the time from a start ping to the end of the run; by default it is `grace_seconds`.
    """

    cron: str | None = None
    every_seconds: float | None = None
    timezone: str = "UTC"
    grace_seconds: Annotated[float, msgspec.Meta(ge=1, le=_YEAR_SECONDS)] = 3600
    timeout_seconds: Annotated[float, msgspec.Meta(ge=1, le=_YEAR_SECONDS)] | None = None
    description: str = ""
    labels: dict[str, str] = {}


class CheckSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of a check. An interval in its rule counts from the last ping, not from an anchor."""

    name: str
    rule: Rule
    grace_seconds: float = 3600
    timeout_seconds: float | None = None
    description: str = ""
    labels: dict[str, str] = {}

    @property
    def grace(self) -> timedelta:
        return timedelta(seconds=self.grace_seconds)

    @property
    def run_limit(self) -> timedelta:
        return timedelta(seconds=self.grace_seconds if self.timeout_seconds is None else self.timeout_seconds)

    @property
    def period(self) -> timedelta | None:
        """The interval; None for cron."""
        return timedelta(seconds=float(self.rule.expression)) if self.rule.kind is TriggerKind.EVERY else None


class OpenRun(msgspec.Struct, frozen=True, array_like=True):
    """A run that has started and not ended. `rid`: the run id that the client has chosen."""

    started_at: datetime
    rid: UUID | None = None


class CheckPosition(msgspec.Struct, frozen=True, kw_only=True):
    """What pings and the passing of time change.

    `expected_at`: the first expected ping that the ledger does not have. `cursor_at`: the last one that it has. `due_at`: when
    the check goes down if no ping arrives; None if time alone cannot change its state.
    """

    state: CheckState
    state_since: datetime
    reason: DownReason | None = None
    cursor_at: datetime | None = None
    expected_at: datetime | None = None
    due_at: datetime | None = None
    last_ping_at: datetime | None = None
    last_duration_seconds: float | None = None
    ping_count: int = 0
    runs: tuple[OpenRun, ...] = ()


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A check of a tenant. `version` grows with every write, `revision` with every change of the definition.

    `old_token`: the token before the last rotation, valid until `old_token_until`.
    """

    id: UUID
    tenant_id: UUID
    spec: CheckSpec
    token: str
    old_token: str | None = None
    old_token_until: datetime | None = None
    position: CheckPosition
    revision: int = 1
    version: int = 1
    created_at: datetime
    updated_at: datetime

    def __repr__(self) -> str:
        return f"Check(name={self.spec.name!r})"  # the token allows pings

    def status_at(self, now: datetime) -> CheckStatus:
        position = self.position
        if position.state not in (CheckState.NEW, CheckState.UP):
            return CheckStatus(position.state)
        if position.runs:
            return CheckStatus.STARTED
        if position.expected_at is not None and position.expected_at <= now:
            return CheckStatus.LATE
        return CheckStatus(position.state)


class PingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a job has sent. `body_bytes`: the size before the body was cut to what is kept."""

    kind: PingKind
    rid: UUID | None = None
    exit_status: int | None = None
    method: str = "GET"
    address: str | None = None
    user_agent: str | None = None
    body: bytes | None = None
    body_bytes: int = 0


class Ping(PingRequest, frozen=True, kw_only=True):
    """A stored ping. The pings of a check are numbered from 1. `duration_seconds`: how long the run took that it ended."""

    at: datetime
    number: int = 0
    duration_seconds: float | None = None


class CheckTick(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger entry: one expected ping, or consecutive ones with the same outcome up to `until`."""

    scheduled_for: datetime
    outcome: CheckOutcome
    reason: DownReason | None = None
    recorded_at: datetime
    ping_number: int | None = None
    until: datetime | None = None
    count: int = 1


class CheckTransition(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the state. `scheduled_for`: the expected ping that it is about, if there is one."""

    at: datetime
    from_state: CheckState
    to_state: CheckState
    reason: DownReason | None = None
    scheduled_for: datetime | None = None
    ping_number: int | None = None


class CheckChange(NamedTuple):
    """The new state of a check with what is recorded together with it. `expected`: its version before; None if it is new."""

    check: Check
    expected: int | None
    pings: tuple[Ping, ...] = ()
    ticks: tuple[CheckTick, ...] = ()
    transitions: tuple[CheckTransition, ...] = ()


def token_text(secret: bytes) -> str:
    """Write a random token in the form of a UUID, which clients of Healthchecks expect."""
    return str(UUID(bytes=secret))


def token_of(text: str) -> str | None:
    """Return the token in a URL, or None if it cannot be one."""
    lower = text.lower()
    return lower if _TOKEN.fullmatch(lower) else None


def parse_check(name: str, given: CheckInput) -> CheckSpec:
    """Return the definition that a request describes. Raises InvalidInput with all errors."""
    errors = [] if is_name(name) else [FieldError("name", NAME_MESSAGE)]
    text = given.description
    if len(text) > 2000 or has_control_characters(text) or not is_encodable(text):
        errors.append(FieldError("description", "must be at most 2000 characters, without control characters"))
    errors += label_errors(given.labels)
    rule = None
    try:
        rule = _rule_of(given)
    except InvalidInput as error:
        errors += error.errors
    if errors or rule is None:
        raise InvalidInput(*errors)
    return CheckSpec(
        name=name,
        rule=rule,
        grace_seconds=given.grace_seconds,
        timeout_seconds=given.timeout_seconds,
        description=text,
        labels=given.labels,
    )


def _rule_of(given: CheckInput) -> Rule:
    if (given.cron is None) == (given.every_seconds is None):
        raise InvalidInput.of("cron", "give exactly one of cron and every_seconds")
    rule = TriggerInput(cron=given.cron, every_seconds=given.every_seconds, timezone=given.timezone).rule()
    compile_rule(msgspec.structs.replace(rule, anchor=_ORIGIN) if rule.kind is TriggerKind.EVERY else rule, None, {})
    return rule
