"""Constraints that are validated in addition to the msgspec types, added to the schemas of the OpenAPI document."""

from __future__ import annotations

from typing import Any

from everbeat.api.paging import NAME_PATTERN
from everbeat.core.calendars import MAX_DESCRIPTION_LENGTH, WEEKDAYS
from everbeat.core.ics import MAX_BYTES, MAX_ENTRIES
from everbeat.core.rules import TRIGGER_FIELDS
from everbeat.core.triggers import cron_fields, rrule_text

NAME: dict[str, Any] = {"pattern": NAME_PATTERN, "minLength": 1, "maxLength": 200}
_NAME_OR_NULL = {"anyOf": [{"type": "string", **NAME}, {"type": "null"}], "default": None}
# Like core/names.py: no control characters except tab and newline.
_PLAIN_TEXT = {"pattern": r"^[^\u0000-\u0008\u000b-\u001f\u007f]*$"}
_KEY = {"minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
_LABEL = {"type": "string", "maxLength": 256, **_PLAIN_TEXT}
_WEEKDAY = "^(" + "|".join("".join(f"[{letter}{letter.lower()}]" for letter in day) for day in WEEKDAYS) + ")$"

Schema = dict[str, Any]


def refine(components: dict[str, Schema]) -> None:
    for name, component in components.items():
        properties = component.get("properties", {})
        if component.get("additionalProperties") is False and set(TRIGGER_FIELDS.values()) <= set(properties):
            _refine_trigger(properties)
            _refine_definition(properties)
            if "SchedulePatch" not in name:
                component["oneOf"] = [_only_trigger(field) for field in TRIGGER_FIELDS.values()]
    if "WorkerTarget" not in components:  # a node that serves only health and metrics
        return
    _refine_targets(components)
    _refine_tasks(components)
    _refine_workers(components)
    _refine_others(components)


def _refine_trigger(properties: Schema) -> None:
    _text_of(properties["cron"]).update(minLength=1, maxLength=cron_fields.MAX_LENGTH)
    _text_of(properties["rrule"]).update(minLength=1, maxLength=rrule_text.MAX_LENGTH)
    properties["timezone"].update(minLength=1, maxLength=100)


def _refine_definition(properties: Schema) -> None:
    if "name" not in properties:
        return
    properties["name"].update(NAME)
    properties["description"].update(maxLength=2000, **_PLAIN_TEXT)
    _refine_labels(properties["labels"])


def _refine_labels(labels: Schema) -> None:
    labels.update(maxProperties=32, propertyNames=NAME)
    labels["additionalProperties"] = _LABEL


def _refine_targets(components: dict[str, Schema]) -> None:
    for kind in ("type", "queue"):
        components["WorkerTarget"]["properties"][kind].update(NAME)
    http = components["HttpTarget"]["properties"]
    http["url"].update(pattern=r"^https?://[^\u0000-\u0020\u007f@/?#:\\\[\]]+(:[0-9]{1,4})?([/?#][^\u0000-\u0020\u007f]*)?$")
    http["success"].update(pattern="^[1-5](xx|[0-9][0-9])(,[1-5](xx|[0-9][0-9])){0,9}$")
    http["headers"].update(maxProperties=50, propertyNames={"pattern": "^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$"})
    http["headers"]["additionalProperties"] = {
        "type": "string",
        "maxLength": 4096,
        "pattern": r"^[^\u0000-\u001f\u007f]*$",
    }
    retry = components["Retry"]["properties"]
    retry["base_seconds"].update(minimum=0, maximum=86_400)
    retry["factor"].update(minimum=1, maximum=100)
    retry["max_seconds"].update(minimum=0, maximum=366 * 86_400)


def _refine_tasks(components: dict[str, Schema]) -> None:
    for component in ("TaskInput", "TaskSubmission"):
        properties = components[component]["properties"]
        properties["type"].update(NAME)
        properties["queue"] = _NAME_OR_NULL
        properties["payload"]["default"] = {}
        if "fair_key" in properties:
            properties["fair_key"] = _NAME_OR_NULL
        _refine_labels(properties["labels"])
    _text_of(components["TaskInput"]["properties"]["idempotency_key"]).update(_KEY)


def _refine_workers(components: dict[str, Schema]) -> None:
    for field in ("queues", "types"):
        _items_of(components["LeaseClaimRequest"]["properties"][field]).update(NAME)
    for component in (
        "LeaseClaimRequest",
        "LeaseHeartbeatRequest",
        "LeaseCompleteRequest",
        "LeaseFailRequest",
        "LeaseReleaseRequest",
    ):
        components[component]["properties"]["worker"].update(_PLAIN_TEXT)


def _refine_others(components: dict[str, Schema]) -> None:
    for field in ("exclude", "only"):
        _items_of(components["CalendarFilter"]["properties"][field]).update(NAME)
    for field in ("queue", "type", "schedule"):
        components["DeadLetterFilter"]["properties"][field] = _NAME_OR_NULL
    for component in ("AlertInput", "CheckInput"):
        _refine_labels(components[component]["properties"]["labels"])
    _text_of(components["PauseInput"]["properties"]["note"]).update(_PLAIN_TEXT)
    calendar = components["CalendarInput"]["properties"]
    _text_of(calendar["description"]).update(maxLength=MAX_DESCRIPTION_LENGTH, **_PLAIN_TEXT)
    _text_of(calendar["ics"]).update(maxLength=MAX_BYTES)
    for field in ("dates", "weekdays", "yearly", "intervals"):
        _list_of(calendar[field]).update(maxItems=MAX_ENTRIES)
    _items_of(calendar["weekdays"]).update(pattern=_WEEKDAY)
    _items_of(calendar["yearly"]).update(pattern="^(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$")


def _parts_of(schema: Schema) -> tuple[Schema, ...]:
    """Return a schema and the alternatives in its anyOf."""
    return schema, *schema.get("anyOf", ())


def _text_of(schema: Schema) -> Schema:
    return next((one for one in _parts_of(schema) if one.get("type") == "string"), {})


def _list_of(schema: Schema) -> Schema:
    return next((one for one in _parts_of(schema) if one.get("type") == "array"), {})


def _items_of(schema: Schema) -> Schema:
    items: Schema = _list_of(schema).get("items", {})
    return items


def _only_trigger(field: str) -> Schema:
    """Return a schema that requires this trigger and does not allow null."""
    type_ = "number" if field == "every_seconds" else "string"
    return {"required": [field], "properties": {field: {"type": type_}}}
