"""Slow, idle, endless or too many clients at a real server: others are served, and its memory usage is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.cluster.harness import Node

HEADER_DEADLINE, BODY_DEADLINE = 2.0, 1.5
HEAD = b"POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CONNECTIONS = 2_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node on SQLite. These tests do not use the database."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard_limit, 8_192), hard_limit))
    folder = tmp_path_factory.mktemp("edge")
    flags = ("--header-deadline-seconds", str(HEADER_DEADLINE), "--body-deadline-seconds", str(BODY_DEADLINE))
    node = Node("edge", f"sqlite:///{folder / 'everbeat.sqlite'}", folder, flags=flags)
    try:
        node.start()
        yield node
    finally:
        node.close()


def megabytes(node: Node) -> float:
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


async def exchange(node: Node, *chunks: bytes, pause: float = 0.0, read_seconds: float = 10.0) -> tuple[bytes, float]:
    """Send the chunks while the server reads, then read until it closes. Return the response and the duration."""
    started = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    response = b""

    async def send() -> None:
        with contextlib.suppress(ConnectionError):
            for chunk in chunks:
                writer.write(chunk)
                await writer.drain()
                await asyncio.sleep(pause)

    sending = asyncio.create_task(send())
    try:
        async with asyncio.timeout(read_seconds):
            with contextlib.suppress(ConnectionError):
                while more := await reader.read(65_536):
                    response += more
    finally:
        sending.cancel()
        await disconnect(writer)
    return response, time.monotonic() - started


async def disconnect(writer: asyncio.StreamWriter) -> None:
    """Close the connection without waiting for unsent data."""
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def is_served(node: Node) -> float:
    response, took = await exchange(node, b"GET /v1/schedules HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert response.startswith(b"HTTP/1.1 200"), response
    return took


@contextlib.asynccontextmanager
async def many_connections(node: Node, first: bytes) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Open many connections that each send `first` and nothing else."""
    opened = []
    for _ in range(CONNECTIONS // 50):
        opened += await asyncio.gather(*(asyncio.open_connection("127.0.0.1", node.port) for _ in range(50)))
    for _, writer in opened:
        writer.write(first)
    try:
        yield [reader for reader, _ in opened]
    finally:
        await asyncio.gather(*(disconnect(writer) for _, writer in opened))


async def test_a_slow_request_head_must_arrive_within_its_deadline(node: Node) -> None:
    heads = [[b""], [b"GET / HTTP/1.1\r\nHost: lo"], [b"GET / HTTP/1.1\r\n", *[b"X-A: b\r\n"] * 60]]
    for response, took in await asyncio.gather(*(exchange(node, *head, pause=0.1) for head in heads)):
        assert response == b"" or b" 408 " in response
        assert HEADER_DEADLINE - 0.5 < took < HEADER_DEADLINE + 3


async def test_a_late_request_body_gets_408(node: Node) -> None:
    trickled, took = await exchange(node, HEAD + b"Content-Length: 1000\r\n\r\n{", *[b" "] * 60, pause=0.1)
    assert trickled.startswith(b"HTTP/1.1 408")
    assert b"urn:everbeat:problem:request-timeout" in trickled
    assert BODY_DEADLINE - 0.5 < took < BODY_DEADLINE + HEADER_DEADLINE + 3


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: a\r\n" % number for number in range(200)), b"431"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Large: " + b"a" * 200_000 + b"\r\n", b"431"),
        (b"GET /" + b"a" * 66_000 + b" HTTP/1.1\r\nHost: localhost\r\n", b"414"),
        (b"GET / HTTP/2.0\r\nHost: localhost\r\n", b"400"),
    ],
    ids=["too many headers", "a large header", "a long address", "another version"],
)
async def test_an_oversized_request_head_is_rejected(node: Node, head: bytes, status: bytes) -> None:
    response, _ = await exchange(node, head + b"\r\n")
    assert response[9:12] in (status, b"431"), response[:100]


SLOW = {
    "nothing": b"",
    "half a head": b"GET / HTTP/1.1\r\nX-Slow: l",
    "half a body": HEAD + b"Content-Length: 1000\r\n\r\n{",
    "half a body for an unknown path": HEAD.replace(b"/v1/tasks", b"/v1/unknown") + b"Content-Length: 1000\r\n\r\n{",
}


@pytest.mark.parametrize("first", SLOW.values(), ids=SLOW)
async def test_two_thousand_slow_connections_use_little_memory_and_delay_no_other(node: Node, first: bytes) -> None:
    before = megabytes(node)
    async with many_connections(node, first) as readers:
        assert await is_served(node) < 2
        assert megabytes(node) - before < 100
        async with asyncio.timeout(BODY_DEADLINE + HEADER_DEADLINE + 15):  # the server closes all of them
            await asyncio.gather(*(reader.read(-1) for reader in readers), return_exceptions=True)
    assert await is_served(node) < 2


@pytest.mark.parametrize("is_chunked", [True, False], ids=["endless", "with their length"])
async def test_bodies_of_a_hundred_megabytes_are_not_buffered(node: Node, is_chunked: bool) -> None:
    before = megabytes(node)
    length = b"Transfer-Encoding: chunked\r\n\r\n" if is_chunked else b"Content-Length: 104857600\r\n\r\n"
    piece = b" " * 0x100000
    piece = b"100000\r\n" + piece + b"\r\n" if is_chunked else piece
    sending = [asyncio.create_task(exchange(node, HEAD + length, *[piece] * 100)) for _ in range(60)]
    highest = slowest = 0.0
    while not all(one.done() for one in sending):
        highest, slowest = max(highest, megabytes(node)), max(slowest, await is_served(node))
    for response, _ in await asyncio.gather(*sending):
        assert response == b"" or response[9:12] in (b"408", b"413", b"503"), response[:100]
    # 60 bodies of 12 MiB, the limit of one body, would be 720 MiB.
    assert highest - before < 300
    assert slowest < 5


@pytest.mark.parametrize(
    ("path", "size", "status"), [("/v1/unknown", 1_000, 404), ("/v1/unknown", 2**24, 404), ("/v1/tasks", 2**24, 413)]
)
async def test_a_response_sent_before_the_body_is_read_arrives_complete(node: Node, path: str, size: int, status: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.port}") as client:
        for _ in range(2):
            response = await client.post(path, content=b" " * size, headers={"Content-Type": "application/json"})
            assert response.status_code == status
            assert response.json()["status"] == status
