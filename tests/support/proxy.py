"""A TCP proxy that injects network faults: cut, half-open and slow connections, and lost replies.

"Reply lost after commit": the request reaches the server and is executed, but the reply never arrives. A client cannot
distinguish this from a request that was not executed. Everbeat must be correct in both cases.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from tests.support.listeners import stop_listening
from tests.support.processes import free_port

T = TypeVar("T")
RequestTest = Callable[[bytes], bool]

CHUNK_BYTES = 65_536
QUEUED_CHUNKS = 64
DRAIN_SECONDS = 5.0


def postgres_executes(request: bytes) -> bool:
    """Whether a request to PostgreSQL executes something (Query or Execute) instead of only preparing it.

    asyncpg sends Parse and Bind/Execute in two round trips. Losing the reply to the first loses no commit.
    """
    position = 0
    while position + 5 <= len(request):
        if request[position : position + 1] in (b"Q", b"E"):
            return True
        position += 1 + int.from_bytes(request[position + 1 : position + 5])
    return False


class FaultyProxy:
    """Listens on a free loopback port and forwards bytes to the target.

    Faults that are attributes take effect immediately, also on open connections: `delay_seconds` in each direction,
    `lose_replies` to lose every reply and `lose_reply_probability` to lose some. The last two apply only to requests for which
    `losable(request)` is true. A lost reply closes its connection.
    """

    host = "127.0.0.1"

    def __init__(self, target_host: str, target_port: int, *, seed: int = 0) -> None:
        self.port = free_port()
        self.delay_seconds = 0.0
        self.lose_replies = False
        self.lose_reply_probability = 0.0
        self.losable: RequestTest = lambda request: True
        self.accepted = 0
        self.lost_replies = 0
        self._target = (target_host, target_port)
        self._random = random.Random(seed)
        self._loses_next: RequestTest | None = None
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._thawed = asyncio.Event()
        self._thawed.set()

    async def __aenter__(self) -> Self:
        await self.heal()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    def through(self, url: str) -> str:
        """Return the URL with the host and port of this proxy."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}{self.host}:{self.port}"))

    async def cut(self) -> None:
        """Close all connections and refuse new ones."""
        server, self._server = self._server, None
        if server is not None:
            await stop_listening(server)
        connections = dict(self._connections)
        for connection, writer in connections.items():
            connection.cancel()
            writer.transport.abort()  # a task that has not started does not close its connection
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0)
        if server is not None:
            await server.wait_closed()

    async def heal(self) -> None:
        """Accept connections again, on the same port, and forward bytes. Attributes keep their values."""
        self.thaw()
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, self.host, self.port)

    def freeze(self) -> None:
        """Become half-open: connections are accepted and stay open, but no bytes and no close are forwarded."""
        self._thawed.clear()

    def thaw(self) -> None:
        """Deliver what `freeze` has delayed, and forward bytes again."""
        self._thawed.set()

    def drop_replies_after(self, condition: int | RequestTest) -> None:
        """Lose one reply and close its connection: after a number of replies, or for the first matching request."""
        if isinstance(condition, int):
            remaining = iter(range(condition))
            self._loses_next = lambda request: next(remaining, None) is None
        else:
            self._loses_next = condition

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(lambda task: self._connections.pop(task, None))
        self.accepted += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._connect(reader, writer)
        except (OSError, asyncio.CancelledError):
            # Cancelled by cut(). Without this handler, asyncio would report an error.
            pass
        finally:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._thawed.wait()
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        link = _Link(self, reader, writer, server_reader, server_writer)
        try:
            await link.run()
        finally:
            server_writer.transport.abort()

    def _should_lose_reply(self, request: bytes) -> bool:
        if self._loses_next is not None and self._loses_next(request):
            self._loses_next = None
            return True
        if not (self.lose_replies or self.lose_reply_probability) or not self.losable(request):
            return False
        return self.lose_replies or self._random.random() < self.lose_reply_probability


