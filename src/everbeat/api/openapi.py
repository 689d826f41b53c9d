"""The OpenAPI document, written from what each handler declares beside itself; schemas are those msgspec decodes with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Union

import msgspec
from litestar import Litestar
from litestar.routes import HTTPRoute

from everbeat.api.paging import NAME_PATTERN
from everbeat.api.problems import MEDIA_TYPE as PROBLEM_TYPE
from everbeat.api.problems import Problem
from everbeat.core.definitions import Definition
from everbeat.core.rules import TRIGGER_FIELDS
from everbeat.core.wire import TaskInput
from everbeat.version import __version__

JSON = "application/json"
_REF = "#/components/schemas/{name}"

PROBLEMS = {
    400: "Malformed: not JSON, not UTF-8, nested too deeply, a key twice, or no body where one is needed.",
    403: "The Host or Origin header names another site.",
    404: "There is no such thing, or it belongs to somebody else.",
    408: "The body took too long to arrive.",
    409: "The present state forbids it.",
    413: "The body or a part of it is too large.",
    415: "Not JSON, or compressed.",
    422: "Well-formed, but a value is wrong; `errors` names each field.",
    503: "The database is away; try again after `Retry-After` seconds.",
}

_HEADERS: dict[str, dict[str, Any]] = {
    "X-Request-Id": {"description": "Names the request in logs.", "required": True, "schema": {"type": "string"}},
    "Location": {"description": "Where the new thing is.", "required": True, "schema": {"type": "string"}},
    "ETag": {"description": "The revision, in quotes.", "required": True, "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds to wait.", "required": True, "schema": {"type": "integer", "minimum": 1}},
}


IDEMPOTENCY: Mapping[str, tuple[str, dict[str, Any]]] = {
    "Idempotency-Key": (
        "The same key gives the same answer for 24 hours; with another body it is refused.",
        {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    )
}


class Body(NamedTuple):
    type: Any
    examples: Mapping[str, Any] = {}
    is_required: bool = True


class Success(NamedTuple):
    """One good answer; no type means no body."""

    description: str
    type: Any = None
    headers: tuple[str, ...] = ()
    media_type: str = JSON
    links: Mapping[str, Any] = {}
    may_be_problem: bool = False


class Operation(NamedTuple):
    """What a handler promises. Problems that any such request can meet are added by themselves."""

    id: str
    tag: str
    summary: str
    answers: Mapping[int, Success]
    query: type[msgspec.Struct] | None = None
    body: Body | None = None
    headers: Mapping[str, tuple[str, dict[str, Any]]] = {}
    problems: tuple[int, ...] = ()


def documented(operation: Operation) -> dict[str, Any]:
    """The `opt` of a handler."""
    return {"operation": operation}


def loosened(name: str, type_: type[msgspec.Struct], required: tuple[str, ...] = ()) -> type[msgspec.Struct]:
    """The same struct with every other field left out at will, to document bodies that are completed before decoding."""
    fields = [
        (field.name, field.type)
        if field.name in required
        else (field.name, Union[field.type, msgspec.UnsetType], msgspec.UNSET)  # noqa: UP007
        for field in msgspec.structs.fields(type_)
    ]
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def without(name: str, type_: type[msgspec.Struct], left_out: str) -> type[msgspec.Struct]:
    """The same struct without a field, to document bodies in which it is refused."""
    fields: list[Any] = []
    for field in msgspec.structs.fields(type_):
        if field.name == left_out:
            continue
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        fields.append((field.name, field.type) if field.required else (field.name, field.type, default))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


class PathParameter(NamedTuple):
    description: str
    schema: dict[str, Any]


PATH_PARAMETERS = {
    "ref": PathParameter("The id or the name of a schedule.", {"type": "string", "minLength": 1}),
    "name": PathParameter("The name of a calendar.", {"type": "string", "minLength": 1}),
    "id": PathParameter("The id of a task.", {"type": "string", "format": "uuid"}),
    "task_id": PathParameter("The id of a dead task.", {"type": "string", "format": "uuid"}),
}


def build_document(app: Litestar) -> dict[str, Any]:
    operations = list(_operations(app))
    schemas = _Schemas([operation for _, _, operation in operations])
    paths: dict[str, dict[str, Any]] = {}
    for path, method, operation in operations:
        paths.setdefault(path, {})[method.lower()] = _operation(path, operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Everbeat",
            "version": __version__,
            "description": "A distributed cron and task scheduler: every tick accounted for.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for _, _, operation in operations)],
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": schemas.components, "headers": _HEADERS},
    }


def _operations(app: Litestar) -> Iterator[tuple[str, str, Operation]]:
    for route in app.routes:
        if not isinstance(route, HTTPRoute):
            continue
        for handler in route.route_handlers:
            for method in sorted(handler.http_methods):
                if "operation" in handler.opt:
                    yield route.path_format, method, handler.opt["operation"]


class _Schemas:
    """The components of all operations, and the one way to refer to them."""

    def __init__(self, operations: list[Operation]) -> None:
        types: dict[Any, None] = {Problem: None}
        for operation in operations:
            used = [operation.query, operation.body and operation.body.type]
            used += [answer.type for answer in operation.answers.values()]
            types.update(dict.fromkeys(one for one in used if one is not None))
        written, self.components = msgspec.json.schema_components(list(types), ref_template=_REF)
        self._by_type: dict[Any, dict[str, Any]] = dict(zip(types, written, strict=True))
        _refine(self.components)

    def of(self, type_: Any) -> dict[str, Any]:
        return self._by_type[type_]

    def parameters(self, type_: type[msgspec.Struct]) -> dict[str, Any]:
        properties: dict[str, Any] = self.components[self.of(type_)["$ref"].rpartition("/")[2]]["properties"]
        return properties


def _operation(path: str, operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    document: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "parameters": [*_path_parameters(path), *_parameters(operation, schemas)],
        "responses": _responses(operation, schemas),
    }
    if operation.body is not None:
        content: dict[str, Any] = {"schema": schemas.of(operation.body.type)}
        if operation.body.examples:
            content["examples"] = {name: {"value": value} for name, value in operation.body.examples.items()}
        document["requestBody"] = {"required": operation.body.is_required, "content": {JSON: content}}
    return document


def _path_parameters(path: str) -> Iterator[dict[str, Any]]:
    for name, parameter in PATH_PARAMETERS.items():
        if f"{{{name}}}" in path:
            yield {"name": name, "in": "path", "required": True, **parameter._asdict()}


def _parameters(operation: Operation, schemas: _Schemas) -> Iterator[dict[str, Any]]:
    if operation.query is not None:
        for name, schema in schemas.parameters(operation.query).items():
            yield {"name": name, "in": "query", "required": False, "schema": schema}
    for name, (description, schema) in operation.headers.items():
        yield {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


def _responses(operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, answer in operation.answers.items():
        response: dict[str, Any] = {"description": answer.description, "headers": _headers(*answer.headers)}
        if answer.type is not None:
            response["content"] = {answer.media_type: {"schema": schemas.of(answer.type)}}
        if answer.may_be_problem:
            response["content"][PROBLEM_TYPE] = {"schema": schemas.of(Problem)}
        if answer.links:
            response["links"] = dict(answer.links)
        responses[str(status)] = response
    problems = {400, 403, 503, *operation.problems}
    problems |= {422} if operation.query is not None or operation.headers else set()
    problems |= {408, 413, 415, 422} if operation.body is not None else set()
    for status in sorted(problems - set(operation.answers)):
        responses[str(status)] = {
            "description": PROBLEMS[status],
            "headers": _headers(*(("Retry-After",) if status == 503 else ())),
            "content": {PROBLEM_TYPE: {"schema": schemas.of(Problem)}},
        }
    return responses


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("X-Request-Id", *names)}


_NAME: dict[str, Any] = {"pattern": NAME_PATTERN, "minLength": 1, "maxLength": 200}
_NAME_OR_NULL = {"anyOf": [{"type": "string", **_NAME}, {"type": "null"}], "default": None}


def _refine(components: dict[str, Any]) -> None:
    """What is checked beyond the types of msgspec, said in the schema too."""
    for component, schema in components.items():
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is False and set(TRIGGER_FIELDS.values()) <= set(properties):
            _refine_definition(properties)
            if "SchedulePatch" not in component:
                schema["oneOf"] = [_only_trigger(field) for field in TRIGGER_FIELDS.values()]
    if "WorkerTarget" not in components:  # a node that only shows its health
        return
    for kind in ("type", "queue"):
        components["WorkerTarget"]["properties"][kind].update(_NAME)
    for component in ("TaskInput", "TaskSubmission"):
        properties = components[component]["properties"]
        properties["type"].update(_NAME)
        properties["queue"] = _NAME_OR_NULL
        _refine_labels(properties["labels"])
    for field in ("queues", "types"):
        _items_of(components["Claim"]["properties"][field]).update(_NAME)
    retry = components["Retry"]["properties"]
    retry["base_seconds"].update(minimum=0, maximum=86_400)
    retry["factor"].update(minimum=1, maximum=100)
    retry["max_seconds"].update(minimum=0, maximum=366 * 86_400)


def _refine_definition(properties: dict[str, Any]) -> None:
    if "name" not in properties:
        return
    properties["name"].update(_NAME)
    properties["description"].update(maxLength=2000)
    _refine_labels(properties["labels"])


def _refine_labels(labels: dict[str, Any]) -> None:
    labels.update(maxProperties=32, propertyNames=_NAME)
    labels["additionalProperties"] = {"type": "string", "maxLength": 256}


def _items_of(schema: dict[str, Any]) -> dict[str, Any]:
    """The items of a list, also of one that may be null."""
    for one in (schema, *schema.get("anyOf", ())):
        if "items" in one:
            items: dict[str, Any] = one["items"]
            return items
    return {}


def _only_trigger(field: str) -> dict[str, Any]:
    """Exactly one trigger may be there and not null."""
    type_ = "number" if field == "every_seconds" else "string"
    return {"required": [field], "properties": {field: {"type": type_}}}


ScheduleReplacement = loosened("ScheduleReplacement", Definition, required=("target",))
SchedulePatch = loosened("SchedulePatch", Definition)
TaskSubmission = without("TaskSubmission", TaskInput, "idempotency_key")
