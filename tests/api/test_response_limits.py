"""Responses that their clients do not read: limited per key and in total, without effect on other callers."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from everbeat.api.context import ApiContext
from everbeat.api.messages import ApiRequest, Message, OpenApiDocuments, Response
from everbeat.api.middleware import RequestMiddleware
from everbeat.api.response_limits import ResponseLimits
from everbeat.core.access import LOCAL_CALLER, Caller

SIZE = 100_000


class SlowReader:
    """A client of the ASGI app that reads the head of its response, and the body when it is told to."""

    def __init__(self, app: RequestMiddleware, key: int, path: str = "/large") -> None:
        self.may_read = asyncio.Event()
        self.has_begun = asyncio.Event()
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body: bytes | None = None
        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [(b"key", b"%d" % key)]}
        self.task = asyncio.create_task(app({**scope, "client": ("127.0.0.1", 1), "scheme": "http"}, self._receive, self._send))

    async def _receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
            return
        self.has_begun.set()
        if len(message["body"]) > 1000:
            await self.may_read.wait()
        self.body = message["body"]


@pytest.fixture
def limits() -> ResponseLimits:
    return ResponseLimits(max_bytes=5 * SIZE, max_bytes_per_key=3 * SIZE)


@pytest.fixture
def app(context: ApiContext, limits: ResponseLimits, monkeypatch: pytest.MonkeyPatch) -> RequestMiddleware:
    async def handle(request: ApiRequest) -> Response:
        response = Response(200, b"x" * SIZE)
        response.is_refusable = request.path != "/claim"
        return response

    async def caller(_self: Any, request: ApiRequest) -> Caller:
        return LOCAL_CALLER._replace(key_id=UUID(int=int(request.headers[b"key"])), address="a")

    monkeypatch.setattr(RequestMiddleware, "_caller", caller)
    context = context._replace(response_limits=limits, allowed_hosts=None)
    return RequestMiddleware(handle, context, OpenApiDocuments(b"", b""))


async def begun(app: RequestMiddleware, key: int, count: int = 1, path: str = "/large") -> list[SlowReader]:
    readers = [SlowReader(app, key, path) for _ in range(count)]
    for reader in readers:
        await reader.has_begun.wait()
    return readers


async def test_a_key_with_too_many_unread_responses_gets_429_until_it_reads_them(
    app: RequestMiddleware, limits: ResponseLimits
) -> None:
    unread = await begun(app, 1, 3)
    (refused,) = await begun(app, 1)
    assert (refused.status, refused.headers[b"retry-after"]) == (429, b"5")
    (other,) = await begun(app, 2)
    assert other.status == 200
    for reader in (*unread, other):
        reader.may_read.set()
        await reader.task
        assert reader.body == b"x" * SIZE
    assert limits.bytes_in_memory == 0
    (again,) = await begun(app, 1)
    assert again.status == 200
    again.task.cancel()


async def test_a_caller_with_less_takes_the_memory_of_the_slow_reader_that_began_first(
    app: RequestMiddleware, limits: ResponseLimits
) -> None:
    slow = [*await begun(app, 1, 3), *await begun(app, 2, 2)]
    (other,) = await begun(app, 3)
    await slow[0].task  # it ends without its body, and the server closes the connection
    assert (other.status, slow[0].body) == (200, None)
    assert [reader.task.done() for reader in slow] == [True, False, False, False, False]
    assert limits.bytes_in_memory == 5 * SIZE
    for reader in (*slow, other):
        reader.task.cancel()


async def test_claimed_tasks_are_always_sent(app: RequestMiddleware, limits: ResponseLimits) -> None:
    readers = await begun(app, 1, 3)
    readers += await begun(app, 2, 2)
    readers += await begun(app, 3, 1, "/claim")
    assert (readers[-1].status, limits.bytes_in_memory) == (200, 6 * SIZE)
    for reader in readers:
        reader.task.cancel()
