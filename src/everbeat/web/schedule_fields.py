"""The form of a schedule: from a schedule to fields, and from fields to a definition or a patch of the API."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from everbeat.core.definitions import TriggerInput, convert
from everbeat.core.errors import FieldError, InvalidInput
from everbeat.core.responses import schedule_response
from everbeat.core.rules import TRIGGER_FIELDS, Rule
from everbeat.core.schedules import Schedule
from everbeat.core.targets import HttpTarget, WorkerTarget
from everbeat.web.formats import iso, json_text
from everbeat.web.inputs import json_of, optional_moment

# The value of the choice, its label, and the cron expression that it stands for.
PRESETS = (
    ("* * * * *", "Every minute"),
    ("*/15 * * * *", "Every 15 minutes"),
    ("0 * * * *", "Every hour"),
    ("0 2 * * *", "Every day at 02:00"),
    ("0 9 * * MON-FRI", "Every weekday at 09:00"),
    ("0 3 * * SUN", "Every Sunday at 03:00"),
    ("0 4 1 * *", "On the 1st of every month at 04:00"),
    ("0 4 L * *", "On the last day of every month at 04:00"),
)
TRIGGERS = (("cron", "Cron expression"), ("every_seconds", "Interval"), ("rrule", "Recurrence rule (RRULE)"), ("at", "Once"))

_WHOLE = ("priority", "max_attempts", "max_concurrent")
_NUMBERS = ("timeout_seconds", "misfire_grace_seconds", "jitter_seconds")
_TEXTS = ("description", "overlap", "catch_up", "timezone")


def fields_of(schedule: Schedule) -> dict[str, str]:
    """Return a schedule as the fields of the form."""
    shown, rule, spec = schedule_response(schedule), schedule.spec.rule, schedule.spec
    fields = {
        "name": spec.name,
        "description": spec.description,
        "trigger": TRIGGER_FIELDS[rule.kind],
        TRIGGER_FIELDS[rule.kind]: rule.expression,
        "timezone": rule.timezone,
        "payload": json_text(spec.payload),
        "overlap": spec.overlap.value,
        "catch_up": spec.catch_up.value,
        "priority": str(spec.priority),
        "max_attempts": str(spec.max_attempts),
        "max_concurrent": "" if spec.max_concurrent is None else str(spec.max_concurrent),
        **{name: f"{getattr(spec, name):g}" for name in _NUMBERS},
        "dst_gap": rule.gap.value,
        "dst_fold": rule.fold.value,
        "exclude": " ".join(rule.exclude),
        "only": " ".join(rule.only),
        "starts_at": iso(rule.starts_at),
        "ends_at": iso(rule.ends_at),
        "labels": "\n".join(f"{key}={value}" for key, value in spec.labels.items()),
        "kind": spec.target_kind,
    }
    if isinstance(spec.target, WorkerTarget):
        fields |= {"queue": spec.target.queue, "type": spec.target.type}
    elif isinstance(spec.target, HttpTarget) and spec.target.url is not None:
        fields |= {"url": shown.target.url or "", "method": spec.target.method}  # type: ignore[union-attr]
    else:
        fields["kind"] = "json"
        fields["target"] = json_text(shown.target)
    return fields


def definition_of(fields: Mapping[str, str], existing: Schedule | None = None) -> dict[str, Any]:
    """Return the definition that the fields describe: of a new schedule, or what to change in an existing one."""
    errors: list[FieldError] = []
    found: dict[str, Any] = {name: fields.get(name, "").strip() for name in _TEXTS if name in fields}
    if not found.get("timezone"):
        found["timezone"] = "UTC"
    found |= _trigger(fields)
    found |= _numbers(fields, errors)
    if existing is not None and fields.get("max_concurrent", "") == "":
        found["max_concurrent"] = None
    found["calendars"] = {"exclude": _names(fields.get("exclude", "")), "only": _names(fields.get("only", ""))}
    found["dst"] = {name: fields[f"dst_{name}"] for name in ("gap", "fold") if fields.get(f"dst_{name}")}
    for name in ("starts_at", "ends_at"):
        found[name] = iso(optional_moment(fields, name, found["timezone"])) or None
    found["labels"] = _labels(fields.get("labels", ""), errors)
    found["target"] = _target(fields, existing)
    found["payload"] = json_of("payload", fields.get("payload", "").strip() or "{}")
    if existing is None:
        found["name"] = fields.get("name", "").strip()
    if errors:
        raise InvalidInput(*errors)
    return found


def rule_of(fields: Mapping[str, str]) -> Rule:
    """Return the rule that the fields describe, for the preview."""
    dst = {name: fields[f"dst_{name}"] for name in ("gap", "fold") if fields.get(f"dst_{name}")}
    given = {**_trigger(fields), "timezone": fields.get("timezone", "").strip() or "UTC", "dst": dst}
    zone = given["timezone"]
    return convert(given, TriggerInput).rule(
        exclude=tuple(_names(fields.get("exclude", ""))),
        only=tuple(_names(fields.get("only", ""))),
        starts_at=optional_moment(fields, "starts_at", zone),
        ends_at=optional_moment(fields, "ends_at", zone),
    )


def new_fields(now: datetime) -> dict[str, str]:
    """Return the fields of an empty form."""
    return {"trigger": "cron", "cron": "0 2 * * *", "timezone": "UTC", "kind": "worker", "queue": "default", "payload": "{}"}


def _trigger(fields: Mapping[str, str]) -> dict[str, Any]:
    kind = fields.get("trigger", "cron")
    text = fields.get(kind, "").strip() if kind in dict(TRIGGERS) else ""
    if not text:
        raise InvalidInput.of(kind, "is required")
    if kind == "every_seconds":
        return {kind: _number(kind, text, float)}
    if kind == "at":
        at = optional_moment({"at": text}, "at", fields.get("timezone", "").strip() or "UTC")
        return {kind: iso(None if at is None else at.astimezone(UTC))}
    return {kind: text}


def _numbers(fields: Mapping[str, str], errors: list[FieldError]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in (*_WHOLE, *_NUMBERS):
        text = fields.get(name, "").strip()
        if text:
            try:
                found[name] = _number(name, text, int if name in _WHOLE else float)
            except InvalidInput as error:
                errors.extend(error.errors)
    return found


def _number(name: str, text: str, kind: type[int] | type[float]) -> float:
    try:
        return kind(text)
    except ValueError:
        raise InvalidInput.of(name, "must be a number") from None


def _names(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _labels(text: str, errors: list[FieldError]) -> dict[str, str]:
    labels = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            labels[key.strip()] = value.strip()
        elif line.strip():
            errors.append(FieldError("labels", "must be lines such as team=billing"))
    return labels


def _target(fields: Mapping[str, str], existing: Schedule | None) -> Any:
    kind = fields.get("kind", "worker")
    if kind == "json":
        return json_of("target", fields.get("target", ""))
    if kind == "http":
        target: dict[str, Any] = {}
        if existing is not None and isinstance(existing.spec.target, HttpTarget):
            shown = schedule_response(existing).target
            target = {name: getattr(shown, name) for name in ("headers", "success", "retry_on", "mode")}
        return {**target, "kind": "http", "url": fields.get("url", "").strip(), "method": fields.get("method", "POST")}
    return {"kind": "worker", "queue": fields.get("queue", "").strip() or "default", "type": fields.get("type", "").strip()}
