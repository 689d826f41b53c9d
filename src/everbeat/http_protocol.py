"""An HTTP/1.1 connection of the server. It parses requests with httptools, calls the ASGI app, and enforces limits.

The limits of a connection:
- The head of a request must arrive within `head_seconds`, counted from its first byte. This defends against slow clients that
  occupy connections (slow loris). The same limit applies to a connection that is idle between requests.
- A target may have up to MAX_TARGET_BYTES, and a head up to MAX_HEAD_BYTES and MAX_HEADERS. The same limits apply to trailers,
  and to the framing between two parts of a chunked body.
- At most about _MAX_BUFFERED_BYTES of a body are buffered. Reading is paused until the app has received them.
- A client that reads too little of its response within `write_seconds` is disconnected: less than 4 KiB per second, unless that
  is the rest. A response is written in parts of 128 KiB, each when the client has read most of the one before. So a connection
  buffers little, and the body of the response exists only once.
- The app may respond before the whole body has arrived. If little of the body is left, the rest is read and discarded, and the
  connection stays open. Otherwise the response contains `Connection: close`. The connection is then closed only after more of
  the body was discarded, because a client that is still sending would often lose the response to a TCP reset.

The app enforces the deadline of a body, and responds with 408 (api/bodies.py).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

import httptools
import structlog
import uuid_utils

from everbeat.api.messages import AsgiApp, Message, Scope
from everbeat.api.problems import (
    HEAD_TOO_LARGE,
    INTERNAL,
    MALFORMED,
    MEDIA_TYPE,
    TARGET_TOO_LONG,
    TOO_SLOW,
    HttpProblem,
    problem_body,
)

MAX_TARGET_BYTES = 8 * 1024
MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 100

_MAX_BUFFERED_BYTES = 64 * 1024
_MAX_WRITTEN_BYTES = 128 * 1024
_MIN_READ_BYTES_PER_SECOND = 4 * 1024
_MAX_SMALL_REST_BYTES, _SMALL_REST_SECONDS = 1024 * 1024, 1.0
_MAX_DISCARDED_BYTES, _DISCARD_SECONDS = 32 * 1024 * 1024, 2.0
_NEVER = math.inf

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus}
_ASGI = {"version": "3.0", "spec_version": "2.3"}
_DISCONNECT: Message = {"type": "http.disconnect"}

log = structlog.get_logger("everbeat.http")


class ConnectionSettings(NamedTuple):
    head_seconds: float = 15.0
    write_seconds: float = 30.0


class DateHeader:
    """The Date header, formatted once per second."""

    __slots__ = ("_line", "_second")

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        now = int(time.time())
        if now != self._second:
            self._second, self._line = now, b"date: %s\r\n" % formatdate(now, usegmt=True).encode()
        return self._line


class ServerConnection(asyncio.Protocol):
    """The protocol of one connection. `on_closed` is called once, with the connection, when it is lost.

    `closes`: the connection is closed after the first response.
    """

    def __init__(
        self,
        app: AsgiApp,
        settings: ConnectionSettings,
        date: DateHeader,
        on_closed: Callable[[ServerConnection], None],
        *,
        is_tls: bool = False,
        closes: bool = False,
    ) -> None:
        self._app = app
        self._settings = settings
        self.date = date
        self._on_closed = on_closed
        self._scheme = "https" if is_tls else "http"
        self._closes = closes
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._parser = httptools.HttpRequestParser(self)
        self._client: tuple[str, int] | None = None
        self._server: tuple[str, int] | None = None
        # The head that is being read.
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._is_reading_head = False
        # How many parts of requests were parsed, and how many bytes arrived since the last of them.
        self._progress = 0
        self._head_bytes = 0
        # The request that is being read, the one that the app is processing, and the pipelined ones that wait for it.
        self._reading: _Exchange | None = None
        self._current: _Exchange | None = None
        self._waiting: deque[_Exchange] = deque()
        self._idle_at = self._loop.time()
        self._tasks: set[asyncio.Task[None]] = set()
        # The transport.
        self._is_reading_paused = False
        self._writable: asyncio.Event | None = None  # not None while the write buffer is full
        self.was_connected = False
        self._is_closing = False
        self._is_stopping = False
        self._discarded: int | None = None  # bytes discarded since the end of the last response
        self._deadline = _NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        self._write_timer: asyncio.TimerHandle | None = None
        self._written = 0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.was_connected = True
        self._client = _address(transport.get_extra_info("peername"))
        self._server = _address(transport.get_extra_info("sockname"))
        self._set_deadline(self._settings.head_seconds)
        if self._is_stopping:
            self._close()

    def connection_lost(self, _error: Exception | None) -> None:
        self._is_closing = True
        for timer in (self._timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        if self._writable is not None:
            self._writable.set()
        for exchange in (self._reading, self._current, *self._waiting):
            if exchange is not None:
                exchange.disconnect()
        self._waiting.clear()
        self._on_closed(self)

    def data_received(self, data: bytes) -> None:
        if self._discarded is not None or self._is_closing:
            self._discard(len(data))
            return
        progress = self._progress
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._discarded = 0  # upgrades are not supported: respond to the request, and ignore the rest
        except httptools.HttpParserError as error:
            self._on_malformed(error)
        # True if the data was only a part of one head, of trailers, or of the framing of a chunk.
        if self._progress == progress and self._discarded is None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(_head_too_large().problem)
        else:
            self._head_bytes = 0

    def pause_writing(self) -> None:
        self._writable = asyncio.Event()
        if self._write_timer is None:
            self._watch_reader()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None
        if self._write_timer is not None and not self._is_closing:
            self._write_timer.cancel()
            self._write_timer = None

    # httptools

    def on_message_begin(self) -> None:
        self._progress += 1
        self._url = b""
        self._headers = []
        self._is_reading_head = True
        if self._current is None:
            self._set_deadline(self._settings.head_seconds)

    def on_url(self, part: bytes) -> None:
        self._url += part
        if len(self._url) > MAX_TARGET_BYTES:
            raise _HeadRefused(
                HttpProblem(TARGET_TOO_LONG, f"The target of a request may have at most {MAX_TARGET_BYTES} bytes.")
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise _HeadRefused(HttpProblem(MALFORMED, "The only transfer encoding that is supported is chunked."))
        self._headers.append((name, value))
        if len(self._headers) > MAX_HEADERS:
            raise _HeadRefused(HttpProblem(HEAD_TOO_LARGE, f"A request may have at most {MAX_HEADERS} headers."))

    def on_headers_complete(self) -> None:
        self._progress += 1
        self._is_reading_head = False
        headers, parser = self._headers, self._parser
        self._headers = []  # of the trailers, which are ignored
        if len(self._url) + sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEAD_BYTES:
            raise _head_too_large()
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise ValueError("only HTTP/1.1 and HTTP/1.0 are supported")
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) > 1 or (not hosts and version == "1.1"):
            raise _HeadRefused(HttpProblem(MALFORMED, "The request must have one Host header."))
        raw_path, query = _split(self._url)
        path = raw_path.decode("ascii")
        scope: Scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": self._scheme,
            "method": parser.get_method().decode("ascii"),
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": headers,
        }
        keeps_open = not self._closes and version == "1.1" and parser.should_keep_alive() and not parser.should_upgrade()
        exchange = self._reading = _Exchange(self, scope, keeps_open)
        if self._current is None:
            self._start(exchange)
        else:  # pipelined requests are processed one at a time
            self._waiting.append(exchange)
            self._pause_reading()

    def on_body(self, part: bytes) -> None:
        self._progress += 1
        exchange = self._reading
        if exchange is not None and not exchange.is_response_sent:
            exchange.add_body(part)
            if len(exchange.body) > _MAX_BUFFERED_BYTES:
                self._pause_reading()

    def on_message_complete(self) -> None:
        self._progress += 1
        exchange, self._reading = self._reading, None
        if exchange is None:
            return
        exchange.end_body()
        if exchange.is_response_sent and self._current is None:  # it was the rest of a body, after an early response
            self._next()

    # Called by exchanges

    def write(self, data: bytes) -> None:
        if not self._is_closing:
            self._written += len(data)
            self._transport.write(data)

    async def wait_writable(self) -> None:
        if self._writable is not None:
            await self._writable.wait()

    def resume_reading(self) -> None:
        if self._is_reading_paused and not self._is_closing and not self._waiting:
            self._is_reading_paused = False
            self._transport.resume_reading()

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    def response_sent(self, exchange: _Exchange) -> None:
        self._current = None
        self._idle_at = self._loop.time()
        if self._is_closing:
            return
        if not exchange.keeps_open:
            if exchange.has_body_left:
                self._linger()
            else:
                self._close()
        elif exchange.has_body_left:
            self._set_deadline(_SMALL_REST_SECONDS)
            self.resume_reading()
        else:
            self._next()

    def abort_response(self) -> None:
        """Abort the connection, so that the client does not take an incomplete response for a complete one."""
        self._is_closing = True
        self._transport.abort()

    # Called by the server

    def stop(self) -> None:
        """Close the connection: immediately if it is idle, otherwise after the current response."""
        self._is_stopping = True
        if self._transport is not None and self._current is None:
            self._close()

    @property
    def idle_seconds(self) -> float | None:
        """For how long the connection has been waiting for the head of a request; None while it is busy."""
        if self._current is not None:
            return None
        return self._loop.time() - self._idle_at

    def abort(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._transport is not None:
            self._transport.abort()

    # Internal

    def _start(self, exchange: _Exchange) -> None:
        self._current = exchange
        self._deadline = _NEVER
        task = self._loop.create_task(exchange.run(self._app))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _next(self) -> None:
        """Continue after a request and its response are complete."""
        if self._waiting:
            self._start(self._waiting.popleft())
        elif self._is_stopping:
            self._close()
            return
        else:
            self._set_deadline(self._settings.head_seconds)
        self.resume_reading()

    def _pause_reading(self) -> None:
        if not self._is_reading_paused and not self._is_closing:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def _set_deadline(self, seconds: float) -> None:
        """Set the deadline. To avoid a new timer for every request, a later deadline moves the timer only when it fires."""
        self._deadline = self._loop.time() + seconds
        if self._deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._start_timer()

    def _start_timer(self) -> None:
        self._timer_at = self._deadline
        self._timer = self._loop.call_at(self._deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, _NEVER
        if self._deadline == _NEVER or self._is_closing:
            return
        if self._loop.time() < self._deadline:
            self._start_timer()
        elif self._discarded is None and self._is_reading_head:
            detail = f"The head of the request did not arrive within {self._settings.head_seconds:g} seconds."
            self._refuse(HttpProblem(TOO_SLOW, detail))
        else:
            self._close()

    def _watch_reader(self) -> None:
        size = self._transport.get_write_buffer_size()
        least = min(size, int(_MIN_READ_BYTES_PER_SECOND * self._settings.write_seconds))
        seconds = self._settings.write_seconds
        self._write_timer = self._loop.call_later(seconds, self._check_reader, self._written - size + least)

    def _check_reader(self, expected: int) -> None:
        """Abort the connection if the client has read less than expected since the last check."""
        self._write_timer = None
        size = self._transport.get_write_buffer_size()
        if self._written - size < expected:
            self._is_closing = True
            self._transport.abort()
        elif size > 0:
            self._watch_reader()

    def _on_malformed(self, error: Exception) -> None:
        reading, cause = self._reading, error.__context__
        if isinstance(cause, _HeadRefused):
            self._refuse(cause.problem)
        elif self._current is not None and (reading is None or reading is not self._current):
            self._discarded = 0  # after a complete request, whose response is not sent yet
            self._current.keeps_open = False
        else:
            self._refuse(HttpProblem(MALFORMED, "The request is not valid HTTP/1.1."))

    def _refuse(self, problem: HttpProblem) -> None:
        """Respond in place of the app, and close the connection."""
        current = self._current
        if current is not None and current.has_started:  # its response is the last one
            current.keeps_open = False
            self._discarded = 0
            return
        if current is not None:
            current.disconnect()
        headers, body = problem_message(problem)
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        head = _STATUS_LINES[problem.kind.status] + self.date.line() + lines
        self._transport.write(head + b"connection: close\r\n\r\n" + body)
        self._linger()

    def _linger(self) -> None:
        """Close the connection, after discarding some of what the client is still sending."""
        self._discarded = 0
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._set_deadline(_DISCARD_SECONDS)
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._transport.resume_reading()

    def _discard(self, count: int) -> None:
        self._discarded = (self._discarded or 0) + count
        if self._discarded > _MAX_DISCARDED_BYTES:
            self._close()

    def _close(self) -> None:
        """Close the connection when everything is written. Abort it if the client does not read."""
        if self._is_closing:
            return
        self._is_closing = True
        self._transport.close()
        size = self._transport.get_write_buffer_size()
        if size > 0 and self._write_timer is None:
            self._watch_reader()


class _HeadRefused(Exception):
    def __init__(self, problem: HttpProblem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def _head_too_large() -> _HeadRefused:
    return _HeadRefused(HttpProblem(HEAD_TOO_LARGE, f"The head of a request may have at most {MAX_HEAD_BYTES} bytes."))


class _Exchange:
    """One request and its response: the `receive` and `send` of an ASGI call."""

    __slots__ = (
        "_connection",
        "_expects_continue",
        "_head",
        "_is_body_taken",
        "_is_chunked",
        "_is_disconnected",
        "_left",
        "_scope",
        "_waiter",
        "body",
        "has_body_left",
        "has_started",
        "is_response_sent",
        "keeps_open",
    )

    def __init__(self, connection: ServerConnection, scope: Scope, keeps_open: bool) -> None:
        self._connection = connection
        self._scope = scope
        self._head: bytes | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._expects_continue = any(name == b"expect" and value.lower() == b"100-continue" for name, value in scope["headers"])
        self._is_body_taken = False
        self._is_chunked = False
        self._is_disconnected = False
        self._left: int | None = None  # the part of the Content-Length that is not written yet
        self.body = bytearray()
        self.has_body_left = True
        self.has_started = False
        self.is_response_sent = False
        self.keeps_open = keeps_open

    async def run(self, app: AsgiApp) -> None:
        connection = self._connection
        try:
            await app(self._scope, self.receive, self.send)
        except Exception as error:
            log.error("connection_failed", error=repr(error))
            if not self.has_started and not self._is_disconnected:
                self._fail()
                return
        if not self.is_response_sent and not self._is_disconnected:
            connection.abort_response()

    def _fail(self) -> None:
        headers, body = problem_message(HttpProblem(INTERNAL, "The error was logged."))
        self.keeps_open = False
        self._start_response(500, headers)
        self._write(body if self._scope["method"] != "HEAD" else b"", is_last=True)

    # The request

    def add_body(self, part: bytes) -> None:
        self.body += part
        self._wake()

    def end_body(self) -> None:
        self.has_body_left = False
        self._wake()

    def disconnect(self) -> None:
        self._is_disconnected = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> Message:
        if self._expects_continue and not self.has_started:
            self._expects_continue = False
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while True:
            if self._is_disconnected or self.is_response_sent:
                return _DISCONNECT
            if not self._is_body_taken and (self.body or not self.has_body_left):
                body, self.body = bytes(self.body), bytearray()
                self._is_body_taken = not self.has_body_left
                self._connection.resume_reading()
                return {"type": "http.request", "body": body, "more_body": self.has_body_left}
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    # The response

    async def send(self, message: Message) -> None:
        if self._is_disconnected:
            await asyncio.sleep(0)  # an app that only sends must not block the event loop
            return
        if message["type"] == "http.response.start":
            self._start_response(message["status"], message["headers"])
            return
        has_more = message.get("more_body", False)
        body = memoryview(message.get("body", b""))
        # The client may not have read the response before this one.
        await self._connection.wait_writable()
        while len(body) > _MAX_WRITTEN_BYTES and not self._is_disconnected:
            self._write(bytes(body[:_MAX_WRITTEN_BYTES]), is_last=False)
            body = body[_MAX_WRITTEN_BYTES:]
            await self._connection.wait_writable()
        if self._is_disconnected:
            return
        self._write(bytes(body), is_last=not has_more)
        if has_more:
            await self._connection.wait_writable()

    def _start_response(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Prepare the head. It is sent with the first part of the body."""
        if self.has_started:
            raise RuntimeError("the response has already started")
        self.has_started = True
        if self._connection.is_stopping or (self.has_body_left and self._is_rest_large()):
            self.keeps_open = False
        parts = [_STATUS_LINES[status], self._connection.date.line()]
        for name, value in headers:
            if name == b"content-length":
                self._left = int(value)
            parts += (name, b": ", value, b"\r\n")
        count = len(headers) + 2
        if self._scope["method"] == "HEAD" or status in (204, 304):
            self._left = 0
        elif self._left is None:
            self._is_chunked = self._scope["http_version"] == "1.1"
            if self._is_chunked:
                parts.append(b"transfer-encoding: chunked\r\n")
                count += 1
            else:
                self.keeps_open = False
        if not self.keeps_open:
            parts.append(b"connection: close\r\n")
            count += 1
        head = b"".join(parts)
        if head.count(b"\n") != count or head.count(b"\r") != count:
            raise RuntimeError("a response header contains a line break")
        self._head = head + b"\r\n"

    def _write(self, body: bytes, *, is_last: bool) -> None:
        if not self.has_started or self.is_response_sent:
            raise RuntimeError("the response has not started, or is complete")
        if self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if is_last:
                data += b"0\r\n\r\n"
        else:
            data = body if self._scope["method"] != "HEAD" else b""
            if self._left is not None:
                self._left -= len(data)
                if self._left < 0 or (is_last and self._left > 0):
                    raise RuntimeError("the length of the response does not match its Content-Length")
        if self._head is not None:
            data, self._head = self._head + data, None
        if data:
            self._connection.write(data)
        if is_last:
            self.is_response_sent = True
            self._wake()
            self._connection.response_sent(self)

    def _is_rest_large(self) -> bool:
        """Whether the rest of the body is large, of unknown length, or perhaps never sent, for lack of a 100 Continue."""
        if self._expects_continue:
            return True
        for name, value in self._scope["headers"]:
            if name == b"content-length":
                return int(value) > _MAX_SMALL_REST_BYTES
        return True


def problem_message(problem: HttpProblem) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the headers and the body of an error response that does not come from the app."""
    request_id = str(uuid_utils.uuid7())
    body = problem_body(problem, request_id)
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
        (b"x-request-id", request_id.encode()),
    ]
    return headers, body


def _split(url: bytes) -> tuple[bytes, bytes]:
    """Return the path and the query string of a request target, which may be an absolute URL."""
    if url.startswith(b"/") and b"#" not in url:
        path, _, query = url.partition(b"?")
        return path, query
    parsed: Any = httptools.parse_url(url)
    return parsed.path or b"/", parsed.query or b""


def _address(found: Any) -> tuple[str, int] | None:
    return (str(found[0]), int(found[1])) if isinstance(found, tuple | list) and len(found) >= 2 else None
