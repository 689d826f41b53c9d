"""Compares the schedules of a file with those on a server: which are created, updated and deleted, and what changes in each.

A file owns the schedules that have its name in the label `everbeat.file`. Only these are deleted when they are no longer in the
file. A schedule of another file is a conflict, because the two files would replace each other's changes forever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from everbeat.core.definitions import definition_from_spec, parse_definition
from everbeat.core.errors import FieldError, InvalidInput
from everbeat.core.hooks import shown_hooks
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.schedules import Spec
from everbeat.core.target_secrets import REDACTED, shown_target
from everbeat.core.timeline import compile_rule

FILE_LABEL = "everbeat.file"
SHOWN_TICKS = 3

_MERGED = ("labels", "target", "retry", "dst", "calendars")
_TRIGGER_FIELDS = ("cron", "every_seconds", "rrule", "at")
_RULE_FIELDS = frozenset({*_TRIGGER_FIELDS, "anchor", "timezone", "dst", "calendars", "starts_at", "ends_at"})
_MAX_ERRORS = 100
_ABSENT = object()


class ChangeKind(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class FieldChange(NamedTuple):
    """A field with its old and its new value. None: not set."""

    field: str
    old: Any
    new: Any


class ScheduleChange(NamedTuple):
    """A change of one schedule. The next ticks are those of the rule, without calendars."""

    kind: ChangeKind
    name: str
    fields: tuple[FieldChange, ...] = ()
    old_ticks: tuple[datetime, ...] = ()
    new_ticks: tuple[datetime, ...] = ()


class ScheduleFile(NamedTuple):
    """The owner and the schedules of a file. In `definitions`, the defaults of the file and the label are merged."""

    owner: str
    definitions: dict[str, dict[str, Any]]
    specs: dict[str, Spec]


class ChangePlan(NamedTuple):
    """What is different. `to_write`: the definitions to send, also those with secrets, which cannot be compared.

    `conflicts`: the names of schedules that another file owns, and that file. `prunable`: names that only --prune deletes.
    """

    changes: tuple[ScheduleChange, ...]
    unchanged: int
    to_write: tuple[str, ...]
    conflicts: Mapping[str, str]
    prunable: tuple[str, ...]

    def count(self, kind: ChangeKind) -> int:
        return sum(change.kind is kind for change in self.changes)


def read_schedule_file(data: Any, default_owner: str) -> ScheduleFile:
    """Validate the schedules of a file; for its alert rules see alert_plans.py. Raises InvalidInput with all errors."""
    schedules = data.get("schedules", [] if "alerts" in data else None) if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(schedules, list):
        raise InvalidInput.of("schedules", "the file must be an object with a list `schedules`, or a list `alerts`")
    if unknown := sorted(set(data) - {"owner", "defaults", "schedules", "alerts", "$schema"}):
        raise InvalidInput.of(str(unknown[0]), "is unknown; a file has owner, defaults, schedules and alerts")
    owner = data.get("owner", default_owner)
    if not isinstance(owner, str) or not is_name(owner):
        raise InvalidInput.of("owner", NAME_MESSAGE)
    defaults = data.get("defaults") or {}
    if not isinstance(defaults, Mapping):
        raise InvalidInput.of("defaults", "must be an object with fields of a schedule")
    found, errors = ScheduleFile(owner, {}, {}), list[FieldError]()
    for index, each in enumerate(schedules):
        where = f"schedules[{index}]"
        try:
            _add(found, _merged(defaults, each, where), where)
        except InvalidInput as error:
            name = f" ({each['name']})" if isinstance(each, Mapping) and "name" in each else ""
            errors += [FieldError(f"{where}{name}.{one.field}", one.message) for one in error.errors]
    if errors:
        raise InvalidInput(*errors[:_MAX_ERRORS])
    return ScheduleFile(owner, found.definitions, found.specs)


def _merged(defaults: Mapping[str, Any], given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidInput.of(where, "must be an object with the fields of a schedule")
    has_trigger = any(field in given for field in _TRIGGER_FIELDS)
    merged = {key: value for key, value in defaults.items() if not (has_trigger and key in _TRIGGER_FIELDS)} | dict(given)
    for field in _MERGED:
        if isinstance(defaults.get(field), Mapping) and isinstance(given.get(field), Mapping):
            merged[field] = {**defaults[field], **given[field]}
    return {key: json_value(value) for key, value in merged.items()}


def json_value(value: Any) -> Any:
    """Return the value as JSON would have it. YAML and TOML have times."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidInput.of("at", f"{value.isoformat()} has no offset; write it with one, as in 2026-11-01T02:00:00Z")
        return value.astimezone(UTC).isoformat()
    if isinstance(value, Mapping):
        return {str(key): json_value(one) for key, one in value.items()}
    return [json_value(one) for one in value] if isinstance(value, list) else value


def _add(file: ScheduleFile, definition: dict[str, Any], where: str) -> None:
    labels = definition.get("labels", {})
    if isinstance(labels, Mapping):
        definition["labels"] = {**labels, FILE_LABEL: file.owner}
    spec = parse_definition(definition)
    compile_rule(
        msgspec.structs.replace(spec.rule, anchor=spec.rule.anchor or datetime.now(UTC), exclude=(), only=()), None, {}
    )
    if spec.name in file.specs:
        raise InvalidInput.of("name", f"{spec.name} occurs twice in the file")
    file.definitions[spec.name] = definition
    file.specs[spec.name] = spec


