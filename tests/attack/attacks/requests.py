"""Many connections, and requests that a server and a proxy in front of it could understand differently."""

from __future__ import annotations

import asyncio
import contextlib

from tests.attack.registry import attack
from tests.attack.target import Target

_IDLE = 2_000


@attack
async def idle_connections(target: Target) -> None:
    """More than the server accepts, and than one address may have. They send nothing, or one request each."""
    count = _IDLE if target.is_long else 600
    request = target.head("GET", "/healthz")
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(number: int) -> None:
            with contextlib.suppress(ConnectionError):
                reader, writer = await stack.enter_async_context(target.connect())
                if number % 4 == 0:
                    writer.write(request)
                    await reader.readline()

        for start in range(0, count, 100):
            await asyncio.gather(*(open_one(number) for number in range(start, min(start + 100, count))))
        assert await target.health_seconds() < 5


@attack
async def pipelined_requests(target: Target) -> None:
    """Hundreds of requests in one packet, whose responses are not read."""
    request = target.head("GET", "/v1/schedules?limit=1000", "read")

    async def send() -> None:
        async with target.connect() as (reader, writer):
            with contextlib.suppress(ConnectionError):
                for _ in range(10):
                    writer.write(request * 50)
                await asyncio.sleep(0.3)
                async with asyncio.timeout(10):
                    assert int((await reader.readline()).split()[1]) in (200, 429)

    await asyncio.gather(*(send() for _ in range(8)))


_SECOND = b"GET /v1/tenants HTTP/1.1\r\nHost: localhost\r\n\r\n"
_CHUNKED = b"5\r\n{    \r\n0\r\n\r\n"
# Each of these could hide a second request from a proxy that reads the length of the body in the other way.
_SMUGGLED = {
    "both lengths": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + _CHUNKED,
    "two lengths": b"Content-Length: 2\r\nContent-Length: 50\r\n\r\n{}",
    "a list of lengths": b"Content-Length: 2, 50\r\n\r\n{}",
    "a length with a sign": b"Content-Length: +2\r\n\r\n{}",
    "a hexadecimal length": b"Content-Length: 0x2\r\n\r\n{}",
    "a negative length": b"Content-Length: -1\r\n\r\n{}",
    "two encodings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + _CHUNKED,
    "another encoding": b"Transfer-Encoding: gzip, chunked\r\n\r\n" + _CHUNKED,
    "an encoding with a tab": b"Transfer-Encoding:\x0bchunked\r\n\r\n" + _CHUNKED,
    "a space before the colon": b"Transfer-Encoding : chunked\r\n\r\n" + _CHUNKED,
    "a folded header": b"X-A: b\r\n Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
    "a line break only": b"X-A: b\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
    "a NUL in a header": b"X-A: b\x00c\r\nContent-Length: 2\r\n\r\n{}",
    "a chunk size that is no number": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "a chunk size that overflows": b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n{}\r\n0\r\n\r\n",
    "a chunk that is longer than its size": b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}{}{}\r\n0\r\n\r\n",
}


async def _statuses(target: Target, data: bytes) -> list[int]:
    """Send bytes, and return the statuses of all responses until the server closes the connection or is silent."""
    async with target.connect() as (reader, writer):
        writer.write(data)
        received = b""
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(1):
                while chunk := await reader.read(65_536):
                    received += chunk
                    if b"\r\n\r\n" in received and b"HTTP/1.1 4" in received:
                        await asyncio.sleep(0.05)
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


@attack
async def smuggled_requests(target: Target) -> None:
    """What follows an ambiguous request is never answered as a request of its own."""
    head = target.head("POST", "/v1/tasks", "submit", {"Content-Type": "application/json"})[:-2]

    async def send(why: str, rest: bytes) -> None:
        statuses = await _statuses(target, head + rest + _SECOND)
        assert all(status in (400, 411, 413, 415, 501) for status in statuses[:1]), (why, statuses)
        assert len(statuses) <= 1, (why, statuses)

    await asyncio.gather(*(send(why, rest) for why, rest in _SMUGGLED.items()))


_MALFORMED_LINES = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,  # TLS to a port without TLS
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/0.9\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"G" * 100_000,
    b"\r\n" * 5_000,
    b"SSH-2.0-OpenSSH_9.0\r\n",
]


@attack
async def what_is_no_http(target: Target) -> None:
    async def send(data: bytes) -> None:
        statuses = await _statuses(target, data)
        assert all(400 <= status < 506 and status != 500 for status in statuses), (data[:50], statuses)

    await asyncio.gather(*map(send, _MALFORMED_LINES))
