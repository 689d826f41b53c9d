"""A process that receives webhooks on all addresses of 127.0.0.0/8, and records when each request arrived.

The path says what to do: `/ok` and `/500` are answered, `/hang` is not. The second part of the path is the time of the submit.
"""

from __future__ import annotations

import asyncio
import re
import sys
from typing import cast

import uvloop

from bench.records import Writer

_REQUEST = re.compile(rb"[A-Z]+ /(ok|500|hang)/([0-9.]+) HTTP/1\.1\r\n")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *([0-9]+)\r\n")
_RESPONSES = {b"ok": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"500": b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n"}


class _Connection(asyncio.Protocol):
    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[: end + 2]
            length = _LENGTH.search(head)
            size = end + 4 + (int(length[1]) if length else 0)
            if len(self._buffer) < size:
                return
            self._buffer = self._buffer[size:]
            request = _REQUEST.match(head)
            assert request is not None, head
            if request[1] == b"ok":
                self._writer.write(float(request[2]))
            if request[1] != b"hang":
                self._transport.write(_RESPONSES[request[1]])


async def _main(port: int, path: str) -> None:
    writer = Writer(path)
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(writer), "0.0.0.0", port, backlog=4096)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_main(int(sys.argv[1]), sys.argv[2]))
