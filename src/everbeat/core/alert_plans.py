"""Compares the alert rules of a file with those on a server: which are created, updated and deleted, and what changes in each.

Ownership is that of schedules (change_plans.py): the rules of a file have its owner in the label `everbeat.file`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from everbeat.core.alerts import AlertInput, definition_errors, shown_alert
from everbeat.core.change_plans import FILE_LABEL, ChangeKind, FieldChange, field_changes, json_value
from everbeat.core.definitions import convert, rfc3339
from everbeat.core.errors import FieldError, InvalidInput
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.target_secrets import REDACTED

_FIELDS = AlertInput.__struct_fields__
_ALWAYS_EXPORTED = ("when", "notify")


class FileAlert(NamedTuple):
    """A rule of a file, with the label of the file: as it is sent, and decoded."""

    definition: dict[str, Any]
    given: AlertInput


class AlertChange(NamedTuple):
    """A change of one alert rule."""

    kind: ChangeKind
    name: str
    fields: tuple[FieldChange, ...] = ()


class AlertPlan(NamedTuple):
    """What is different. `to_write`: the rules to send by name. `conflicts` and `prunable`: as in plans of schedules."""

    changes: tuple[AlertChange, ...]
    unchanged: int
    to_write: Mapping[str, dict[str, Any]]
    conflicts: Mapping[str, str]
    prunable: tuple[str, ...]


def read_alerts(entries: Any, owner: str) -> dict[str, FileAlert]:
    """Validate the alert rules of a file. Raises InvalidInput with the errors of all rules."""
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise InvalidInput.of("alerts", "must be a list of alert rules")
    found: dict[str, FileAlert] = {}
    errors: list[FieldError] = []
    for index, entry in enumerate(entries):
        where = f"alerts[{index}]"
        try:
            name, rule = _read(entry, owner)
            if name in found:
                raise InvalidInput.of("name", f"{name} occurs twice in the file")
            found[name] = rule
        except InvalidInput as error:
            name = f" ({entry['name']})" if isinstance(entry, Mapping) and "name" in entry else ""
            errors += [FieldError(f"{where}{name}.{one.field}", one.message) for one in error.errors]
    if errors:
        raise InvalidInput(*errors)
    return found


def _read(entry: Any, owner: str) -> tuple[str, FileAlert]:
    if not isinstance(entry, Mapping):
        raise InvalidInput.of("name", "must be an object with the fields of an alert rule")
    name = entry.get("name")
    if not isinstance(name, str) or not is_name(name):
        raise InvalidInput.of("name", NAME_MESSAGE)
    definition = {key: json_value(value) for key, value in entry.items() if key != "name"}
    labels = definition.get("labels", {})
    if isinstance(labels, Mapping):
        definition["labels"] = {**labels, FILE_LABEL: owner}
    given = convert(definition, AlertInput)
    if errors := definition_errors(given):
        raise InvalidInput(*errors)
    return name, FileAlert(definition, given)


def plan_alerts(
    rules: Mapping[str, FileAlert],
    owner: str,
    existing: Sequence[Mapping[str, Any]],
    *,
    prune: bool = False,
    take_over: bool = False,
) -> AlertPlan:
    """Compare the rules of a file with those on the server, given as in responses of the HTTP API."""
    by_name = {one["name"]: one for one in existing}
    changes: list[AlertChange] = []
    to_write: dict[str, dict[str, Any]] = {}
    conflicts: dict[str, str] = {}
    unchanged = 0
    for name, rule in rules.items():
        current = by_name.get(name)
        if current is None:
            changes.append(AlertChange(ChangeKind.CREATE, name))
            to_write[name] = rule.definition
            continue
        other = _labels(current).get(FILE_LABEL)
        if other not in (None, owner) and not take_over:
            conflicts[name] = other
            continue
        # A rule that was disabled by hand stays disabled, unless the file says more.
        definition = {"enabled": current["enabled"], **rule.definition}
        wanted = _shown(msgspec.structs.replace(rule.given, enabled=definition["enabled"]))
        if fields := _differences(wanted, current):
            changes.append(AlertChange(ChangeKind.UPDATE, name, fields))
        unchanged += not fields
        if fields or REDACTED in str(wanted["notify"]):
            to_write[name] = definition
    owned = [one["name"] for one in existing if _labels(one).get(FILE_LABEL) == owner and one["name"] not in rules]
    if prune:
        changes += [AlertChange(ChangeKind.DELETE, name) for name in owned]
    return AlertPlan(tuple(changes), unchanged, to_write, conflicts, () if prune else tuple(owned))


def _labels(found: Mapping[str, Any]) -> Mapping[str, str]:
    labels: Mapping[str, str] = found.get("labels", {})
    return labels


def _shown(given: AlertInput) -> dict[str, Any]:
    """Return the rule as responses show it, with times that can be compared."""
    shown: dict[str, Any] = msgspec.to_builtins(shown_alert(given), builtin_types=(datetime,))
    return shown


def _differences(wanted: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[FieldChange, ...]:
    try:
        known = _shown(convert({field: current[field] for field in _FIELDS if field in current}, AlertInput))
    except InvalidInput:  # the server is newer, and the rule has values that this version does not know
        known = {}
    return tuple(
        FieldChange(change.field, _printable(change.old), _printable(change.new))
        for field in _FIELDS
        for change in field_changes(field, known.get(field), wanted[field])
    )


def _printable(value: Any) -> Any:
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, Mapping):
        return {key: _printable(one) for key, one in value.items()}
    return [_printable(one) for one in value] if isinstance(value, list) else value


def exported_alert(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rule of a response as a file would define it: without its state and without default values."""
    minimal = convert({field: found[field] for field in _ALWAYS_EXPORTED}, AlertInput)
    defaults = _shown(minimal)
    definition = {field: found[field] for field in _FIELDS if field in found}
    definition["labels"] = {key: value for key, value in _labels(found).items() if key != FILE_LABEL}
    definition["match"] = {key: value for key, value in definition["match"].items() if value is not None}
    rest = {
        field: value
        for field, value in definition.items()
        if field not in _ALWAYS_EXPORTED and value != defaults[field] and value != {}
    }
    notify = [{key: value for key, value in target.items() if value is not None} for target in definition["notify"]]
    return {"name": found["name"], "when": definition["when"], "notify": notify, **rest}
