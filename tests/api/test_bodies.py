"""Bodies that are no JSON, too large, compressed, slow or of the wrong type."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from everbeat.api import bodies
from tests.api.conftest import definition, fields_of, problem_of

JSON = {"Content-Type": "application/json"}
START = b'{"name":"nightly","cron":"0 2 * * *","target":{"kind":"worker","type":"report"},"payload":'

MALFORMED = {
    "truncated": START,
    "trailing text": START + b"1} x",
    "two values": START + b"1} {}",
    "a trailing comma": START + b"1,}",
    "a comment": START + b"1 /* x */}",
    "single quotes": START + b"'x'}",
    "NaN": START + b"NaN}",
    "Infinity": START + b"-Infinity}",
    "a number that overflows": START + b"1e999}",
    "an endless number": START + b"1" * 100_000 + b"}",
    "a lone surrogate": START + b'"\\ud800"}',
    "a swapped surrogate pair": START + b'"\\udc00\\ud800"}',
    "a surrogate in UTF-8": START + b'"\xed\xa0\x80"}',
    "invalid UTF-8": START + b'"\xff"}',
    "UTF-16": '{"name": "x"}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a raw NUL": START + b'"\x00"}',
    "a raw newline in a string": START + b'"a\nb"}',
    "deep nesting": START + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "endless nesting": b'{"a":' * 200_000,
    "the same key twice": START + b'1,"payload":2}',
    "the same key twice inside": START + b'{"a":1,"a":1}}',
    "the same key written in two ways": START + b'{"a":1,"\\u0061":1}}',
    "the same key twice, in a large body": START + b'{"a":1,"b":"' + b"x" * 100_000 + b'","a":1}}',
}


@pytest.mark.parametrize("why", MALFORMED)
async def test_it_rejects_a_malformed_body(client: httpx.AsyncClient, why: str) -> None:
    response = await client.post("/v1/schedules", content=MALFORMED[why], headers=JSON)

    problem = problem_of(response, 400)
    assert problem["type"] == "urn:everbeat:problem:malformed-request"
    assert "errors" not in problem
    assert (await client.get("/v1/schedules")).json()["items"] == []


async def test_it_rejects_an_empty_body_where_one_is_needed(client: httpx.AsyncClient) -> None:
    for method, path in (("POST", "schedules"), ("POST", "schedules/batch"), ("PUT", "schedules/a"), ("POST", "preview")):
        problem_of(await client.request(method, f"/v1/{path}"), 400)
        problem_of(await client.request(method, f"/v1/{path}", headers=JSON), 400)


@pytest.mark.parametrize(
    "content_type",
    [
        *("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonp"),
        *("", "json", "application/json; charset=latin-1", "text/json", "application/xml+jsonx"),
    ],
)
async def test_it_rejects_another_content_type(client: httpx.AsyncClient, content_type: str) -> None:
    body = json.dumps(definition())
    problem_of(await client.post("/v1/schedules", content=body, headers={"Content-Type": content_type}), 415)


async def test_it_rejects_a_body_without_a_content_type(client: httpx.AsyncClient) -> None:
    problem_of(await client.post("/v1/schedules", content=json.dumps(definition())), 415)


@pytest.mark.parametrize(
    "content_type",
    ["application/json; charset=utf-8", 'APPLICATION/JSON;charset="UTF-8"', "application/merge-patch+json"],
)
async def test_it_takes_other_ways_to_say_json(client: httpx.AsyncClient, content_type: str) -> None:
    response = await client.post("/v1/schedules", content=json.dumps(definition()), headers={"Content-Type": content_type})
    assert response.status_code == 201


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "gzip, identity", "x"])
async def test_it_rejects_a_compressed_body(client: httpx.AsyncClient, encoding: str) -> None:
    bomb = gzip.compress(json.dumps(definition()).encode())
    problem_of(await client.post("/v1/schedules", content=bomb, headers={**JSON, "Content-Encoding": encoding}), 415)


async def test_it_does_not_read_a_body_that_says_it_is_too_large(client: httpx.AsyncClient) -> None:
    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("nobody should read this")
        yield b""

    headers = {**JSON, "Content-Length": str(bodies.MAX_BODY_BYTES + 1)}
    problem_of(await client.post("/v1/schedules", content=body(), headers=headers), 413)


async def test_it_stops_reading_an_endless_body(client: httpx.AsyncClient) -> None:
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b" " * 1024 * 1024

    problem_of(await client.post("/v1/schedules", content=body(), headers=JSON), 413)
    assert sent <= bodies.MAX_BODY_BYTES // (1024 * 1024) + 1


async def test_it_gives_up_on_a_body_that_never_comes(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_DEADLINE_SECONDS", 0.01)

    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    problem_of(await client.post("/v1/schedules", content=body(), headers=JSON), 408)


async def test_a_large_body_within_the_limit_is_read(client: httpx.AsyncClient) -> None:
    body = json.dumps(definition()).encode() + b" " * (bodies.MAX_BODY_BYTES - 200)

    assert (await client.post("/v1/schedules", content=body, headers=JSON)).status_code == 201


async def test_it_names_an_unknown_field_in_short(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/schedules", json=definition(**{"x" * 1_000_000: 1}))

    assert fields_of(response) == ["x" * 200]
    assert len(response.content) < 4096
