"""The OpenAPI document, generated from the operations of the routes and the msgspec types of their bodies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Union

import msgspec

from everbeat.api.examples import example_of
from everbeat.api.messages import JSON
from everbeat.api.operations import Operation, PathParameter
from everbeat.api.problems import (
    CONFLICT,
    INVALID,
    MALFORMED,
    MEDIA_TYPE_REFUSED,
    NOT_FOUND,
    RATE_LIMITED,
    TOO_LARGE,
    TOO_SLOW,
    UNAUTHENTICATED,
    UNAVAILABLE,
    WRONG_SCOPE,
    HttpProblem,
    Problem,
    ProblemKind,
    problem_body,
)
from everbeat.api.problems import MEDIA_TYPE as PROBLEM_TYPE
from everbeat.api.refinements import NAME, refine
from everbeat.api.routing import Route
from everbeat.core.access import INCLUDED_SCOPES, Scope
from everbeat.core.definitions import ScheduleDefinition
from everbeat.core.errors import FieldError
from everbeat.core.protocol import TaskInput
from everbeat.version import __version__

_REF = "#/components/schemas/{name}"

PROBLEMS = {
    400: "Malformed: not JSON, not UTF-8, nested too deeply, a duplicate key, or no body where one is required.",
    401: "No API key, or one that is mistyped, unknown, revoked or expired.",
    403: "The API key does not have the required scope, or a quota is exhausted; or, on a server without keys, the Host or "
    "Origin header names another site.",
    404: "The object does not exist, or it belongs to another tenant.",
    408: "The body took too long to arrive.",
    409: "The current state does not allow the request.",
    413: "The body or a part of it is too large.",
    415: "Not JSON, or compressed.",
    422: "Well-formed, but a value is invalid; `errors` names each invalid field.",
    429: "Too many requests from this key or address, or a quota is exhausted; try again after `Retry-After` seconds.",
    503: "The database is unavailable; try again after `Retry-After` seconds.",
}

_HEADERS: dict[str, dict[str, Any]] = {
    "X-Request-Id": {"description": "Identifies the request in logs.", "required": True, "schema": {"type": "string"}},
    "Location": {"description": "The path of the new object.", "required": True, "schema": {"type": "string"}},
    "ETag": {"description": "The revision, in quotes.", "required": True, "schema": {"type": "string"}},
    "WWW-Authenticate": {"description": "The required authentication scheme.", "required": True, "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds to wait.", "required": True, "schema": {"type": "integer", "minimum": 1}},
}


def with_optional_fields(name: str, type_: type[msgspec.Struct], required: tuple[str, ...] = ()) -> type[msgspec.Struct]:
    """Return the struct with all other fields optional, to document bodies that are completed before they are decoded."""
    fields = [
        (field.name, field.type)
        if field.name in required
        else (field.name, Union[field.type, msgspec.UnsetType], msgspec.UNSET)  # noqa: UP007
        for field in msgspec.structs.fields(type_)
    ]
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def without_field(name: str, type_: type[msgspec.Struct], excluded: str) -> type[msgspec.Struct]:
    """Return the struct without a field, to document bodies in which that field is refused."""
    fields: list[Any] = []
    for field in msgspec.structs.fields(type_):
        if field.name == excluded:
            continue
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = msgspec.field(default_factory=field.default_factory)
        fields.append((field.name, field.type) if field.required else (field.name, field.type, default))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


_KEY = "key"
_KEY_SCHEME = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "eb_…",
    "description": "An API key. Not required on a server without keys, such as `everbeat dev`. The roles of an operation are "
    "scopes; the key must have one of them.",
}


_UUID = {"type": "string", "format": "uuid"}
PATH_PARAMETERS = {
    "ref": PathParameter("The id or the name of a schedule.", {"type": "string", "minLength": 1}),
    "name": PathParameter("The name of a calendar, an endpoint or a check.", {"type": "string", **NAME}),
    "id": PathParameter("The id of a task or of a bulk operation.", _UUID),
    "task_id": PathParameter("The id of the task of a dead letter.", _UUID),
    "tenant": PathParameter("The id or the name of a tenant.", {"type": "string", "minLength": 1}),
    "queue": PathParameter("The name of a queue.", {"type": "string", **NAME}),
    "key_id": PathParameter("The id of an API key.", _UUID),
}
SCHEDULE_NAME = {"ref": PathParameter("The name of the schedule.", {"type": "string", **NAME})}


def build_document(routes: Iterable[Route]) -> dict[str, Any]:
    ordered = sorted(routes, key=lambda route: (route.path, route.method))
    schemas = _Schemas([route.operation for route in ordered])
    paths: dict[str, dict[str, Any]] = {}
    for route in ordered:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route.path, route.operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Everbeat",
            "version": __version__,
            "description": "A distributed cron and task scheduler: every tick accounted for.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in _tags([route.operation.tag for route in ordered])],
        "paths": paths,
        "components": {"schemas": schemas.components, "headers": _HEADERS, "securitySchemes": {_KEY: _KEY_SCHEME}},
    }


def with_optional_security(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document of a server that does not require keys. It accepts requests with and without a key."""
    paths = {
        path: {method: {**one, "security": [{}, *one["security"]]} for method, one in methods.items()}
        for path, methods in document["paths"].items()
    }
    return {**document, "paths": paths}


