from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.support.listeners import stop_listening
from tests.support.processes import wait_until_async
from tests.support.proxy import FaultyProxy, ProxyThread, postgres_executes

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
CONNECTION_LOST = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)


class EchoServer:
    def __init__(self) -> None:
        self.received = bytearray()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(65_536):
                self.received += chunk
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()


@pytest.fixture
async def echo() -> AsyncIterator[EchoServer]:
    echo = EchoServer()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    echo.port = server.sockets[0].getsockname()[1]
    yield echo
    await stop_listening(server)


@pytest.fixture
async def proxy(echo: EchoServer) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy("127.0.0.1", echo.port) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: FaultyProxy) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
    yield reader, writer
    writer.transport.abort()


async def send(client: Streams, text: bytes, within_seconds: float = 5.0) -> bytes:
    reader, writer = client
    writer.write(text)
    async with asyncio.timeout(within_seconds):
        return await reader.read(65_536)


async def test_it_forwards_bytes_both_ways(client: Streams) -> None:
    assert await send(client, b"one") == b"one"


async def test_it_forwards_much_more_than_its_buffers_can_store(proxy: FaultyProxy, client: Streams) -> None:
    reader, writer = client
    proxy.delay_seconds = 0.05
    blob = bytes(range(256)) * 40_000
    writer.write(blob)
    async with asyncio.timeout(20):
        assert await reader.readexactly(len(blob)) == blob


async def test_cut_closes_and_refuses_until_healed(proxy: FaultyProxy, client: Streams) -> None:
    assert await send(client, b"one") == b"one"
    await proxy.cut()
    assert proxy.open_connections == 0
    with contextlib.suppress(OSError):
        assert await send(client, b"two") == b""
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(proxy.host, proxy.port)
    await proxy.heal()
    again = await asyncio.open_connection(proxy.host, proxy.port)
    assert await send(again, b"three") == b"three"
    again[1].transport.abort()


async def test_freeze_forwards_no_byte_and_accepts_connections(proxy: FaultyProxy, echo: EchoServer, client: Streams) -> None:
    assert await send(client, b"one") == b"one"
    proxy.freeze()
    late = await asyncio.open_connection(proxy.host, proxy.port)
    with pytest.raises(TimeoutError):
        await send(client, b"two", within_seconds=0.1)
    assert echo.received == b"one"
    proxy.thaw()
    assert await send(client, b"") == b"two"
    assert await send(late, b"three") == b"three"
    late[1].transport.abort()


async def test_delay_applies_in_each_direction(proxy: FaultyProxy, client: Streams) -> None:
    proxy.delay_seconds = 0.1
    started_at = time.monotonic()
    assert await send(client, b"one") == b"one"
    assert time.monotonic() - started_at >= 0.19


async def test_a_request_whose_reply_is_lost_reaches_the_server_and_ends_the_connection(
    proxy: FaultyProxy, echo: EchoServer, client: Streams
) -> None:
    proxy.drop_replies_after(2)
    assert await send(client, b"1") == b"1"
    assert await send(client, b"2") == b"2"
    assert await send(client, b"3") == b""
    assert echo.received == b"123"
    assert proxy.lost_replies == 1


async def test_only_the_matching_request_loses_its_reply(proxy: FaultyProxy, client: Streams) -> None:
    proxy.drop_replies_after(lambda request: b"commit" in request)
    assert await send(client, b"begin") == b"begin"
    assert await send(client, b"commit") == b""
    again = await asyncio.open_connection(proxy.host, proxy.port)
    assert await send(again, b"commit") == b"commit"
    again[1].transport.abort()


async def test_loss_by_probability_is_repeatable_with_the_same_seed(echo: EchoServer) -> None:
    async def outcomes() -> list[bool]:
        async with FaultyProxy("127.0.0.1", echo.port, seed=7) as proxy:
            proxy.lose_reply_probability = 0.5
            kept = []
            for _ in range(20):
                reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
                kept.append(await send((reader, writer), b"x") == b"x")
                writer.transport.abort()
            return kept

    first = await outcomes()
    assert first == await outcomes()
    assert set(first) == {True, False}


async def test_a_postgresql_commit_whose_reply_is_lost_is_committed(postgres_url: str) -> None:
    direct = await asyncpg.connect(postgres_url)
    await direct.execute("CREATE TABLE ledger (id int)")
    target = urlsplit(postgres_url)
    assert target.hostname is not None
    async with FaultyProxy(target.hostname, target.port or 5432) as proxy:
        for number, lose in enumerate((lambda request: b"COMMIT" in request, postgres_executes)):
            client = await asyncpg.connect(proxy.through(postgres_url))
            if number == 0:
                transaction = client.transaction()
                await transaction.start()
                await client.execute("INSERT INTO ledger VALUES (0)")
                proxy.drop_replies_after(lose)
                with pytest.raises(CONNECTION_LOST):
                    await transaction.commit()
            else:
                proxy.losable, proxy.lose_replies = lose, True
                with pytest.raises(CONNECTION_LOST):
                    await client.fetch("INSERT INTO ledger VALUES ($1)", 1)
            client.terminate()
        assert proxy.lost_replies == 2
        assert await direct.fetchval("SELECT array_agg(id ORDER BY id) FROM ledger") == [0, 1]
    await direct.close()


async def test_a_frozen_postgresql_connection_times_out_and_then_recovers(postgres_url: str) -> None:
    target = urlsplit(postgres_url)
    assert target.hostname is not None
    async with FaultyProxy(target.hostname, target.port or 5432) as proxy:
        client = await asyncpg.connect(proxy.through(postgres_url))
        proxy.freeze()
        with pytest.raises(TimeoutError):
            await client.fetchval("SELECT 1", timeout=0.2)
        client.terminate()
        proxy.thaw()
        await wait_until_async(lambda: proxy.open_connections == 0, message="the dead client's connection closed")
        client = await asyncpg.connect(proxy.through(postgres_url))
        assert await client.fetchval("SELECT 1") == 1
        await client.close()


def test_the_proxy_runs_in_a_thread_for_synchronous_tests() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ProxyThread("127.0.0.1", listener.getsockname()[1]) as thread,
    ):
        client = socket.create_connection(("127.0.0.1", thread.port), timeout=5)
        server, _ = listener.accept()
        with client, server:
            thread.freeze()
            client.sendall(b"ping")
            thread.thaw()
            assert server.recv(100) == b"ping"
            thread.cut()
            assert client.recv(100) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", thread.port), timeout=5)
