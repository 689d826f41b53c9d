"""Large bodies of every shape, and bodies that stall."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

from tests.attack.registry import attack
from tests.attack.target import Target, bearer

_BYTES = 10_000_000
_SHORT_BYTES = 2_000_000
_ICS_LINE = "DTSTART:20260101T090000Z"


def _filled(part: bytes, size: int, before: bytes = b"[", after: bytes = b"0]") -> bytes:
    return before + part * (size // len(part)) + after


def _payloads(size: int) -> Iterator[bytes]:
    for part in (b"[],", b"{},", b"[[]],", b"0,", b"9e300,", b'"",', b'{"a":0,"b":0},', b'{"":{}},', b'{"a":[{"a":[]}]},'):
        yield _filled(part, size)
    for part in (b"a", b"\\n", b"\\u00e9", "\u00e9".encode()):
        yield _filled(part, size, b'"', b'"')
    yield b"{" + b",".join(b'"%07d":0' % number for number in range(size // 12)) + b"}"


def _size(target: Target) -> int:
    return _BYTES if target.is_long else _SHORT_BYTES


@attack
async def payloads_of_every_shape(target: Target) -> None:
    """Payloads of many small values, of escapes and of many keys."""
    async with target.client("submit") as client:
        for payload in _payloads(_size(target)):
            response = await client.post(
                "/v1/tasks", content=b'{"type":"shape","payload":%b}' % payload, headers={"Content-Type": "application/json"}
            )
            assert response.status_code == 201, response.text


@attack
async def refused_payloads(target: Target) -> None:
    """Large payloads that are refused: duplicate keys, deep nesting, invalid text."""
    size = _size(target)
    refused = {
        400: (
            b'{"a":1,"b":%b,"a":1}' % _filled(b"[],", size),
            _filled(b"[],", size, after=b"1e999]"),
            _filled(b"a", size, b'"', b'\xff"'),
            b"[" * size,
        ),
        422: (_filled(b"[],", size, b"[" * 70, b"0" + b"]" * 70),),
        413: (_filled(b"a", 11_000_000, b'"', b'"'),),
    }
    async with target.client("submit") as client:
        for status, payloads in refused.items():
            for payload in payloads:
                body = b'{"type":"shape","payload":%b}' % payload
                response = await client.post("/v1/tasks", content=body, headers={"Content-Type": "application/json"})
                assert response.status_code == status, response.text


@attack
async def batches_of_many_fields(target: Target) -> None:
    """Batches of 10,000 tasks with many labels, valid and invalid, and lists of values that are no tasks."""
    count, labels = (10_000, 30) if target.is_long else (2_000, 10)
    one = {"type": "many", "delay_seconds": 86_400, "labels": {f"label-{number}": "value" for number in range(labels)}}
    bad = {**one, "type": "not a name"}
    async with target.client("submit") as client:
        for tasks, status in (([one] * count, 200), ([bad] * count, 422), ([0] * 1_000_000, 422), ([{}] * 10_000, 422)):
            body = json.dumps({"tasks": tasks}, separators=(",", ":"))
            response = await client.post("/v1/tasks/batch", content=body, headers={"Content-Type": "application/json"})
            assert response.status_code == status, response.text


@attack
async def large_definitions(target: Target) -> None:
    """Schedules and calendars with far too many values."""
    size = _size(target)
    bodies = {
        "/v1/schedules/large": b'{"cron":"0 0 * * *","target":{"kind":"worker","type":"x"},"payload":%b}'
        % _filled(b"[],", size),
        "/v1/schedules/wide": b'{"cron":"0 0 * * *","target":{"kind":"worker","type":"x"},"labels":%b}' % _filled(b"{},", size),
        "/v1/calendars/dates": b'{"dates":%b}' % _filled(b'"2026-01-01",', size, after=b'"2026-01-02"]'),
        "/v1/calendars/file": json.dumps({"ics": "\r\n".join([_ICS_LINE] * (size // 30))}).encode(),
    }
    async with target.client("manage") as client:
        for path, body in bodies.items():
            response = await client.put(path, content=body, headers={"Content-Type": "application/json"})
            assert response.status_code in (413, 422), response.text


@attack
async def large_results(target: Target) -> None:
    """Results and errors of workers that have no lease."""
    size = _size(target)
    lease = b'"id":"01a1e231-932d-71cb-8dab-e37075a3e37c","fence":1'
    bodies = {
        "complete": b'{"worker":"w","results":[{%b,"result":%b}]}' % (lease, _filled(b"{},", size)),
        "fail": b'{"worker":"w","failures":[{%b,"error":{"message":%b}}]}' % (lease, _filled(b"a", size // 2, b'"', b'"')),
        "heartbeat": b'{"worker":"w","leases":[{%b,"log":%b}]}' % (lease, _filled(b"a", size // 2, b'"', b'"')),
    }
    async with target.client("work") as client:
        for path, body in bodies.items():
            response = await client.post(f"/v1/worker/{path}", content=body, headers={"Content-Type": "application/json"})
            assert response.status_code == 200, response.text


@attack
async def stalled_bodies(target: Target) -> None:
    """70 bodies of 1 MB that stall. A batch of the neighbor of 150 kB is accepted meanwhile."""
    batch = json.dumps({"tasks": [{"type": "batch", "delay_seconds": 86_400, "payload": "x" * 1400}] * 100})
    headers = {"Content-Type": "application/json", "Content-Length": "1100000"}
    head = target.head("POST", "/v1/tasks", "submit", headers)
    async with asyncio.TaskGroup() as group, target.client() as client:
        opened, may_end = asyncio.Semaphore(0), asyncio.Event()

        async def stall() -> None:
            async with target.connect() as (_, writer):
                writer.write(head + b" " * 1_048_576)
                async with asyncio.timeout(20):
                    await writer.drain()
                opened.release()
                await may_end.wait()

        for _ in range(70):
            group.create_task(stall())
        try:
            async with asyncio.timeout(20):
                for _ in range(60):
                    await opened.acquire()
            await asyncio.sleep(1)  # until the server has read what it will read
            response = await client.post(
                "/v1/tasks/batch",
                content=batch,
                headers={**bearer(target.neighbor_keys["submit"]), "Content-Type": "application/json"},
            )
            assert response.status_code == 200, response.text
        finally:
            may_end.set()
