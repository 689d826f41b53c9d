"""The response bodies of checks."""

from __future__ import annotations

from typing import Annotated

import msgspec

from everbeat.api.responses import FactResponse
from everbeat.core.check_explanations import CheckVerdict
from everbeat.core.check_ledger import ShownOutcome, ShownReason
from everbeat.core.checks import CheckState, CheckStatus, DownReason, PingKind
from everbeat.core.responses import Id, Time


class CheckResponse(msgspec.Struct, kw_only=True):
    """A check: its definition and its state. One of `cron` and `every_seconds` is set.

    `ping_url` is null without the scope manage. `started` and `late` are forms of `new` and `up`: a run is in progress, or a
    ping is expected and its grace has not passed. `due_at`: when the check goes down unless a ping arrives. `reason`: why it is
    down.
    `old_ping_url_until`: until when the ping URL before the last rotation works.
    """

    id: Id
    name: str
    description: str
    cron: str | msgspec.UnsetType = msgspec.UNSET
    every_seconds: float | int | msgspec.UnsetType = msgspec.UNSET
    timezone: str
    grace_seconds: float | int
    timeout_seconds: float | int | None
    labels: dict[str, str]
    status: CheckStatus
    state_since: Time
    reason: DownReason | None
    expected_at: Time | None
    due_at: Time | None
    last_ping_at: Time | None
    last_duration_ms: float | int | None
    ping_count: int
    ping_url: str | None
    old_ping_url_until: Time | None
    trigger_text: str
    revision: int
    created_at: Time
    updated_at: Time


class CheckList(msgspec.Struct):
    items: list[CheckResponse]
    next_cursor: str | None


class PingResponse(msgspec.Struct, kw_only=True):
    """One ping. `body`: at most 10,000 bytes, as text; bytes that are not UTF-8 are replaced. `body_bytes`: its size as it was
    sent. `duration_ms`: the time from the start ping with the same run id, if there was one."""

    number: int
    at: Time
    kind: PingKind
    rid: Id | None
    exit_status: int | None
    duration_ms: float | int | None
    method: str
    address: str | None
    user_agent: str | None
    body: str | None
    body_bytes: int


class PingList(msgspec.Struct):
    items: list[PingResponse]
    next_cursor: str | None


class CheckTickResponse(msgspec.Struct, kw_only=True):
    """One expected ping, or `count` of them up to `until`. `fired_at`: when the ping arrived that answered it.

    `ping`: the number of that ping. `task_id` is always null: the job runs elsewhere.
    """

    scheduled_for: Time
    outcome: ShownOutcome
    reason: ShownReason | None
    task_id: Id | None
    fired_at: Time | None
    lag_ms: float | int | None
    ping: int | None
    until: Time | msgspec.UnsetType = msgspec.UNSET
    count: Annotated[int, msgspec.Meta(ge=1)] | msgspec.UnsetType = msgspec.UNSET


class CheckTickList(msgspec.Struct):
    items: list[CheckTickResponse]
    next_cursor: str | None


class CheckTransitionResponse(msgspec.Struct, kw_only=True):
    """A change of the state. `scheduled_for`: the expected ping that it is about."""

    number: int
    at: Time
    from_: CheckState = msgspec.field(name="from")
    to: CheckState
    reason: DownReason | None
    scheduled_for: Time | None
    ping: int | None


class CheckTransitionList(msgspec.Struct):
    items: list[CheckTransitionResponse]
    next_cursor: str | None


class CheckExplanationResponse(msgspec.Struct):
    """Without `at`, the verdict is the state. With `at`, it is what became of the ping that was expected at that time."""

    verdict: CheckVerdict
    explanation: str
    facts: list[FactResponse]