def plan_changes(
    file: ScheduleFile, existing: Sequence[Mapping[str, Any]], now: datetime, *, prune: bool = False, take_over: bool = False
) -> ChangePlan:
    """Compare the file with the schedules on the server, given as in responses of the HTTP API."""
    by_name = {one["name"]: one for one in existing}
    changes, to_write, conflicts, unchanged = list[ScheduleChange](), list[str](), dict[str, str](), 0
    for name, spec in file.specs.items():
        current = by_name.get(name)
        if current is None:
            changes.append(ScheduleChange(ChangeKind.CREATE, name, new_ticks=next_ticks(spec, now)))
            to_write.append(name)
            continue
        owner = current["labels"].get(FILE_LABEL)
        if owner not in (None, file.owner) and not take_over:
            conflicts[name] = owner
            continue
        wanted = shown_definition(spec)
        fields = _differences(wanted, current, "enabled" in file.definitions[name])
        if fields:
            changes.append(_update(name, fields, spec, current, now))
        unchanged += not fields
        if fields or _has_secrets(wanted):
            to_write.append(name)
    owned = [one["name"] for one in existing if one["labels"].get(FILE_LABEL) == file.owner and one["name"] not in file.specs]
    if prune:
        changes += [ScheduleChange(ChangeKind.DELETE, name) for name in owned]
    return ChangePlan(tuple(changes), unchanged, tuple(to_write), conflicts, () if prune else tuple(owned))


def _update(
    name: str, fields: tuple[FieldChange, ...], spec: Spec, current: Mapping[str, Any], now: datetime
) -> ScheduleChange:
    if not any(change.field.partition(".")[0] in _RULE_FIELDS for change in fields):
        return ScheduleChange(ChangeKind.UPDATE, name, fields)
    known = {field: current[field] for field in ("name", "target", *_RULE_FIELDS) if current.get(field) is not None}
    try:
        old = next_ticks(parse_definition(known), now)
    except InvalidInput:  # the schedule on the server is faulty, or of a newer version
        old = ()
    return ScheduleChange(ChangeKind.UPDATE, name, fields, old, next_ticks(spec, now))


def shown_definition(spec: Spec) -> dict[str, Any]:
    """Return the definition as the server would show it."""
    return definition_from_spec(msgspec.structs.replace(spec, target=shown_target(spec.target), hooks=shown_hooks(spec.hooks)))


def _differences(wanted: Mapping[str, Any], current: Mapping[str, Any], is_enabled_given: bool) -> tuple[FieldChange, ...]:
    changes: list[FieldChange] = []
    for field in (*_TRIGGER_FIELDS, *(name for name in wanted if name not in _TRIGGER_FIELDS)):
        old, new = current.get(field, _ABSENT), wanted.get(field, _ABSENT)
        if field == "enabled" and not is_enabled_given:
            continue
        if field == "anchor" and new is _ABSENT:  # the server has set it at the creation
            continue
        if old is _ABSENT and new is _ABSENT:
            continue
        changes += field_changes(field, None if old is _ABSENT else old, None if new is _ABSENT else new)
    return tuple(changes)


def field_changes(field: str, old: Any, new: Any) -> list[FieldChange]:
    """Return the difference of a field, and for an object those of its fields."""
    if isinstance(old, Mapping) and isinstance(new, Mapping) and field != "payload":
        names = [*old, *(name for name in new if name not in old)]
        return [change for name in names for change in field_changes(f"{field}.{name}", old.get(name), new.get(name))]
    return [] if old == new else [FieldChange(field, old, new)]


def _has_secrets(wanted: Mapping[str, Any]) -> bool:
    return REDACTED in str(wanted["target"]) or REDACTED in str(wanted["hooks"])


def next_ticks(spec: Spec, now: datetime) -> tuple[datetime, ...]:
    rule = msgspec.structs.replace(spec.rule, anchor=spec.rule.anchor or now, exclude=(), only=())
    timeline, ticks, tick = compile_rule(rule, None, {}), list[datetime](), now
    for _ in range(SHOWN_TICKS):
        following = timeline.next_tick(tick)
        if following is None:
            break
        ticks.append(following)
        tick = following
    return tuple(ticks)


# Export


_STATE_FIELDS = frozenset(
    {
        *("id", "status", "next_tick_at", "last_tick_at", "revision", "partition", "trigger_text", "fault", "note"),
        *("created_at", "updated_at"),
    }
)


def exported(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schedule of a response as a file would define it: without its state and without default values."""
    definition = {field: value for field, value in found.items() if field not in _STATE_FIELDS and value is not None}
    definition["labels"] = {key: value for key, value in definition["labels"].items() if key != FILE_LABEL}
    trigger = {field: definition[field] for field in (*_TRIGGER_FIELDS, "anchor") if field in definition}
    plain = {"name": definition["name"], **trigger, "target": definition["target"]}
    defaults = definition_from_spec(parse_definition(plain))
    rest = {field: value for field, value in definition.items() if field not in plain and value != defaults.get(field)}
    return {**plain, **rest}


def redacted_headers(definition: Mapping[str, Any]) -> list[str]:
    """Return the names of headers whose values are secret, and so are not part of an export."""
    headers = definition["target"].get("headers") or {}
    return [name for name, value in headers.items() if value == REDACTED]