class _Link:
    """A client connection and its connection to the target."""

    def __init__(
        self,
        proxy: FaultyProxy,
        client_reader: asyncio.StreamReader,
        client_writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._client_reader, self._client_writer = client_reader, client_writer
        self._server_reader, self._server_writer = server_reader, server_writer
        self._request = bytearray()

    async def run(self) -> None:
        """Forward bytes until either side closes or a reply is lost."""
        to_server: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUED_CHUNKS)
        to_client: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUED_CHUNKS)
        reply_lost = asyncio.create_task(self._read_replies(to_client))
        ends = [
            asyncio.create_task(self._deliver(to_server, self._server_writer)),
            asyncio.create_task(self._deliver(to_client, self._client_writer)),
        ]
        others = [asyncio.create_task(self._read_requests(to_server)), reply_lost]
        try:
            waiting: set[asyncio.Task[Any]] = {*ends, reply_lost}
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if reply_lost in done and reply_lost.exception() is None and reply_lost.result():
                    self._client_writer.transport.abort()
                    await self._let_server_finish()
                    return
                if not done.isdisjoint(ends):
                    return
        finally:
            for task in (*ends, *others):
                task.cancel()
            await asyncio.gather(*ends, *others, return_exceptions=True)

    async def _read_requests(self, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
        while chunk := await _read(self._client_reader):
            await self._enqueue(queue, chunk)
        await self._enqueue(queue, b"")

    async def _read_replies(self, queue: asyncio.Queue[tuple[float, bytes]]) -> bool:
        """Read from the server until it closes. Return true if a reply was lost instead."""
        while chunk := await _read(self._server_reader):
            request = bytes(self._request)
            self._request.clear()
            if self._proxy._should_lose_reply(request):
                self._proxy.lost_replies += 1
                return True
            await self._enqueue(queue, chunk)
        await self._enqueue(queue, b"")
        return False

    async def _enqueue(self, queue: asyncio.Queue[tuple[float, bytes]], chunk: bytes) -> None:
        # The delay is a latency: chunks in flight overlap, so it does not limit throughput.
        await queue.put((asyncio.get_running_loop().time() + self._proxy.delay_seconds, chunk))

    async def _deliver(self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        """Write chunks when they are due. Return when the side that sends them has closed."""
        while True:
            due_at, chunk = await queue.get()
            await asyncio.sleep(due_at - asyncio.get_running_loop().time())
            await self._proxy._thawed.wait()
            if not chunk:
                await self._pass_close(writer)
                return
            if writer is self._server_writer:
                self._record_request(chunk)
            writer.write(chunk)
            await writer.drain()

    def _record_request(self, chunk: bytes) -> None:
        if len(self._request) < CHUNK_BYTES:
            self._request += chunk

    async def _pass_close(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await writer.wait_closed()

    async def _let_server_finish(self) -> None:
        """Close the sending side of the server connection, and wait until the server has finished the request."""
        self._server_writer.write_eof()
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while await _read(self._server_reader):
                    pass
        except TimeoutError:
            pass


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(CHUNK_BYTES)
    except OSError:
        return b""


class ProxyThread:
    """A FaultyProxy in a separate thread and event loop, for synchronous tests and for code that blocks the loop.

    Set attributes on `.proxy` directly; they are read for every chunk.
    """

    def __init__(self, target_host: str, target_port: int, *, seed: int = 0) -> None:
        self.proxy = FaultyProxy(target_host, target_port, seed=seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.heal()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def port(self) -> int:
        return self.proxy.port

    def through(self, url: str) -> str:
        return self.proxy.through(url)

    def cut(self) -> None:
        self._call(self.proxy.cut())

    def heal(self) -> None:
        self._call(self.proxy.heal())

    def freeze(self) -> None:
        self._call(_run_in_loop(self.proxy.freeze))

    def thaw(self) -> None:
        self._call(_run_in_loop(self.proxy.thaw))

    def drop_replies_after(self, condition: int | RequestTest) -> None:
        self._call(_run_in_loop(lambda: self.proxy.drop_replies_after(condition)))

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10.0)


async def _run_in_loop(action: Callable[[], None]) -> None:
    action()
