"""The JSON Schema of the files of plan and apply, made from the schemas of the HTTP API.

Usage: python -m everbeat.cli.file_schema docs/reference/schedules.schema.json
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

from everbeat.api.app import openapi_document

_DEFINITION = "ScheduleDefinition"
_ALERT = "AlertInput"
_PREFIX = "#/components/schemas/"


def file_schema() -> dict[str, Any]:
    schemas = openapi_document()["components"]["schemas"]
    definitions = {name: _relinked(schemas[name]) for name in sorted(_used(schemas, _DEFINITION) | _used(schemas, _ALERT))}
    defaults = copy.deepcopy(definitions[_DEFINITION])
    for keyword in ("required", "oneOf", "anyOf", "allOf"):
        defaults.pop(keyword, None)
    _allow_parts(defaults)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Schedules and alert rules of Everbeat",
        "type": "object",
        "anyOf": [{"required": ["schedules"]}, {"required": ["alerts"]}],
        "additionalProperties": False,
        "properties": {
            "$schema": {"type": "string"},
            "owner": {
                "type": "string",
                "description": "The value of the label everbeat.file of all entries.",
            },
            "defaults": {**defaults, "description": "Fields of all schedules that do not set them."},
            "schedules": {"type": "array", "items": _item(definitions[_DEFINITION])},
            "alerts": {"type": "array", "items": _alert(definitions[_ALERT], definitions[_DEFINITION])},
        },
        "$defs": definitions,
    }


def _item(definition: dict[str, Any]) -> dict[str, Any]:
    """Return a schedule of a file: like a definition, but `defaults` can have every field except the name."""
    item = copy.deepcopy(definition)
    for keyword in ("oneOf", "anyOf", "allOf"):
        item.pop(keyword, None)
    _allow_parts(item)
    return {**item, "required": ["name"]}


def _alert(definition: dict[str, Any], schedule: dict[str, Any]) -> dict[str, Any]:
    """Return an alert rule of a file: like that of a request, with its name, which a request has in its path."""
    item = copy.deepcopy(definition)
    item["properties"] = {"name": schedule["properties"]["name"], **item["properties"]}
    return {**item, "required": ["name", *item["required"]]}


def _allow_parts(definition: dict[str, Any]) -> None:
    """Allow a part of a target, whose other fields are in the defaults, or in the schedules."""
    target = definition["properties"]["target"]
    target.pop("discriminator", None)
    target["anyOf"].append({"type": "object", "description": "A part of a target."})


def _used(schemas: dict[str, Any], name: str) -> set[str]:
    found, waiting = set[str](), [name]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting += [one for one in schemas if f'"{_PREFIX}{one}"' in json.dumps(schemas[current])]
    return found


def _relinked(schema: Any) -> Any:
    return json.loads(json.dumps(schema).replace(_PREFIX, "#/$defs/"))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(file_schema(), indent=2) + "\n", encoding="utf-8")
