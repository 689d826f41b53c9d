"""A bare HTTP/1.1 client: requests made beforehand, one connection each, so that the client is not what is measured."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any


def post(port: int, path: str, content: Any, **headers: str) -> bytes:
    """The bytes of one POST with a body of JSON."""
    body = json.dumps(content).encode()
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{more}\r\n"
    )
    return head.encode() + body


def batch_request(port: int, schedules: Sequence[dict[str, Any]]) -> bytes:
    """The bytes of one POST /v1/schedules/batch."""
    return post(port, "/v1/schedules/batch", {"schedules": list(schedules)})


async def send_all(port: int, requests: Sequence[bytes], clients: int) -> list[bytes]:
    """Send the requests over so many connections at once; every answer must be a 2xx. The bodies, in no special order."""

    async def client(own: Sequence[bytes]) -> list[bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        bodies = []
        for request in own:
            writer.write(request)
            bodies.append(await _answer(reader))
        writer.close()
        return bodies

    parts = await asyncio.gather(*(client(requests[number::clients]) for number in range(clients)))
    return [body for part in parts for body in part]


async def get(port: int, path: str) -> bytes:
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    return (await send_all(port, [request], 1))[0]


async def _answer(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    status = int(head.split(" ", 2)[1])
    lengths = [line.partition(":")[2] for line in head.split("\r\n") if line.startswith("content-length:")]
    body = await reader.readexactly(int(lengths[0])) if lengths else b""
    if not 200 <= status < 300:
        raise RuntimeError(f"the server answered {status}: {body[:500]!r}")
    return body
