"""Fire lag and memory of an overloaded server: slow-loris connections, huge bodies, idle long polls, and wrk at saturation.

All load is sent from this machine to 127.0.0.1, for a limited time.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import shutil
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple

from bench.client import batch_request, send_all
from bench.databases import BenchDatabase, Scale, resident_megabytes, serving
from bench.lag import every_minute
from bench.polls import Polling
from bench.report import ResultRow, at_most, percentile, print_progress

_HEAD = b"POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_LORIS, _POLLS, _SENDERS = 2_000, 5_000, 20
_UNCHANGED, _SATURATED_MILLISECONDS = 1.2, 100
_MIN_MILLISECONDS = 2.0
_PAUSE_SECONDS = 0.5
_WRK_CONNECTIONS = 64
_WRK_POST = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"type": "noop", "queue": "edge", "payload": {"number": 1}}'
"""

Load = Callable[[int], AbstractAsyncContextManager[None]]


class Measurement(NamedTuple):
    lags: list[float]
    megabytes: float

    @property
    def p99(self) -> float:
        return percentile(self.lags, 0.99)

    def __str__(self) -> str:
        p50, worst = percentile(self.lags, 0.5), max(self.lags)
        return f"p50 {p50:.1f} ms, p99 {self.p99:.1f} ms, worst {worst:.0f} ms; at most {self.megabytes:.0f} MB"


async def run(database: BenchDatabase, scale: Scale) -> list[ResultRow]:
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard_limit, 20_000), hard_limit))
    await database.recreate()
    lines: list[ResultRow] = []
    with serving(database) as (process, port):
        now = await database.now()
        await send_all(port, [batch_request(port, part) for part in every_minute(now)], 2)
        await database.checkpoint()
        await asyncio.sleep(10)
        for what, (load, target) in _loads(database.folder).items():
            without_load, with_load = await _compare(database, process.pid, port, load, scale)
            print_progress(f"{database.name}: {what}: {with_load}; without load: {without_load}")
            allowed = target or max(without_load.p99, _MIN_MILLISECONDS) * _UNCHANGED
            detail = f"{with_load}; without load in between: {without_load}"
            lines.append(at_most(database.name, f"{what}: lag p99", with_load.p99, "ms", allowed, without_load.p99, detail))
    return lines


async def _compare(database: BenchDatabase, pid: int, port: int, load: Load, scale: Scale) -> tuple[Measurement, Measurement]:
    """Measure without and with load, alternating, so that other activity of the machine affects both."""
    seconds = 8 if scale.is_quick else 15
    measured: dict[Load, list[Measurement]] = {_no_load: [], load: []}
    for _ in range(scale.rounds):
        for current, results in measured.items():
            results.append(await _measure(database, pid, port, current, seconds))
    without_load, with_load = (
        Measurement([lag for result in results for lag in result.lags], max(result.megabytes for result in results))
        for results in measured.values()
    )
    return without_load, with_load


async def _measure(database: BenchDatabase, pid: int, port: int, load: Load, seconds: float) -> Measurement:
    async with load(port):
        await asyncio.sleep(1)
        begins, peak = await database.now(), 0.0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            peak = max(peak, resident_megabytes(pid))
            await asyncio.sleep(0.1)
        ends = await database.now()
    await asyncio.sleep(3)
    return Measurement([lag * 1000 for lag in await database.lags(begins, ends)], peak)


def _loads(folder: Path) -> dict[str, tuple[Load, float | None]]:
    """Return the loads by name, each with the permitted lag. None: about the lag without load."""
    return {
        f"{_LORIS:,} slow-loris connections": (_slow_loris, None),
        f"{_SENDERS} clients sending bodies of 100 MB": (_huge_bodies, None),
        f"{_POLLS:,} idle long polls": (_idle_polls, None),
        **{what: (load, _SATURATED_MILLISECONDS) for what, load in _saturating(folder).items()},
    }


@contextlib.asynccontextmanager
async def _no_load(_port: int) -> AsyncIterator[None]:
    yield


@contextlib.asynccontextmanager
async def _slow_loris(port: int) -> AsyncIterator[None]:
    async with _run_clients([_send_slow_head(port) for _ in range(_LORIS)]):
        yield


@contextlib.asynccontextmanager
async def _huge_bodies(port: int) -> AsyncIterator[None]:
    async with _run_clients([_send_huge(port, is_chunked=bool(number % 2)) for number in range(_SENDERS)]):
        yield


@contextlib.asynccontextmanager
async def _idle_polls(port: int) -> AsyncIterator[None]:
    polls = Polling(port)
    await polls.open(_POLLS)
    try:
        yield
    finally:
        polls.close()


@contextlib.asynccontextmanager
async def _run_clients(clients: list[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(client) for client in clients]
    await asyncio.sleep(2)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send_slow_head(port: int) -> None:
    """Send a head that never ends, one line every few seconds. Reconnect when the server closes the connection."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET / HTTP/1.1\r\n")
                while not reader.at_eof():
                    writer.write(b"X-Slow: loris\r\n")
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(1), 5)
            finally:
                writer.close()
        await asyncio.sleep(_PAUSE_SECONDS)


async def _send_huge(port: int, *, is_chunked: bool) -> None:
    """Send bodies of 100 MB, one after another, each as far as the server accepts it."""
    length = b"Transfer-Encoding: chunked\r\n\r\n" if is_chunked else b"Content-Length: 104857600\r\n\r\n"
    piece = b" " * 0x10000
    piece = b"10000\r\n" + piece + b"\r\n" if is_chunked else piece
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(_HEAD + length)
                for _ in range(1600):
                    writer.write(piece)
                    await writer.drain()
            finally:
                writer.close()
        await asyncio.sleep(_PAUSE_SECONDS)


def _saturating(folder: Path) -> dict[str, Load]:
    program = shutil.which("wrk")
    if program is None:
        print_progress("wrk is not installed (Debian package wrk): the API at saturation is not measured")
        return {}
    script = folder / "edge.lua"
    script.write_text(_WRK_POST)

    def wrk_load(path: str, *options: str) -> Load:
        @contextlib.asynccontextmanager
        async def load(port: int) -> AsyncIterator[None]:
            process = await asyncio.create_subprocess_exec(
                *(program, "-t1", f"-c{_WRK_CONNECTIONS}", "-d600s", *options, f"http://127.0.0.1:{port}{path}"),
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                yield
            finally:
                process.send_signal(2)
                output, _ = await process.communicate()
                rate = [line.strip() for line in output.decode().splitlines() if "Requests/sec" in line or "Non-2xx" in line]
                print_progress(f"wrk {path}: {'; '.join(rate)}")

        return load

    return {
        "wrk at saturation on GET /v1/schedules": wrk_load("/v1/schedules?limit=20"),
        "wrk at saturation on POST /v1/tasks": wrk_load("/v1/tasks", "-s", str(script)),
    }
