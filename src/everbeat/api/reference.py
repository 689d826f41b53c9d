"""The reference of the HTTP API in docs, written from the OpenAPI document: `python -m everbeat.api.reference PAGE`.

The file keeps what people wrote; only what stands between its marks is written here.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everbeat.api.app import openapi_document

Schema = Mapping[str, Any]

_METHODS = ("get", "post", "put", "patch", "delete")
_MARKS = "<!-- {name}: written by everbeat.api.reference -->", "<!-- end of {name} -->"


def rendered(text: str, document: Mapping[str, Any]) -> str:
    """The page with its written parts brought up to date."""
    for name, lines in (("routes", _routes(document)), ("operations", _operations(document)), ("shapes", _shapes(document))):
        start, end = (mark.format(name=name) for mark in _MARKS)
        before, found, rest = text.partition(start)
        _, has_end, after = rest.partition(end)
        if not found or not has_end:
            raise SystemExit(f"the page has no place for {name}: it needs {start} and {end}")
        text = "".join((before, start, "\n\n", "\n".join(lines).strip(), "\n\n", end, after))
    return text


def _each(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Every operation, in the order of the tags."""
    found = [
        (path, method, methods[method])
        for path, methods in document["paths"].items()
        for method in _METHODS
        if method in methods
    ]
    order = [tag["name"] for tag in document["tags"]]
    yield from sorted(found, key=lambda one: (order.index(one[2]["tags"][0]), one[0], _METHODS.index(one[1])))


def _routes(document: Mapping[str, Any]) -> Iterator[str]:
    yield "| route | does | scope |"
    yield "|---|---|---|"
    for path, method, operation in _each(document):
        title = f"{method.upper()} {path}"
        yield f"| [`{title}`](#{_anchor(title)}) | {operation['summary']} | {_scope(operation)} |"


def _scope(operation: Mapping[str, Any]) -> str:
    security = operation.get("security") or []
    if not security:
        return "open"
    return ", ".join(f"`{one}`" for one in security[0].get("key", ())) or "any key"


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def _operations(document: Mapping[str, Any]) -> Iterator[str]:
    for path, method, operation in _each(document):
        yield f"### `{method.upper()} {path}`"
        yield ""
        yield f"{operation['summary']}. Scope: {_scope(operation)}."
        if "description" in operation:
            yield ""
            yield operation["description"]
        yield from _parameters(operation)
        yield from _body(operation)
        yield from _answers(operation)
        yield ""


def _parameters(operation: Mapping[str, Any]) -> Iterator[str]:
    if not operation["parameters"]:
        return
    yield from ("", "| parameter | in | type | meaning |", "|---|---|---|---|")
    for one in operation["parameters"]:
        meaning = one.get("description") or one["schema"].get("description", "")
        yield f"| `{one['name']}` | {one['in']} | {_type(one['schema'])} | {_cell(meaning)} |"


def _body(operation: Mapping[str, Any]) -> Iterator[str]:
    if "requestBody" not in operation:
        return
    content = operation["requestBody"]["content"]["application/json"]
    needed = "" if operation["requestBody"]["required"] else ", which may be left out"
    yield from ("", f"Body{needed}: {_type(content['schema'])}")
    for one in content.get("examples", {}).values():
        yield from _code(one["value"])


def _answers(operation: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "| status | answer |", "|---|---|")
    problems = []
    for status, answer in operation["responses"].items():
        content = answer.get("content", {})
        if list(content) == ["application/problem+json"]:
            problems.append(status)
            continue
        shape = "".join(f": {_type(one['schema'])}" for kind, one in content.items() if "problem" not in kind)
        yield f"| {status} | {_cell(answer['description']).removesuffix('.')}{shape} |"
    yield f"| {', '.join(problems)} | a [problem](errors.md) |"


def _shapes(document: Mapping[str, Any]) -> Iterator[str]:
    used = _used(document)
    for name, schema in sorted(document["components"]["schemas"].items()):
        if name not in used:
            continue
        yield f"### Shape `{name}`"  # so that no other heading has its anchor
        yield ""
        yield from ([schema["description"], ""] if "description" in schema else [])
        if "enum" in schema:
            yield "One of " + ", ".join(f"`{one}`" for one in schema["enum"]) + "."
        elif schema.get("properties"):
            yield from _fields(schema)
        else:
            yield "Without fields."
        yield ""


def _used(document: Mapping[str, Any]) -> set[str]:
    """The components that bodies and answers lead to; those of queries are told as parameters."""
    components = document["components"]["schemas"]
    used: set[str] = set()
    waiting = [json.dumps([one.get("requestBody"), one["responses"]]) for _, _, one in _each(document)]
    while waiting:
        for name in set(re.findall(r'"#/components/schemas/(\w+)"', waiting.pop())) - used:
            used.add(name)
            waiting.append(json.dumps(components[name]))
    return used


def _fields(schema: Schema) -> Iterator[str]:
    yield from ("| field | type | default |", "|---|---|---|")
    for name, part in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else "absent"
        if "default" in part and default == "absent":
            default = f"`{json.dumps(part['default'])}`"
        yield f"| `{name}` | {_type(part)} | {_cell(default)} |"


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_anchor('Shape ' + name)})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}{_bounds(schema, 'minItems', 'maxItems')}"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"object of {_type(inner)}" if isinstance(inner, dict) else "object"
    if kind in ("integer", "number"):
        return f"{kind}{_bounds(schema, 'minimum', 'maximum')}"
    if kind == "string":
        return {"date-time": "time", "uuid": "id"}.get(schema.get("format", ""), "text") + _bounds(
            schema, "minLength", "maxLength"
        )
    return str(schema.get("const") or kind or "any JSON")


def _bounds(schema: Schema, low: str, high: str) -> str:
    if low in schema and high in schema:
        return f", {schema[low]:,} to {schema[high]:,}"
    if high in schema:
        return f", up to {schema[high]:,}"
    return f", from {schema[low]:,}" if low in schema else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(value: Any) -> Iterator[str]:
    yield from ("", "```json", json.dumps(value, ensure_ascii=False), "```")


def main(arguments: Sequence[str]) -> None:
    (name,) = arguments
    page = Path(name)
    page.write_text(rendered(page.read_text(encoding="utf-8"), openapi_document()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
