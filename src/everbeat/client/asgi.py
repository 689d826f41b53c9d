"""Calls an ASGI application in this process, without a socket and without streaming."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote

from everbeat.client.requests import HttpResponse, Request
from everbeat.version import __version__

_HEADERS = (
    (b"host", b"localhost"),
    (b"user-agent", f"everbeat-python/{__version__}".encode()),
    (b"accept", b"application/json"),
)


async def call_asgi(app: Any, request: Request) -> HttpResponse:
    """Return the response of the application. Exceptions of the application propagate."""
    exchange = _AsgiExchange(request)
    await app(exchange.scope, exchange.receive, exchange.send)
    return exchange.response()


class _AsgiExchange:
    def __init__(self, request: Request) -> None:
        path, _, query = request.path.partition("?")
        self._body = request.body or b""
        headers = [*_HEADERS, (b"content-length", str(len(self._body)).encode())]
        headers += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()]
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode("ascii"),
            "query_string": query.encode("ascii"),
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 0),
            "server": ("localhost", 80),
            "state": {},
        }
        self._is_request_read = False
        self._ended = asyncio.Event()
        self._status = 0
        self._response_headers: dict[str, str] = {}
        self._parts: list[bytes] = []

    async def receive(self) -> dict[str, Any]:
        if not self._is_request_read:
            self._is_request_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._ended.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._response_headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message.get("headers", ())
            }
        elif message["type"] == "http.response.body":
            self._parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                self._ended.set()

    def response(self) -> HttpResponse:
        if not self._ended.is_set():
            raise RuntimeError("the application ended without a complete response")
        return HttpResponse(self._status, self._response_headers, b"".join(self._parts))
