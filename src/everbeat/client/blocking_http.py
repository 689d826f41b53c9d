"""The blocking HTTP transport: http.client with a connection pool. It is thread-safe.

It shares the retry logic in client/exchange.py with the async transport. Compared with aiohttp in a background thread, a
request takes half the CPU time and is not passed between threads.
"""

from __future__ import annotations

import base64
import http.client
import select
import socket
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit
from uuid import UUID

from everbeat.client import requests
from everbeat.client.base import ApiResponse
from everbeat.client.endpoint import (
    CONNECT_TIMEOUT_SECONDS,
    KEEPALIVE_SECONDS,
    MAX_CONNECTIONS,
    TIMEOUT_SECONDS,
    Endpoint,
    endpoint_of,
)
from everbeat.client.exchange import Exchange, NoResponse, RetryBudget, Sleep, exchange
from everbeat.client.requests import HttpResponse, Request
from everbeat.client.servers import Servers
from everbeat.core.protocol import TaskInput


class BlockingHttpTransport:
    """The transport for sync code."""

    def __init__(self, url: str | Servers, api_key: str | None = None, *, retry_budget: RetryBudget | None = None) -> None:
        self.servers = url if isinstance(url, Servers) else Servers(url)
        self._retry_budget = retry_budget or RetryBudget()
        self._by_url = {one: _Server.of(one, api_key) for one in self.servers.urls}
        for server in self._by_url.values():
            # Closes the connections of an app that the program does not close itself.
            weakref.finalize(self, server.pool.close)

    @property
    def url(self) -> str:
        return str(self.servers)

    def close(self) -> None:
        for server in self._by_url.values():
            server.pool.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> ApiResponse:
        return requests.api_response_of(self._exchange(requests.build(method, path, query=query, body=body, headers=headers)))

    def submit(self, tasks: Sequence[TaskInput]) -> list[UUID]:
        return [id_ for request in requests.submit(tasks) for id_ in requests.ids_of(self._exchange(request), request)]

    def _exchange(self, request: Request) -> HttpResponse:
        steps: Exchange = exchange(request, self.servers, self._retry_budget)
        outcome: HttpResponse | NoResponse | None = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as done:
                response: HttpResponse = done.value
                return response
            if isinstance(step, Sleep):
                time.sleep(step.seconds)
                outcome = None
            else:
                outcome = self._send(step.request, self._by_url[step.url])

    def _send(self, request: Request, server: _Server) -> HttpResponse | NoResponse:
        timeout = request.timeout_seconds or TIMEOUT_SECONDS
        try:
            connection = server.pool.acquire(timeout)
        except OSError as error:
            return NoResponse(_reason_of(error), was_sent=False)
        is_reusable = False
        try:
            response, is_reusable = self._send_over(connection, server.bytes_of(request), request.method, timeout)
            return response
        except (OSError, http.client.HTTPException) as error:
            return NoResponse(_reason_of(error), was_sent=True)
        finally:
            server.pool.release(connection, is_reusable)

    def _send_over(
        self, connection: http.client.HTTPConnection, data: bytes, method: str, timeout: float
    ) -> tuple[HttpResponse, bool]:
        """Return the response, and whether the connection can be reused."""
        sock: socket.socket = connection.sock
        sock.settimeout(timeout)
        # Head and body in one packet; http.client would send two.
        sock.sendall(data)
        response = http.client.HTTPResponse(sock, method=method)
        try:
            response.begin()
            body = response.read()
            headers = {name.lower(): value for name, value in response.headers.items()}
            return HttpResponse(response.status, headers, body), not response.will_close
        finally:
            response.close()


class _Server(NamedTuple):
    """A server: its connections, the prefix of paths in the request line, and the header lines that all requests share."""

    pool: _ConnectionPool
    target_prefix: str
    head: str

    @classmethod
    def of(cls, url: str, api_key: str | None) -> _Server:
        endpoint = endpoint_of(url, api_key)
        return cls(_ConnectionPool(endpoint), *_request_head_of(endpoint))

    def bytes_of(self, request: Request) -> bytes:
        lines = [f"{request.method} {self.target_prefix}{request.path} HTTP/1.1\r\n{self.head}"]
        lines += [f"{name}: {_header_text(value)}\r\n" for name, value in request.headers.items()]
        if request.body is not None or request.method not in ("GET", "HEAD", "DELETE"):
            lines.append(f"content-length: {len(request.body or b'')}\r\n")
        lines.append("\r\n")
        return "".join(lines).encode("latin-1") + (request.body or b"")


def _request_head_of(endpoint: Endpoint) -> tuple[str, str]:
    """Return the prefix of the path in the request line, and the header lines that all requests share."""
    headers = {"host": endpoint.authority, **endpoint.headers}
    prefix = endpoint.base_path
    if endpoint.proxy is not None and endpoint.tls is None:
        # An http request is sent to the proxy, with the whole URL as its target.
        prefix = endpoint.url
        headers |= _proxy_headers(endpoint.proxy)
    return prefix, "".join(f"{name}: {_header_text(value)}\r\n" for name, value in headers.items())


def _header_text(value: str) -> str:
    if "\r" in value or "\n" in value:
        raise ValueError("a header cannot contain a line break")
    return value


def _proxy_headers(proxy: str) -> dict[str, str]:
    parts = urlsplit(proxy)
    if parts.username is None:
        return {}
    credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return {"proxy-authorization": f"Basic {base64.b64encode(credentials).decode()}"}


def _reason_of(error: Exception) -> str:
    if isinstance(error, http.client.RemoteDisconnected):
        return "the server closed the connection without a response"
    if isinstance(error, TimeoutError):
        return "timed out"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


class _IdleConnection(NamedTuple):
    connection: http.client.HTTPConnection
    since: float


class _ConnectionPool:
    """At most MAX_CONNECTIONS open connections. The most recently used is reused first."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._idle: list[_IdleConnection] = []

    def acquire(self, timeout: float) -> http.client.HTTPConnection:
        """Return an open connection. Raises OSError if none can be opened."""
        if not self._free.acquire(timeout=timeout):
            raise TimeoutError("all connections are in use")
        try:
            return self._idle_connection() or self._connect()
        except BaseException:
            self._free.release()
            raise

    def release(self, connection: http.client.HTTPConnection, is_reusable: bool) -> None:
        if is_reusable:
            with self._lock:
                self._idle.append(_IdleConnection(connection, time.monotonic()))
        else:
            connection.close()
        self._free.release()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for entry in idle:
            entry.connection.close()

    def _idle_connection(self) -> http.client.HTTPConnection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection, since = self._idle.pop()
            if time.monotonic() - since < KEEPALIVE_SECONDS and not _is_closed_by_server(connection.sock):
                return connection
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        endpoint = self._endpoint
        host, port = endpoint.host, endpoint.port
        if endpoint.proxy is not None:
            proxy = urlsplit(endpoint.proxy)
            host, port = proxy.hostname or "", proxy.port or 80
        if endpoint.tls is None:
            connection = http.client.HTTPConnection(host, port, timeout=CONNECT_TIMEOUT_SECONDS)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=CONNECT_TIMEOUT_SECONDS, context=endpoint.tls)
            if endpoint.proxy is not None:
                connection.set_tunnel(endpoint.host, endpoint.port, _proxy_headers(endpoint.proxy))
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        return connection


def _is_closed_by_server(sock: socket.socket) -> bool:
    """An idle connection has no data to read, so a readable one has been closed."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([sock], [], [], 0)[0])
