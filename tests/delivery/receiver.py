"""A webhook receiver for tests: answers every request with the bytes that the test chooses, on any loopback address."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, Self

from tests.support.listeners import stop_listening


class Received(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Respond = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


def response(status: int = 200, body: bytes = b"ok", **headers: str) -> Respond:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]

    async def respond(_received: Received, writer: asyncio.StreamWriter) -> None:
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    return respond


class Receiver:
    """With a certificate it speaks TLS, and with a client authority it requires a certificate of the client."""

    def __init__(
        self,
        respond: Respond | None = None,
        *,
        host: str = "127.0.0.1",
        certificate: Path | None = None,
        key: Path | None = None,
        client_authority: Path | None = None,
    ) -> None:
        self._tls: ssl.SSLContext | None = None
        if certificate is not None:
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._tls.load_cert_chain(certificate, key)
            if client_authority is not None:
                self._tls.load_verify_locations(client_authority)
                self._tls.verify_mode = ssl.CERT_REQUIRED
        self.received: list[Received] = []
        self.respond = respond or response()
        self.host = host
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{self.host}:{self.port}/hook"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self.host, 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_error: object) -> None:
        await stop_listening(self._server)
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.rstrip("\r\n").split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, path, _ = first.split(" ")
                received = Received(method, path, headers, body)
                self.received.append(received)
                await self.respond(received, writer)
                await writer.drain()
        writer.close()
