"""Example responses for the OpenAPI document. They are generated from the schemas, so they are complete and up to date."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

_ID = "01a1e231-932d-71cb-8dab-e37075a3e37c"
_TIME = "2026-11-16T07:00:00.000000Z"
_LOCAL = "2026-11-16T02:00:00-05:00"
_BY_FORMAT = {"uuid": _ID, "date-time": _TIME, "uri": "urn:everbeat:problem:not-found"}
# Values for fields by name, used where the schema does not determine one.
_BY_NAME: dict[str, Any] = {
    **{"name": "nightly-report", "schedule": "nightly-report", "type": "nightly-report", "queue": "reports", "task": "report"},
    **{"cron": "0 2 * * *", "timezone": "America/New_York", "trigger_text": "At 02:00 every day, America/New_York"},
    **{"description": "At 02:00 every day, America/New_York", "worker": "host-1:4711", "message": "fetching", "local": _LOCAL},
    **{"explanation": "It will run at 2026-11-16 02:00:00-05:00.", "fact": "at", "value": _TIME, "text": "page 4 of 10"},
    **{"payload": {"account": 7}, "result": {"rows": 12}, "labels": {"team": "billing"}, "state": "completed"},
    **{"priority": 100, "max_attempts": 3, "timeout_seconds": 3600, "lease_seconds": 30, "misfire_grace_seconds": 3600},
    **{"attempt": 1, "attempts": 3, "duration_ms": 20.331, "lag_ms": 4.213, "limit": 50, "version": "0.1.0", "node": _ID},
    **{"roles": ["api", "scheduler"], "dates": ["2026-12-24"], "weekdays": ["SAT", "SUN"], "yearly": ["01-01"]},
    **{"reason": "all 3 attempts failed (last outcome: failed)", "kind": "TimeoutError", "rrule": "FREQ=DAILY"},
    **{"fraction": 0.4, "count": 1, "revision": 1, "partition": 25, "warnings": [], "error": None, "fault": None, "note": None},
    **{"next_cursor": None, "url": "https://example.com/hook", "skipped": {"overlap": 2}, "schedules": {"active": 100}},
    **{
        "lag_seconds": 0.000698,
        "fired_per_second": 44.988,
        "capacity": 1.0,
        "ticks_fired_per_second": 89.925,
        "traceparent": None,
    },
}
# Nullable fields whose example is null.
_NULLS = frozenset({"at", "anchor", "every_seconds", "rrule", "starts_at", "ends_at", "until", "lease_until", "cancel_at"})
_MAX_DEPTH = 8


def example_of(schema: Schema, components: Mapping[str, Schema], name: str = "", depth: int = 0) -> Any:
    """Return an example value for a schema."""
    if "$ref" in schema:
        return example_of(components[schema["$ref"].rpartition("/")[2]], components, name, depth + 1)
    if "enum" in schema:
        return next((one for one in schema["enum"] if one == _BY_NAME.get(name)), schema["enum"][0])
    if "const" in schema:
        return schema["const"]
    if choices := schema.get("anyOf"):
        return _one_of(choices, components, name, depth)
    if name in _BY_NAME and _fits(schema, _BY_NAME[name]):
        return _BY_NAME[name]
    match schema.get("type"):
        case "object":
            return _object(schema, components, depth)
        case "array":
            return [] if depth > _MAX_DEPTH else [example_of(schema.get("items", {}), components, name, depth + 1)]
        case "string":
            return _BY_FORMAT.get(schema.get("format", ""), "…")
        case "integer" | "number":
            return max(schema.get("minimum", 0), min(1, schema.get("maximum", 1)))
        case "boolean":
            return False
        case _:
            return None


def _one_of(choices: list[Schema], components: Mapping[str, Schema], name: str, depth: int) -> Any:
    is_nullable = any(one.get("type") == "null" for one in choices)
    if is_nullable and (name in _NULLS or (name in _BY_NAME and _BY_NAME[name] is None)):
        return None
    return example_of(next(one for one in choices if one.get("type") != "null"), components, name, depth)


def _object(schema: Schema, components: Mapping[str, Schema], depth: int) -> dict[str, Any]:
    wanted = schema.get("required", ())
    return {
        field: example_of(part, components, field, depth + 1)
        for field, part in schema.get("properties", {}).items()
        if field in wanted or "default" in part or field == "cron"
    }


_TYPES: dict[Any, tuple[type, ...]] = {
    **{"object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,)},
    **{"integer": (int,), "number": (int, float), "null": (type(None),)},
}


def _fits(schema: Schema, value: Any) -> bool:
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        return False
    if kind == "array" and "$ref" in schema.get("items", {}) and value:
        return False
    return "format" not in schema and (kind is None or isinstance(value, _TYPES[kind]))
