"""The API on its real server: behavior that depends on the connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import httpx
import pytest

from everbeat.api.app import ApiContext, build_app
from everbeat.config import Settings
from everbeat.serving import HttpServer, listen
from tests.api.conftest import claim, definition, problem_of, submit

HEAD = b"POST /v1/schedules HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture
async def port(context: ApiContext) -> AsyncIterator[int]:
    port = free_port()
    settings = Settings(port=port, header_deadline_seconds=1, write_deadline_seconds=1, max_connections_per_address=16)
    server = HttpServer(build_app(context), settings)
    serving = asyncio.create_task(server.serve(listen(settings)))
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            await asyncio.sleep(0.02)
    yield port
    serving.cancel()
    await server.stop(5)


async def exchange(port: int, *chunks: bytes) -> bytes:
    """Send the chunks until the server closes the connection, and return what it has sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with contextlib.suppress(ConnectionError):
            for chunk in chunks:
                writer.write(chunk)
                await writer.drain()
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                return await reader.read(65_536)
        return b""
    finally:
        writer.close()


async def test_it_creates_and_returns_a_schedule(port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        created = await client.post("/v1/schedules", json=definition())
        assert created.status_code == 201
        assert (await client.get(created.headers["location"])).json() == created.json()
        problem_of(await client.get("/v1/schedules/%FF%00"), 404)


async def test_it_refuses_a_large_body_before_it_is_sent(port: int) -> None:
    response = await exchange(port, HEAD + b"Content-Length: 104857600\r\nExpect: 100-continue\r\n\r\n")

    assert response.startswith(b"HTTP/1.1 413")


async def test_an_endless_body_ends_only_its_connection(port: int) -> None:
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    response = await exchange(port, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 64)

    assert response == b"" or response.startswith(b"HTTP/1.1 413")
    assert (await exchange(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_a_client_that_disconnects_during_its_body_affects_no_other(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD + b"Content-Length: 1000\r\n\r\n{")
    await writer.drain()
    writer.close()

    assert (await exchange(port, b"GET /v1/schedules HTTP/1.1\r\nHost: localhost\r\n\r\n")).endswith(
        b'{"items":[],"next_cursor":null}'
    )


async def test_a_request_without_a_host_is_refused(port: int) -> None:
    assert b" 403 " in await exchange(port, b"GET /healthz HTTP/1.0\r\n\r\n")


# Long polls and bodies in chunks

CLAIM = b'{"worker":"gone","queues":["default"],"wait_seconds":30}'


async def test_a_worker_that_disconnects_while_it_waits_gets_no_task(port: int) -> None:
    head = b"POST /v1/worker/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for _ in range(3):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(CLAIM) + CLAIM)
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.close()
        await writer.wait_closed()
    await asyncio.sleep(0.2)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        task = await submit(client)
        (claimed,) = await claim(client, wait_seconds=5)
        assert (claimed["id"], claimed["attempt"]) == (task["id"], 1)


async def test_one_connection_may_have_many_long_polls(port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", limits=httpx.Limits(max_connections=2)) as client:
        for _ in range(5):
            waiting = asyncio.create_task(claim(client, wait_seconds=10))
            await asyncio.sleep(0.05)
            task = await submit(client)
            assert [one["id"] for one in await waiting] == [task["id"]]


async def test_a_chunked_body_is_reassembled(port: int) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for chunk in (b'{"type"', b':"a","pay', b'load":{"b":1}}'):
            yield chunk
            await asyncio.sleep(0.01)

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        headers = {"Content-Type": "application/json"}
        response = await client.post("/v1/tasks", content=chunks(), headers=headers)
        assert (response.status_code, response.json()["payload"]) == (201, {"b": 1})
        large = b'{"type":"a","payload":"' + b"x" * 60_000 + b'"}'
        assert (await client.post("/v1/tasks", content=large, headers=headers)).status_code == 201


async def test_an_incomplete_submit_is_not_written(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD.replace(b"schedules", b"tasks") + b'Content-Length: 1000\r\n\r\n{"type":"a"}')
    await writer.drain()
    writer.close()

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/v1/tasks")).json()["items"] == []
