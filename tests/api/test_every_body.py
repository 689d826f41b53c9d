"""Invalid bodies on every route with a body. The routes come from the OpenAPI document, so new routes are included."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import httpx
import pytest

from everbeat.api.app import openapi_document
from tests.api.conftest import definition, problem_of

JSON = {"Content-Type": "application/json"}
DOCUMENT = openapi_document()
ROUTES = [
    (method.upper(), path)
    for path, methods in sorted(DOCUMENT["paths"].items())
    for method, operation in methods.items()
    if "requestBody" in operation and not path.startswith("/v1/callbacks/")  # the token is checked before the body
]
EVERY_ROUTE = pytest.mark.parametrize(("method", "path"), ROUTES, ids=[" ".join(route) for route in ROUTES])

MALFORMED = {
    "truncated": b'{"a": ',
    "not_json": b"nul",
    "trailing": b"{} {}",
    "not_utf8": b'{"a": "\xff"}',
    "utf16": '{"a": 1}'.encode("utf-16"),
    "nan": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "beyond_floats": b'{"a": 1e400}',
    "duplicate_keys": b'{"a": 1, "a": 2}',
    "duplicate_keys_within": b'{"a": [{"b": 1, "\\u0062": 2}]}',
    "deep_lists": b"[" * 100_000 + b"]" * 100_000,
    "deep_objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "control_character": b'{"a": "\x01"}',
    "comment": b"{} // all of them",
    "single_quotes": b"{'a': 1}",
    "lone_surrogate": b'{"\\ud800": "\\udfff"}',
}
INVALID = {
    "a_list": b"[]",
    "null": b"null",
    "text": b'"text"',
    "huge_integer": b'{"a": ' + b"9" * 400 + b"}",
    "unknown_field": b'{"unknown": 1}',
    "nul": b'{"\\u0000": "\\u0000"}',
    "prototype": b'{"__proto__": {"is_admin": true}, "constructor": 1}',
}


def address_of(path: str) -> str:
    filled = path.replace("{ref}", "nightly").replace("{name}", "days-off")
    return filled.replace("{id}", str(uuid4())).replace("{task_id}", str(uuid4()))


async def send(client: httpx.AsyncClient, method: str, path: str, body: bytes, **headers: str) -> httpx.Response:
    return await client.request(method, address_of(path), content=body, headers={**JSON, **headers})


@EVERY_ROUTE
async def test_malformed_json_is_refused(client: httpx.AsyncClient, method: str, path: str) -> None:
    await client.post("/v1/schedules", json=definition())
    for name, body in MALFORMED.items():
        response = await send(client, method, path, body)
        assert response.status_code == 400, (name, response.text)
        problem_of(response, 400)


@EVERY_ROUTE
async def test_json_that_does_not_match_the_schema_is_refused(client: httpx.AsyncClient, method: str, path: str) -> None:
    await client.post("/v1/schedules", json=definition())
    before = (await client.get("/v1/schedules")).json(), (await client.get("/v1/tasks")).json()
    for name, body in INVALID.items():
        response = await send(client, method, path, body)
        # Some routes report an integer beyond 64 bits as malformed, others as invalid. No route accepts it.
        assert response.status_code in ((400, 422) if name == "huge_integer" else (422,)), (name, response.text)
    assert ((await client.get("/v1/schedules")).json(), (await client.get("/v1/tasks")).json()) == before


@EVERY_ROUTE
async def test_other_content_types_and_encodings_are_refused(client: httpx.AsyncClient, method: str, path: str) -> None:
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", "json"):
        response = await send(client, method, path, b"{}", **{"Content-Type": content_type})
        problem_of(response, 415)
    for encoding in ("gzip", "deflate", "br", "zstd", "identity, gzip"):
        problem_of(await send(client, method, path, b"{}", **{"Content-Encoding": encoding}), 415)


@EVERY_ROUTE
async def test_a_body_that_is_too_large_is_not_read(client: httpx.AsyncClient, method: str, path: str) -> None:
    problem_of(await send(client, method, path, b"", **{"Content-Length": str(2**40)}), 413)
    problem_of(await send(client, method, path, b"", **{"Content-Length": "many"}), 400)


def test_every_schema_in_a_request_refuses_unknown_fields() -> None:
    components = DOCUMENT["components"]["schemas"]
    sent: set[str] = set()
    waiting = [
        operation["requestBody"]["content"]["application/json"]["schema"]
        for methods in DOCUMENT["paths"].values()
        for operation in methods.values()
        if "requestBody" in operation
    ]
    while waiting:
        for name in _refs(waiting.pop()) - sent:
            sent.add(name)
            waiting.append(components[name])
    objects = {name for name in sent if components[name].get("type") == "object"}
    assert [name for name in sorted(objects) if components[name].get("additionalProperties") is not False] == []


def _refs(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        here = {schema["$ref"].rpartition("/")[2]} if "$ref" in schema else set()
        return here.union(*(_refs(part) for part in schema.values()))
    return set().union(*(_refs(part) for part in schema)) if isinstance(schema, list) else set()