def _tags(used: list[str]) -> list[str]:
    """Return each tag once, in the order in which readers are likely to need them."""
    known = (
        "Schedules",
        "Calendars",
        "Endpoints",
        "Callbacks",
        "Tasks",
        "Workers",
        "Queues and workers",
        "Dead letters",
        "Operations",
        "Tenants and keys",
        "Health",
    )
    return sorted(dict.fromkeys(used), key=lambda tag: (known.index(tag) if tag in known else len(known), tag))


class _Schemas:
    """The schemas of all operations, and the references to them."""

    def __init__(self, operations: list[Operation]) -> None:
        types: dict[Any, None] = {Problem: None}
        for operation in operations:
            used = [operation.query, operation.body and operation.body.type]
            used += [success.type for success in operation.responses.values()]
            types.update(dict.fromkeys(one for one in used if one is not None))
        references, self.components = msgspec.json.schema_components(list(types), ref_template=_REF)
        self._by_type: dict[Any, dict[str, Any]] = dict(zip(types, references, strict=True))
        refine(self.components)

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
        **({"description": operation.description} if operation.description else {}),
        "parameters": [*_path_parameters(path, operation), *_parameters(operation, schemas)],
        "responses": _responses(operation, schemas),
        "security": _security(operation),
    }
    if operation.body is not None:
        content: dict[str, Any] = {"schema": schemas.of(operation.body.type)}
        if operation.body.examples:
            content["examples"] = {name: {"value": value} for name, value in operation.body.examples.items()}
        document["requestBody"] = {"required": operation.body.is_required, "content": {JSON: content}}
    return document


def _path_parameters(path: str, operation: Operation) -> Iterator[dict[str, Any]]:
    for name, parameter in {**PATH_PARAMETERS, **operation.path}.items():
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
    for status, success in operation.responses.items():
        response: dict[str, Any] = {"description": success.description, "headers": _headers(*success.headers)}
        if success.type is not None:
            response["content"] = {success.media_type: {"schema": schemas.of(success.type)}}
            example = success.example
            if example is None and success.media_type == JSON:
                example = example_of(schemas.of(success.type), schemas.components)
            if example is not None:
                response["content"][success.media_type]["example"] = example
        if success.may_be_problem:
            response["content"][PROBLEM_TYPE] = {"schema": schemas.of(Problem)}
        if success.links:
            response["links"] = dict(success.links)
        responses[str(status)] = response
    problems = {400, 403, 503, *operation.problems}
    problems |= {401, 429} if operation.scope is not None else set()
    problems |= {422} if operation.query is not None or operation.headers else set()
    problems |= {408, 413, 415, 422} if operation.body is not None else set()
    for status in sorted(problems - set(operation.responses)):
        responses[str(status)] = {
            "description": PROBLEMS[status],
            "headers": _headers(*_PROBLEM_HEADERS.get(status, ())),
            "content": {PROBLEM_TYPE: {"schema": schemas.of(Problem), **_problem_example(status)}},
        }
    return responses


_PROBLEM_HEADERS = {401: ("WWW-Authenticate",), 429: ("Retry-After",), 503: ("Retry-After",)}
_PROBLEM_EXAMPLES: Mapping[int, tuple[ProblemKind, str]] = {
    400: (MALFORMED, "The body is not valid JSON: Input data was truncated"),
    401: (UNAUTHENTICATED, "Send an API key of this server: Authorization: Bearer eb_…"),
    403: (WRONG_SCOPE, "This operation requires an API key with the scope manage; this key has read."),
    404: (NOT_FOUND, 'there is no schedule with the name or id "nightly"'),
    408: (TOO_SLOW, "The body did not arrive within 30 seconds."),
    409: (CONFLICT, 'a schedule named "nightly" already exists; to change it, use PUT or everbeat schedule edit'),
    413: (TOO_LARGE, "A body may have at most 12582912 bytes."),
    415: (MEDIA_TYPE_REFUSED, "Send Content-Type: application/json, in UTF-8."),
    422: (INVALID, "priority: Expected `int` <= 1000"),
    429: (RATE_LIMITED, "This API key has exceeded its limit of requests per second."),
    503: (UNAVAILABLE, "The database did not respond; try again soon."),
}
_FIELD_EXAMPLE = (FieldError("priority", "Expected `int` <= 1000"),)


def _problem_example(status: int) -> dict[str, Any]:
    errors = _FIELD_EXAMPLE if status == 422 else None
    body = problem_body(HttpProblem(*_PROBLEM_EXAMPLES[status]), "01a1e231-991e-73bc-9160-a6b2040f1cf5", errors)
    return {"example": msgspec.json.decode(body)}


def _security(operation: Operation) -> list[dict[str, list[str]]]:
    if operation.scope is None:
        return []
    return [{_KEY: [] if operation.for_any_key else sorted(one for one in Scope if operation.scope in INCLUDED_SCOPES[one])}]


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("X-Request-Id", *names)}


ScheduleReplacement = with_optional_fields("ScheduleReplacement", ScheduleDefinition, required=("target",))
SchedulePatch = with_optional_fields("SchedulePatch", ScheduleDefinition)
TaskSubmission = without_field("TaskSubmission", TaskInput, "idempotency_key")
