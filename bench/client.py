"""A minimal HTTP/1.1 client with requests encoded in advance, so that the client adds little to the measurement."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any


def post(port: int, path: str, content: Any, **headers: str) -> bytes:
    """Encode a POST request with a JSON body."""
    body = json.dumps(content).encode()
    extra_headers = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{extra_headers}\r\n"
    )
    return head.encode() + body


def batch_request(port: int, schedules: Sequence[dict[str, Any]]) -> bytes:
    """Encode a POST /v1/schedules/batch request."""
    return post(port, "/v1/schedules/batch", {"schedules": list(schedules)})


async def send_all(port: int, requests: Sequence[bytes], clients: int) -> list[bytes]:
    """Send the requests over `clients` connections and return the bodies, in any order. Every response must be a 2xx."""

    async def client(part: Sequence[bytes]) -> list[bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        bodies = []
        for request in part:
            writer.write(request)
            bodies.append(await _read_response(reader))
        writer.close()
        return bodies

    parts = await asyncio.gather(*(client(requests[number::clients]) for number in range(clients)))
    return [body for part in parts for body in part]


async def get(port: int, path: str) -> bytes:
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    return (await send_all(port, [request], 1))[0]


async def _read_response(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    status = int(head.split(" ", 2)[1])
    lengths = [line.partition(":")[2] for line in head.split("\r\n") if line.startswith("content-length:")]
    body = await reader.readexactly(int(lengths[0])) if lengths else b""
    if not 200 <= status < 300:
        raise RuntimeError(f"the server responded with {status}: {body[:500]!r}")
    return body
