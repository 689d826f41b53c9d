"""Converts checks, pings, ledger entries and transitions to table rows and back, for both dialects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from everbeat.core.checks import (
    Check,
    CheckChange,
    CheckOutcome,
    CheckPosition,
    CheckSpec,
    CheckState,
    CheckTick,
    CheckTransition,
    DownReason,
    OpenRun,
    Ping,
    PingKind,
)
from everbeat.core.rules import Rule, TriggerKind
from everbeat.store.rows import text_of

_POSITION = CheckPosition.__struct_fields__
_CHECK = ("id", "tenant_id", "token", "old_token", "old_token_until", "revision", "version", "created_at", "updated_at")
_decode_runs = msgspec.json.Decoder(tuple[OpenRun, ...]).decode
_decode_labels = msgspec.json.Decoder(dict[str, str]).decode

Row = Mapping[str, Any]


def check_from_row(row: Row) -> Check:
    return Check(
        **{name: row[name] for name in _CHECK},
        spec=CheckSpec(
            name=row["name"],
            rule=Rule(kind=TriggerKind(row["trigger_kind"]), expression=row["trigger_text"], timezone=row["timezone"]),
            grace_seconds=row["grace_seconds"],
            timeout_seconds=row["timeout_seconds"],
            description=row["description"],
            labels=_decode_labels(row["labels"]),
        ),
        position=CheckPosition(
            **{name: row[name] for name in _POSITION if name not in ("state", "reason", "runs")},
            state=CheckState(row["state"]),
            reason=_reason(row),
            runs=_decode_runs(row["runs"]),
        ),
    )


def check_to_row(check: Check) -> dict[str, Any]:
    spec = check.spec
    return {
        **{name: getattr(check, name) for name in _CHECK},
        "name": spec.name,
        "description": spec.description,
        "labels": text_of(spec.labels),
        "trigger_kind": spec.rule.kind.value,
        "trigger_text": spec.rule.expression,
        "timezone": spec.rule.timezone,
        "grace_seconds": spec.grace_seconds,
        "timeout_seconds": spec.timeout_seconds,
        **position_to_row(check.position),
    }


def position_to_row(position: CheckPosition) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(position, name) for name in _POSITION}
    return {**row, "state": position.state.value, "reason": _text(position.reason), "runs": text_of(position.runs)}


def ping_rows(changes: Iterable[CheckChange]) -> list[dict[str, Any]]:
    return [
        {**msgspec.structs.asdict(ping), "kind": ping.kind.value, **_key(change)} for change in changes for ping in change.pings
    ]


def tick_rows(changes: Iterable[CheckChange]) -> list[dict[str, Any]]:
    return [
        {**msgspec.structs.asdict(tick), "outcome": tick.outcome.value, "reason": _text(tick.reason), **_key(change)}
        for change in changes
        for tick in change.ticks
    ]


def transition_rows(changes: Iterable[CheckChange]) -> list[dict[str, Any]]:
    return [
        {
            **msgspec.structs.asdict(one),
            "from_state": one.from_state.value,
            "to_state": one.to_state.value,
            "reason": _text(one.reason),
            **_key(change),
            "number": (change.expected or 0) + 1 + index,
        }
        for change in changes
        for index, one in enumerate(change.transitions)
    ]


def ping_from_row(row: Row) -> Ping:
    body = None if row["body"] is None else bytes(row["body"])
    return Ping(**{**_without_key(row), "kind": PingKind(row["kind"]), "body": body})


def tick_from_row(row: Row) -> CheckTick:
    return CheckTick(**{**_without_key(row), "outcome": CheckOutcome(row["outcome"]), "reason": _reason(row)})


def transition_from_row(row: Row) -> CheckTransition:
    states = {"from_state": CheckState(row["from_state"]), "to_state": CheckState(row["to_state"])}
    fields = {name: value for name, value in _without_key(row).items() if name != "number"}
    return CheckTransition(**{**fields, **states, "reason": _reason(row)})


def _key(change: CheckChange) -> dict[str, Any]:
    return {"check_id": change.check.id, "tenant_id": change.check.tenant_id}


def _without_key(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("check_id", "tenant_id")}


def _reason(row: Row) -> DownReason | None:
    return None if row["reason"] is None else DownReason(row["reason"])


def _text(reason: DownReason | None) -> str | None:
    return None if reason is None else reason.value


def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return lists by name of column, with the plural of the name, as the blocks of PostgreSQL take them."""
    return {f"{name}s": [row[name] for row in rows] for name in rows[0]}
