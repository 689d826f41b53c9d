"""Bodies that are too large, never end, are compressed, or are no valid JSON; and values that no field accepts."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
from typing import Any

from tests.attack.registry import attack
from tests.attack.target import Target

_MEGABYTE = 1024 * 1024
_JSON = {"Content-Type": "application/json"}
_START = b'{"type":"t","payload":'
_CLIENTS = 16


async def _status(reader: asyncio.StreamReader) -> int:
    """Return the status of the next response, or 0 if the connection was closed without one."""
    async with asyncio.timeout(20):
        try:
            line = await reader.readline()
        except ConnectionError:
            return 0
    return int(line.split()[1]) if line else 0


@attack
async def bodies_of_100_mb(target: Target) -> None:
    """Refused by their declared length, before they are sent; and while they are sent, if nothing is declared."""

    async def declared() -> None:
        headers = {**_JSON, "Content-Length": str(100 * _MEGABYTE)}
        async with target.connect() as (reader, writer):
            writer.write(target.head("POST", "/v1/tasks", "submit", headers))
            assert await _status(reader) == 413

    async def endless() -> None:
        chunk = b"%x\r\n" % _MEGABYTE + b" " * _MEGABYTE + b"\r\n"
        async with target.connect() as (reader, writer):
            writer.write(target.head("POST", "/v1/tasks", "submit", {**_JSON, "Transfer-Encoding": "chunked"}))
            with contextlib.suppress(ConnectionError):
                for _ in range(100):
                    writer.write(chunk)
                    await writer.drain()
                raise AssertionError("100 MB of an endless body were accepted")
            assert await _status(reader) in (0, 413)

    await asyncio.gather(*(declared() for _ in range(_CLIENTS)), endless(), endless())


@attack
async def bodies_in_chunks_of_a_byte(target: Target) -> None:
    """A chunk costs the server more than its byte."""

    async def send() -> None:
        async with target.connect() as (reader, writer):
            writer.write(target.head("POST", "/v1/tasks", "submit", {**_JSON, "Transfer-Encoding": "chunked"}))
            with contextlib.suppress(ConnectionError):
                for _ in range(20):
                    writer.write(b"1\r\n \r\n" * 2_000)
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
            assert await _status(reader) in (0, 400, 413)

    await asyncio.gather(*(send() for _ in range(4)))


@functools.cache  # the attacker's work must not count as the server's
def _bomb(megabytes: int) -> bytes:
    return gzip.compress(b" " * (megabytes * _MEGABYTE), 1)


@attack
async def compressed_bombs(target: Target) -> None:
    """200 kB that unpack to 200 MB are not unpacked."""
    bomb = _bomb(200 if target.is_long else 20)
    async with target.client("submit") as client:
        for encoding in ("gzip", "deflate", "br", "zstd", "gzip, gzip"):
            response = await client.post("/v1/tasks", content=bomb, headers={**_JSON, "Content-Encoding": encoding})
            assert response.status_code == 415, (encoding, response.status_code)


_MALFORMED = {
    "deep nesting": _START + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "open brackets": b'{"a":' * 400_000,
    "NaN": _START + b"NaN}",
    "Infinity": _START + b"[-Infinity]}",
    "an overflow": _START + b"1e999}",
    "a number of a million digits": _START + b"9" * 1_000_000 + b"}",
    "duplicate keys": _START + b'1,"payload":2}',
    "duplicate keys inside": _START + b'{"a":{"b":1,"b":1}}}',
    "a lone surrogate": _START + b'"\\ud800"}',
    "a raw NUL": _START + b'"\x00"}',
    "invalid UTF-8": _START + b'"\xff\xfe"}',
    "no JSON": b"\x80" * 1_000_000,
    "an open string": _START + b'"' + b"a" * 1_000_000,
    "a million escapes": _START + b'"' + b"\\u00e4" * 300_000,
}


@attack
async def malformed_bodies(target: Target) -> None:
    async with target.client("submit") as client:

        async def send(why: str, body: bytes) -> None:
            response = await client.post("/v1/tasks", content=body, headers=_JSON)
            assert response.status_code in (400, 413), (why, response.status_code, response.text[:300])

        for _ in range(2):
            await asyncio.gather(*(send(why, body) for why, body in _MALFORMED.items()))


_ODD_TEXTS = {
    "a NUL": "a\x00b",
    "right to left": "\u202eevil\u202c",
    "a line break": "a\nb",
    "an escape sequence": "\x1b[31mred",
    "a megabyte": "n" * _MEGABYTE,
    "many zero-width joiners": "\u200d" * 50_000,
    "SQL": "'; DROP TABLE tasks; --" * 20,
    "a path": "../../../../etc/passwd\x00",
}


@attack
async def odd_names(target: Target) -> None:
    """Names of schedules, queues, types, tenants, keys and calendars. None of them is accepted, and none is a 500."""
    async with target.client("manage") as manager, target.client("submit") as submitter:

        async def refused(response: Any, why: str) -> None:
            assert 400 <= response.status_code < 500, (why, response.status_code, response.text[:300])
            assert len(response.content) < 5_000, (why, "the error repeats the input")

        for why, text in _ODD_TEXTS.items():
            worker = {"kind": "worker", "type": "t"}
            await refused(
                await manager.post("/v1/schedules", json={"name": text, "cron": "@daily", "target": worker}), f"schedule {why}"
            )
            await refused(await submitter.post("/v1/tasks", json={"type": text}), f"type {why}")
            await refused(await submitter.post("/v1/tasks", json={"type": "t", "queue": text}), f"queue {why}")
            await refused(await manager.put("/v1/calendars/x", json={"name": text, "dates": []}), f"calendar {why}")
            await refused(await manager.post("/v1/preview", json={"cron": text}), f"cron {why}")
            await refused(await manager.post("/v1/preview", json={"cron": "@daily", "timezone": text}), f"zone {why}")
