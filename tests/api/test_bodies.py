"""Bodies that are not JSON, too large, compressed, slow or of the wrong type."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import time
from collections.abc import AsyncIterator, Hashable

import httpx
import pytest

from everbeat.api import bodies
from everbeat.api.body_checks import BodyChecks
from everbeat.api.body_limits import LARGE_BYTES, BodyLimits
from everbeat.api.context import ApiContext
from everbeat.api.json_checker import OutlineRequest
from everbeat.api.problems import HttpProblem
from everbeat.core.json_text import JsonOutline
from tests.api.conftest import definition, fields_of, make_client, problem_of

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


async def test_it_rejects_an_empty_body_where_one_is_required(client: httpx.AsyncClient) -> None:
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
async def test_it_accepts_variants_of_the_json_content_type(client: httpx.AsyncClient, content_type: str) -> None:
    response = await client.post("/v1/schedules", content=json.dumps(definition()), headers={"Content-Type": content_type})
    assert response.status_code == 201


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "gzip, identity", "x"])
async def test_it_rejects_a_compressed_body(client: httpx.AsyncClient, encoding: str) -> None:
    bomb = gzip.compress(json.dumps(definition()).encode())
    problem_of(await client.post("/v1/schedules", content=bomb, headers={**JSON, "Content-Encoding": encoding}), 415)


async def test_it_does_not_read_a_body_with_a_too_large_content_length(client: httpx.AsyncClient) -> None:
    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("not expected to be read")
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


async def test_a_body_that_does_not_arrive_times_out(context: ApiContext) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with make_client(context._replace(body_limits=BodyLimits(0.01))) as client:
        problem_of(await client.post("/v1/schedules", content=body(), headers=JSON), 408)


async def test_concurrent_large_bodies_limit_only_each_other(context: ApiContext) -> None:
    body_limits = BodyLimits(max_large_bytes=300_000)
    arrived, may_continue = asyncio.Event(), asyncio.Event()
    large = json.dumps(definition(name="large")).encode()

    async def body() -> AsyncIterator[bytes]:
        yield large + b" " * 200_000
        arrived.set()
        await may_continue.wait()
        yield b" "

    async with make_client(context._replace(body_limits=body_limits)) as client:
        first = asyncio.create_task(client.post("/v1/schedules", content=body(), headers=JSON))
        await arrived.wait()
        refused = await client.post("/v1/schedules", content=large + b" " * 200_000, headers=JSON)
        assert problem_of(refused, 503)["type"].endswith(":overloaded")
        assert 1 <= int(refused.headers["retry-after"]) <= 5
        assert (await client.post("/v1/schedules", json=definition(name="small"))).status_code == 201
        may_continue.set()
        assert (await first).status_code == 201
        assert (await client.put("/v1/schedules/large", content=large + b" " * 200_000, headers=JSON)).status_code == 200
    assert body_limits.bytes_in_memory == 0


async def test_a_large_body_within_the_limit_is_read(client: httpx.AsyncClient) -> None:
    body = json.dumps(definition()).encode() + b" " * (bodies.MAX_BODY_BYTES - 200)

    assert (await client.post("/v1/schedules", content=body, headers=JSON)).status_code == 201


class CountingChecks(BodyChecks):
    """Counts the bodies that are checked by another process."""

    count = 0

    async def outline(self, raw: bytes, request: OutlineRequest, key: Hashable) -> JsonOutline:
        self.count += 1
        return await super().outline(raw, request, key)


TASK = json.dumps({"type": "work", "payload": {"text": "x" * 60}}, separators=(",", ":"))


@pytest.mark.parametrize(
    ("last", "count", "status", "is_checked_elsewhere"),
    [
        (TASK, 1000, 200, False),
        ('{"type":"work","payload":{"text":"\\u00e9"}}', 1000, 200, True),
        ('{"type":"work","payload":[' + "1," * 31_000 + "1]}", 100, 200, True),
        ('{"type":"work","payload":[' + "8.5e-299," * 201 + "1]}", 1000, 200, True),
        ('{"type":"work","payload":' + "1" * 100 + "}", 1000, 200, True),
        (TASK, 5000, 200, True),
        ('{"type":"work","payload":{"a":1,"a":2}}', 1000, 400, True),
        ('{"type":"work","payload":1e999}', 1000, 400, True),
        ('{"type":"work","payload":' + "[" * 129 + "]" * 129 + "}", 1000, 422, False),
        ('{"type":"two words"}', 1000, 422, False),
        ('{"type":7}', 1000, 422, False),
    ],
    ids=[
        "plain",
        "escaped",
        "many values",
        "tiny numbers",
        "long integer",
        "large",
        "same key twice",
        "overflow",
        "too deep",
        "bad name",
        "bad type",
    ],
)
async def test_a_batch_of_medium_size_is_checked_by_another_process_only_if_that_may_take_long_or_find_an_error(
    context: ApiContext, last: str, count: int, status: int, is_checked_elsewhere: bool
) -> None:
    body = f'{{"tasks":[{",".join([TASK] * (count - 1) + [last])}]}}'
    assert len(body) > LARGE_BYTES
    checks = CountingChecks()
    try:
        async with make_client(context._replace(body_checks=checks)) as client:
            response = await client.post("/v1/tasks/batch", content=body.encode(), headers=JSON)
    finally:
        checks.close()
    assert response.status_code == status, response.text
    assert checks.count == is_checked_elsewhere
    if status == 200:
        assert len(response.json()["ids"]) == count
    elif not is_checked_elsewhere:
        assert [field.partition(".")[0] for field in fields_of(response)] == ["tasks[999]"]


async def test_the_name_of_an_unknown_field_is_truncated(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/schedules", json=definition(**{"x" * 1_000_000: 1}))

    assert fields_of(response) == ["x" * 200]
    assert len(response.content) < 4096


async def test_large_bodies_share_a_rate_and_small_ones_are_not_delayed() -> None:
    body_limits = BodyLimits(large_bytes_per_second=1_000_000)
    started = time.monotonic()
    await asyncio.gather(*(body_limits.throttle("key", 50_000, 100_000) for _ in range(4)))
    assert time.monotonic() - started > 0.19
    await asyncio.gather(*(body_limits.throttle("key", 50_000, 50_000) for _ in range(100)))
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("path", ["/v1/tasks", "/v1/schedules"], ids=["exact path", "framework"])
@pytest.mark.parametrize("body", [b"[" + b" " * 100_000, b" " * (bodies.MAX_BODY_BYTES + 1)], ids=["malformed", "too large"])
async def test_a_refused_body_is_freed_without_the_garbage_collector(client: httpx.AsyncClient, path: str, body: bytes) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield body

    gc.collect()
    gc.disable()
    try:
        assert (await client.post(path, content=chunks(), headers=JSON)).status_code in (400, 413)
        problems = [one for one in gc.get_objects() if isinstance(one, HttpProblem)]
        frames = [frame for one in problems for frame in _frames(one)]
        assert frames == []
    finally:
        gc.enable()


def _frames(error: BaseException) -> list[str]:
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append(trace.tb_frame.f_code.co_qualname)
        trace = trace.tb_next
    return found
