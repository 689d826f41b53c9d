"""What an edit of a schedule changed, for the audit log: old and new values of limited size, without payloads and targets."""

from __future__ import annotations

from typing import Any

import msgspec

from everbeat.core.change_plans import FieldChange, field_changes
from everbeat.core.definitions import definition_from_spec
from everbeat.core.schedules import Spec

MAX_CHANGES = 50
MAX_VALUE_CHARS = 200
# Their values may contain secrets, so only the fact that they changed is recorded.
_UNRECORDED = ("target", "hooks", "payload")


def recorded_changes(old: Spec, new: Spec) -> list[dict[str, Any]]:
    """Return the changed fields with both values, and without values those that may contain secrets."""
    before, after = (_recorded_definition(spec) for spec in (old, new))
    names = [*before, *(name for name in after if name not in before)]
    found = [each for name in names for each in field_changes(name, before.get(name), after.get(name))]
    unrecorded = [{"field": name} for name in _UNRECORDED if getattr(old, name) != getattr(new, name)]
    return [*(_recorded(each) for each in found[:MAX_CHANGES]), *unrecorded]


def _recorded_definition(spec: Spec) -> dict[str, Any]:
    definition = definition_from_spec(msgspec.structs.replace(spec, payload=b"null"))
    return {name: value for name, value in definition.items() if name not in _UNRECORDED}


def _recorded(change: FieldChange) -> dict[str, Any]:
    return {"field": change.field[:MAX_VALUE_CHARS], "old": _limited(change.old), "new": _limited(change.new)}


def _limited(value: Any) -> Any:
    """Return the value, or the beginning of its JSON if it is long."""
    text = msgspec.json.encode(value).decode()
    return value if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"
