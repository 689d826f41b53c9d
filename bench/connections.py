"""Many connections, each with one request in flight. Cheaper than asyncio streams, to add little to the measurement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

_LENGTH = b"content-length:"
OnResponse = Callable[["HttpConnection", bytes], None]


class HttpConnection(asyncio.Protocol):
    """One connection. `on_response` gets the body of each response. A response other than 2xx sets an error on `failed`."""

    def __init__(self, on_response: OnResponse, failed: asyncio.Future[None]) -> None:
        self._on_response = on_response
        self._failed = failed
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._is_closed = False
        self.sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_closed:
            self._fail(f"the server closed a connection: {error}")

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self.sent_at = time.perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        length = _body_length(head)
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        if head[9:10] != b"2":
            self._fail(f"the server responded with {head[9:12].decode()}: {rest[:500]!r}")
            return
        self._on_response(self, rest[:length])

    def _fail(self, message: str) -> None:
        if not self._failed.done():
            self._failed.set_exception(RuntimeError(message))


def _body_length(head: bytes) -> int:
    lower = head.lower()
    at = lower.find(_LENGTH)
    return int(lower[at + len(_LENGTH) :].partition(b"\r\n")[0]) if at >= 0 else 0


async def connect(port: int, count: int, on_response: OnResponse, failed: asyncio.Future[None]) -> list[HttpConnection]:
    loop = asyncio.get_running_loop()
    connections_open = []
    for _ in range(count):
        _, connection = await loop.create_connection(lambda: HttpConnection(on_response, failed), "127.0.0.1", port)
        connections_open.append(connection)
    return connections_open


class Calls(NamedTuple):
    seconds: float
    latencies: list[float]


async def call_all(port: int, requests: list[bytes], connections: int) -> Calls:
    """Send all requests over `connections` connections. Each sends its next request when it has received a response."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting: Iterator[bytes] = iter(requests)
    latencies: list[float] = []

    def on_response(connection: HttpConnection, _body: bytes) -> None:
        latencies.append(time.perf_counter() - connection.sent_at)
        if (request := next(waiting, None)) is not None:
            connection.send(request)
        elif len(latencies) == len(requests) and not done.done():
            done.set_result(None)

    connections_open = await connect(port, connections, on_response, done)
    started = time.perf_counter()
    for connection in connections_open:
        connection.send(next(waiting))
    await done
    seconds = time.perf_counter() - started
    for connection in connections_open:
        connection.close()
    return Calls(seconds, latencies)
