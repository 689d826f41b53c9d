"""Thousands of idle long polls on one server: their cost, and the time from a submit to the response of a poll."""

from __future__ import annotations

import asyncio
import time

from bench.client import post, send_all
from bench.connections import HttpConnection, connect
from bench.databases import BenchDatabase, Scale, cpu_seconds, resident_megabytes, serving
from bench.noop import QUEUE
from bench.queues import payload
from bench.report import ResultRow, at_most, percentile, print_progress

_EMPTY = b'{"tasks":[]}'
_WAIT_SECONDS = 30
_SUBMITS = 20
_GROUP_SIZE = 100
_OPENING_SECONDS = 25
_SHARE_OF_A_CORE = 0.05
_RESPONSE_MILLISECONDS = 12


async def run(database: BenchDatabase, scale: Scale) -> list[ResultRow]:
    count, seconds = (500, 5) if scale.is_quick else (5_000, 20)
    await database.recreate()
    with serving(database) as (process, port):
        await asyncio.sleep(5)
        before = resident_megabytes(process.pid)
        idle = await _busy(process.pid, seconds / 2)
        polls = Polling(port)
        started = time.monotonic()
        async with asyncio.timeout(_OPENING_SECONDS):
            await polls.open(count)
        print_progress(f"{database.name}: {count:,} polls open after {time.monotonic() - started:.1f} s")
        await asyncio.sleep(1)
        busy = await _busy(process.pid, seconds)
        megabytes = resident_megabytes(process.pid)
        waits = [await polls.measure_response() for _ in range(_SUBMITS)]
        renewing = await _busy(process.pid, _WAIT_SECONDS)
        polls.close()
    what = f"{count:,} idle long polls"
    detail = f"{idle:.1%} without them; {renewing:.1%} while each one ends and is sent again, every {_WAIT_SECONDS} s"
    memory = f"{megabytes:.0f} MB with them, {before:.0f} MB without: {(megabytes - before) * 1024 / count:.1f} kB each"
    return [
        at_most(database.name, f"{what}, share of a core", busy, "", _SHARE_OF_A_CORE, detail=detail),
        ResultRow(database.name, f"{what}, memory", "", megabytes, "MB", detail=memory),
        at_most(
            *(database.name, f"{what}, from a submit to the response of a poll: p50", percentile(waits, 0.5), "ms"),
            _RESPONSE_MILLISECONDS,
            detail=f"{_SUBMITS} submits, worst {max(waits):.1f} ms",
        ),
    ]


async def _busy(pid: int, seconds: float) -> float:
    before = cpu_seconds(pid)
    await asyncio.sleep(seconds)
    return (cpu_seconds(pid) - before) / seconds


class Polling:
    """Connections that each poll for one task, and poll again after each response."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connections: list[HttpConnection] = []
        self._responded_at: asyncio.Future[float] | None = None
        claim = {"worker": "bench", "queues": [QUEUE], "max": 1, "wait_seconds": _WAIT_SECONDS}
        self._request = post(port, "/v1/worker/claim", claim)

    async def open(self, count: int) -> None:
        # In small groups, because the server may close a connection that sends nothing for a while.
        for _ in range(0, count, _GROUP_SIZE):
            connections = await connect(self._port, _GROUP_SIZE, self._on_response, self._failed)
            self._connections += connections
            for connection in connections:
                connection.send(self._request)

    def _on_response(self, connection: HttpConnection, body: bytes) -> None:
        if body != _EMPTY and self._responded_at is not None and not self._responded_at.done():
            self._responded_at.set_result(time.perf_counter())
        connection.send(self._request)

    async def measure_response(self) -> float:
        """Submit a task, and return the milliseconds until one of the polls receives it."""
        if self._failed.done():
            self._failed.result()
        await asyncio.sleep(0.1)
        self._responded_at = asyncio.get_running_loop().create_future()
        request = post(self._port, "/v1/tasks", {"type": "noop", "queue": QUEUE, "payload": payload(0)})
        started = time.perf_counter()
        await send_all(self._port, [request], 1)
        async with asyncio.timeout(10):
            return 1000 * (await self._responded_at - started)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
