"""The HTTP server on a real socket, with a small app: parsing, keep-alive, deadlines, limits and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from everbeat.api.messages import Message, Receive, Scope, Send
from everbeat.config import Settings
from everbeat.http_protocol import MAX_HEAD_BYTES, MAX_HEADERS, MAX_TARGET_BYTES
from everbeat.serving import HttpServer, listen
from tests.support.certificates import make_certificate
from tests.support.processes import free_port

HEAD_SECONDS, WRITE_SECONDS = 1.0, 1.0
GET = b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n"

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class SmallApp:
    """An app whose behavior is selected by the path."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.headers: list[tuple[bytes, bytes]] = []
        self.may_respond = asyncio.Event()
        self.disconnected = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen.append(scope["path"])
        await getattr(self, scope["path"].strip("/") or "echo")(scope, receive, send)

    large_requests = 0

    async def echo(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond with the query string and the body of the request."""
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self.headers = scope["headers"]
        await respond(send, scope["query_string"] + b"|" + body)

    async def healthz(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.echo(scope, receive, send)

    async def early(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await respond(send, b"early", status=404)

    async def wait(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await self.may_respond.wait()
        await respond(send, b"waited")

    async def stream(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for block in (b"one", b"two"):
            await send({"type": "http.response.body", "body": block, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def large(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        self.large_requests += 1
        await respond(send, b"x" * 30_000_000)

    async def endless(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        watching = asyncio.create_task(self.watch(receive))
        while not self.disconnected.is_set():
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        await watching

    async def watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.disconnected.set()

    async def poll(self, _scope: Scope, receive: Receive, _send: Send) -> None:
        await self.watch(receive)

    async def fail(self, _scope: Scope, _receive: Receive, _send: Send) -> None:
        raise RuntimeError("secret")

    async def half(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError("secret")

    async def split(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"0"), (b"location", b"/a\r\nset-cookie: a=b")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})


async def respond(send: Send, body: bytes, status: int = 200) -> None:
    start: Message = {"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(body))]}
    await send(start)
    await send({"type": "http.response.body", "body": body, "more_body": False})


@contextlib.asynccontextmanager
async def serving(app: Any, **more: Any) -> AsyncIterator[tuple[HttpServer, int]]:
    settings = Settings(port=free_port(), header_deadline_seconds=HEAD_SECONDS, write_deadline_seconds=WRITE_SECONDS, **more)
    server = HttpServer(app, settings)
    task = asyncio.create_task(server.serve(listen(settings)))
    try:
        yield server, settings.port
    finally:
        task.cancel()
        await asyncio.wait({task})
        await server.stop(0.1)


@pytest.fixture
def app() -> SmallApp:
    return SmallApp()


@pytest.fixture
async def connect(app: SmallApp) -> AsyncIterator[Connect]:
    opened = []
    async with serving(app) as (_, port):

        async def open_one() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            opened.append(await asyncio.open_connection("127.0.0.1", port))
            return opened[-1]

        yield open_one
        for _, writer in opened:
            writer.transport.abort()


async def read_response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    async with asyncio.timeout(10):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        return int(status.split()[1]), headers, await reader.readexactly(int(headers.get("content-length", "0")))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def read_rest(reader: asyncio.StreamReader) -> bytes:
    """Return everything until the server closes the connection."""
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            return await reader.read(-1)
    return b""


async def exchange(connect: Connect, *chunks: bytes) -> bytes:
    reader, writer = await connect()
    with contextlib.suppress(ConnectionError):
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
    return await read_rest(reader)


async def test_one_connection_serves_many_requests(connect: Connect) -> None:
    reader, writer = await connect()
    for number in range(3):
        writer.write(b"POST /?%d HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi" % number)
        status, headers, body = await read_response(reader)
        assert (status, body) == (200, b"%d|hi" % number)
        assert headers["date"].endswith("GMT")
        assert "connection" not in headers


async def test_pipelined_requests_get_their_responses_in_order(connect: Connect, app: SmallApp) -> None:
    reader, writer = await connect()
    post = b"POST /?%d HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"
    writer.write(GET % b"/wait" + b"".join(post % number + b"x" * 100_000 for number in range(5)))
    await asyncio.sleep(0.05)
    assert app.seen == ["/wait"]
    app.may_respond.set()
    assert (await read_response(reader))[2] == b"waited"
    for number in range(5):
        assert (await read_response(reader))[2] == b"%d|" % number + b"x" * 100_000


async def test_a_chunked_body_is_reassembled(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    for chunk in (b"3\r\nabc\r\n", b"2\r", b"\nde\r\n0\r\n", b"\r\n"):
        await asyncio.sleep(0.01)
        writer.write(chunk)
    assert (await read_response(reader))[2] == b"|abcde"


async def test_a_stream_is_chunked_or_for_http_1_0_ends_with_the_connection(connect: Connect) -> None:
    new = await exchange(connect, b"GET /stream HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert b"transfer-encoding: chunked" in new
    assert new.endswith(b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")
    old = await exchange(connect, b"GET /stream HTTP/1.0\r\n\r\n")
    assert b"connection: close" in old
    assert old.endswith(b"\r\n\r\nonetwo")


async def test_head_has_a_length_and_no_body(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(b"HEAD /?a HTTP/1.1\r\nHost: a\r\n\r\n" + GET % b"/?b")
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"content-length: 2" in head
    assert (await read_response(reader))[2] == b"b|"


async def test_an_absolute_target_is_routed_by_its_path(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(b"GET http://other.example/?a=%41 HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await read_response(reader))[2] == b"a=%41|"


async def test_a_client_that_expects_100_continue_gets_it(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"hi")
    assert (await read_response(reader))[2] == b"|hi"


async def test_a_client_that_expects_100_continue_may_be_refused(connect: Connect) -> None:
    refused = await exchange(connect, b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 404")
    assert b"connection: close" in refused


# Responses that do not wait for the body


async def test_after_an_early_response_to_a_small_body_the_connection_continues(connect: Connect) -> None:
    reader, writer = await connect()
    for _ in range(2):
        writer.write(b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345")
        status, headers, _ = await read_response(reader)
        assert (status, "connection" in headers) == (404, False)
        writer.write(b"67890")
    writer.write(GET % b"/?a")
    assert (await read_response(reader))[2] == b"a|"


async def test_a_small_body_that_does_not_arrive_ends_the_connection(connect: Connect) -> None:
    assert (await exchange(connect, b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345")).endswith(b"early")


@pytest.mark.parametrize("length", [b"Content-Length: 20000000", b"Transfer-Encoding: chunked"])
async def test_after_an_early_response_to_a_large_body_the_connection_ends(connect: Connect, length: bytes) -> None:
    chunk = b"%x\r\n%b\r\n" % (1_000_000, b"x" * 1_000_000)
    response = await exchange(connect, b"POST /early HTTP/1.1\r\nHost: a\r\n%b\r\n\r\n" % length, *[chunk] * 18)
    assert b"connection: close" in response
    assert response.endswith(b"early")


# Request heads


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: lo"], ids=["nothing", "half a head"])
async def test_a_head_that_does_not_arrive_in_time_ends_the_connection(connect: Connect, begun: bytes) -> None:
    started = asyncio.get_running_loop().time()
    response = await exchange(connect, begun)
    assert HEAD_SECONDS - 0.1 < asyncio.get_running_loop().time() - started < HEAD_SECONDS + 5
    assert response.startswith(b"HTTP/1.1 408") if begun else response == b""


async def test_an_idle_connection_is_closed(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(GET % b"/?a")
    await read_response(reader)
    assert await read_rest(reader) == b""


async def test_a_request_may_take_longer_than_its_head(connect: Connect, app: SmallApp) -> None:
    reader, writer = await connect()
    writer.write(GET % b"/wait")
    await asyncio.sleep(HEAD_SECONDS * 1.5)
    app.may_respond.set()
    assert (await read_response(reader))[2] == b"waited"


@pytest.mark.parametrize(
    "head",
    [
        b"".join(b"X-%d: a\r\n" % number for number in range(MAX_HEADERS + 1)),
        b"X-Large: " + b"a" * MAX_HEAD_BYTES + b"\r\n",
        b"X-Endless: " + b"a" * MAX_HEAD_BYTES * 10,
    ],
    ids=["too many", "too large", "endless"],
)
async def test_the_size_of_a_head_is_limited(connect: Connect, head: bytes) -> None:
    response = await exchange(connect, b"GET / HTTP/1.1\r\nHost: a\r\n" + head, b"\r\n")
    assert response.startswith(b"HTTP/1.1 431")
    assert b"urn:everbeat:problem:head-too-large" in response


async def test_the_length_of_a_target_is_limited(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(GET % (b"/?" + b"a" * (MAX_TARGET_BYTES - 2)))
    assert (await read_response(reader))[0] == 200
    for pieces in (1, 3):
        request_ = GET % (b"/?" + b"a" * (MAX_TARGET_BYTES - 1))
        size = len(request_) // pieces + 1
        response = await exchange(connect, *(request_[at : at + size] for at in range(0, len(request_), size)))
        assert response.startswith(b"HTTP/1.1 414")
        assert b"urn:everbeat:problem:target-too-long" in response


TRAILED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "rest",
    [
        b"2\r\nhi\r\n0\r\n" + b"".join(b"X-%d: a\r\n" % number for number in range(MAX_HEADERS + 1)) + b"\r\n",
        b"2\r\nhi\r\n0\r\nX-Endless: " + b"a" * 4_000_000,
        b"2; extension=" + b"a" * 4_000_000 + b"\r\nhi\r\n0\r\n\r\n",
    ],
    ids=["too many trailers", "endless trailers", "an endless chunk extension"],
)
async def test_what_surrounds_the_parts_of_a_body_is_limited(connect: Connect, rest: bytes) -> None:
    response = await exchange(connect, TRAILED, *(rest[at : at + 16_384] for at in range(0, len(rest), 16_384)))
    assert response[9:12] in (b"431", b"400"), response  # 400: the parser has a limit of its own


async def test_trailers_do_not_become_headers(connect: Connect, app: SmallApp) -> None:
    reader, writer = await connect()
    writer.write(TRAILED + b"2\r\nhi\r\n0\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n")
    assert (await read_response(reader))[0] == 200
    assert [name for name, _ in app.headers] == [b"host", b"transfer-encoding"]


@pytest.mark.parametrize(
    "request_",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nhi",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\n folded: a\r\n\r\n",
        b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n",
    ],
)
async def test_invalid_http_is_refused(connect: Connect, request_: bytes) -> None:
    response = await exchange(connect, request_)
    assert response.startswith(b"HTTP/1.1 400"), response
    assert b"urn:everbeat:problem:malformed-request" in response
    assert response.count(b"HTTP/1.1 ") == 1


async def test_invalid_data_after_a_request_does_not_affect_its_response(connect: Connect) -> None:
    response = await exchange(connect, GET % b"/?a" + b"nonsense\r\n\r\n")
    assert response.startswith(b"HTTP/1.1 200")
    assert response.endswith(b"a|")


async def test_an_upgrade_request_is_treated_as_a_plain_request(connect: Connect) -> None:
    upgrade = b"GET /?a HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x05hello"
    response = await exchange(connect, upgrade)
    assert response.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in response


# Clients that disconnect, and clients that do not read


async def test_a_waiting_app_is_notified_of_a_disconnect(connect: Connect, app: SmallApp) -> None:
    _, writer = await connect()
    writer.write(GET % b"/poll")
    await asyncio.sleep(0.05)
    writer.close()
    async with asyncio.timeout(5):
        await app.disconnected.wait()


@pytest.mark.parametrize("path", [b"/endless", b"/large"])
async def test_a_client_that_does_not_read_is_disconnected(app: SmallApp, path: bytes) -> None:
    async with serving(app) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(GET % path)
        await asyncio.sleep(0.2)
        assert server.open_connections == 1
        async with asyncio.timeout(WRITE_SECONDS + 5):
            while server.open_connections:
                await asyncio.sleep(0.05)
        if path == b"/endless":
            async with asyncio.timeout(5):
                await app.disconnected.wait()
        writer.transport.abort()
        del reader


async def test_a_client_that_reads_a_few_bytes_from_time_to_time_is_disconnected(app: SmallApp) -> None:
    async with serving(app) as (server, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.send(GET % b"/large")
            async with asyncio.timeout(WRITE_SECONDS * 3 + 5):
                while server.open_connections or not app.large_requests:
                    with contextlib.suppress(BlockingIOError, ConnectionError):
                        client.recv(1)
                    await asyncio.sleep(0.05)


async def test_a_response_is_not_copied_into_the_buffer_of_the_connection(app: SmallApp) -> None:
    async with serving(app) as (server, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(GET % b"/large" * 3)
        await asyncio.sleep(0.3)
        (connection,) = server._connections
        assert 0 < connection._transport.get_write_buffer_size() < 300_000
        assert app.large_requests == 1, "the next request waits until this response is written"
        writer.transport.abort()


async def test_a_client_that_reads_slowly_is_served(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    count = 0
    async with asyncio.timeout(30):
        while chunk := await reader.read(2_000_000):
            count += len(chunk)
            await asyncio.sleep(0.02)
    assert count > 30_000_000


# Apps that fail


async def test_an_app_that_fails_is_a_problem_without_internals(connect: Connect) -> None:
    response = await exchange(connect, GET % b"/fail")
    assert response.startswith(b"HTTP/1.1 500")
    assert b"secret" not in response


async def test_an_incomplete_response_is_detectable(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(GET % b"/half")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await read_response(reader)


async def test_a_header_value_cannot_inject_another_header(connect: Connect) -> None:
    assert b"set-cookie" not in await exchange(connect, GET % b"/split")


# Limits on connections, and shutdown


async def test_a_new_connection_of_an_address_at_its_limit_replaces_an_idle_one(app: SmallApp) -> None:
    async with serving(app, max_connections_per_address=16) as (server, port):
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(16)]
        for _, writer in opened[1:]:
            writer.write(GET % b"/wait")
        opened[0][1].write(b"GET / HTTP/1.1\r\nHost:")
        await until(lambda: len(app.seen) == 15)
        opened.append(await asyncio.open_connection("127.0.0.1", port))
        assert await read_rest(opened[0][0]) == b""
        opened[16][1].write(GET % b"/?a")
        assert (await read_response(opened[16][0]))[0] == 200
        assert server.open_connections == 16
        app.may_respond.set()
        for reader, _ in opened[1:16]:
            assert (await read_response(reader))[0] == 200
        for _, writer in opened:
            writer.transport.abort()


async def test_an_address_with_busy_connections_only_can_still_ask_for_health(app: SmallApp) -> None:
    async with serving(app, max_connections_per_address=16) as (_, port):
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(16)]
        for _, writer in opened:
            writer.write(GET % b"/wait")
        await until(lambda: len(app.seen) == 16)
        for path, status in ((b"/healthz", 200), (b"/?a", 503), (b"/healthz", 200)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET % path)
            assert (await read_response(reader))[0] == status
            assert await read_rest(reader) == b"", "it is closed after the response"
            writer.transport.abort()
        for _, writer in opened:
            writer.transport.abort()


async def test_connections_of_a_trusted_proxy_are_not_limited_per_address(app: SmallApp) -> None:
    async with serving(app, max_connections_per_address=16, trusted_proxies=("127.0.0.0/8",)) as (server, port):
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        await asyncio.sleep(0.05)
        assert server.open_connections == 20
        for _, writer in opened:
            writer.transport.abort()


async def test_half_sent_heads_do_not_delay_others(app: SmallApp) -> None:
    async with serving(app, max_connections=64, trusted_proxies=("127.0.0.0/8",)) as (server, port):
        opened = []
        for _ in range(200):
            opened.append(await asyncio.open_connection("127.0.0.1", port))
            opened[-1][1].write(b"GET / HTTP/1.1\r\nHost:")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET % b"/?a")
        async with asyncio.timeout(HEAD_SECONDS / 2):
            assert (await read_response(reader))[0] == 200
        assert server.open_connections <= 64
        for _, other in (*opened, (reader, writer)):
            other.transport.abort()


async def test_connections_that_are_replaced_before_they_are_served_are_counted_as_closed(app: SmallApp) -> None:
    def open_many(port: int) -> list[socket.socket]:
        return [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]

    async with serving(app, max_connections=64) as (server, port):
        opened = open_many(port)  # the event loop, and with it the server, accepts them all at once
        await until(lambda: server.open_connections == 32)
        for connection in opened:
            connection.close()
        await until(lambda: server.open_connections == 0)


async def test_handshakes_that_do_not_end_do_not_delay_others(app: SmallApp, tmp_path: Path) -> None:
    certificate, key = (str(file) for file in make_certificate(tmp_path))
    limits = {"max_connections": 64, "max_connections_per_address": 16}
    async with serving(app, tls_certificate=certificate, tls_key=key, **limits) as (server, port):
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        context = ssl.create_default_context(cafile=certificate)
        async with asyncio.timeout(HEAD_SECONDS / 2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(GET % b"/?a")
            assert (await read_response(reader))[0] == 200
        assert server.open_connections <= 16
        for _, other in (*opened, (reader, writer)):
            other.transport.abort()


async def test_stopping_lets_a_request_finish_and_closes_idle_connections(app: SmallApp) -> None:
    async with serving(app) as (server, port):
        idle, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET % b"/wait")
        await asyncio.sleep(0.05)
        stopping = asyncio.create_task(server.stop(10))
        assert await read_rest(idle) == b""
        assert not stopping.done()
        app.may_respond.set()
        _, headers, body = await read_response(reader)
        assert (headers["connection"], body) == ("close", b"waited")
        async with asyncio.timeout(5):
            await stopping
        for one in (idle_writer, writer):
            one.close()


async def test_stopping_waits_only_until_its_deadline(app: SmallApp) -> None:
    async with serving(app) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET % b"/wait")
        await asyncio.sleep(0.05)
        async with asyncio.timeout(5):
            await server.stop(0.1)
        assert await read_rest(reader) == b""
        assert server.open_connections == 0
        writer.close()


# TLS


async def test_tls_requires_a_client_certificate_if_configured(app: SmallApp, tmp_path: Path) -> None:
    certificate, key = (str(file) for file in make_certificate(tmp_path))
    files = {"tls_certificate": certificate, "tls_key": key}
    known, unknown = ssl.create_default_context(cafile=certificate), ssl.create_default_context(cafile=certificate)
    known.load_cert_chain(certificate, key)
    for more, contexts in ((files, [unknown]), ({**files, "tls_client_ca": certificate}, [known])):
        async with serving(app, **more) as (_, port):
            for context in contexts:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
                writer.write(GET % b"/?a")
                assert (await read_response(reader))[2] == b"a|"
                writer.transport.abort()
    async with serving(app, **files, tls_client_ca=certificate) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=unknown)  # refused after the handshake
        writer.write(GET % b"/?a")
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await read_response(reader)
        writer.transport.abort()
        async with asyncio.timeout(5):
            while server.open_connections:
                await asyncio.sleep(0.02)


async def test_a_tls_handshake_has_the_same_deadline_as_a_head(app: SmallApp, tmp_path: Path) -> None:
    certificate, key = (str(file) for file in make_certificate(tmp_path))
    async with serving(app, tls_certificate=certificate, tls_key=key) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await read_rest(reader) == b""
        async with asyncio.timeout(5):
            while server.open_connections:
                await asyncio.sleep(0.02)
        writer.close()
