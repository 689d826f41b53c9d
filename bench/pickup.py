"""Pick-up: from the submit call of the SDK to the start of the handler in a worker, both over HTTP.

Measured on an idle system, and, on PostgreSQL, between two nodes: tasks are submitted to one, and the worker polls the other.
"""

from __future__ import annotations

import asyncio
import time

from bench.databases import BenchDatabase, Scale, serving
from bench.noop import producer
from bench.queues import payload
from bench.records import Records
from bench.report import ResultRow, at_most, median, percentile, print_progress
from bench.working import working

_INTERVAL_SECONDS = 0.1
_INTERVAL_SECONDS_ACROSS = 0.03
_WARM_UP = 20


async def run(database: BenchDatabase, scale: Scale) -> list[ResultRow]:
    count, times = (50, 1) if scale.is_quick else (200, scale.rounds)
    await database.recreate()
    records = Records(database.folder)
    middles, tails, all_ = [], [], []
    with serving(database) as (_, port):
        url = f"http://127.0.0.1:{port}"
        with working(database, records, url):
            await _send(records, url, _WARM_UP, _INTERVAL_SECONDS)
            for number in range(times):
                waits = await _send(records, url, count, _INTERVAL_SECONDS)
                middles.append(percentile(waits, 0.5))
                tails.append(percentile(waits, 0.99))
                all_ += waits
                print_progress(f"{database.name}: pick-up {number + 1}: p50 {middles[-1]:.2f} ms, p99 {tails[-1]:.2f} ms")
    what = f"pick-up on an idle system, {count} tasks {_INTERVAL_SECONDS * 1000:g} ms apart"
    detail = ", ".join(f"p{share} {percentile(all_, share / 100):.1f} ms" for share in (90, 95)) + f", worst {max(all_):.1f} ms"
    across = [] if database.name == "SQLite" else await _across_nodes(database, count, times)
    return [
        at_most(database.name, f"{what}: p50", median(middles), "ms", 4, detail=f"medians of {times} rounds; of all: {detail}"),
        at_most(database.name, f"{what}: p99", median(tails), "ms", 12),
        *across,
    ]


async def _across_nodes(database: BenchDatabase, count: int, times: int) -> list[ResultRow]:
    await database.recreate()
    records = Records(database.folder)
    middles = []
    with serving(database) as (_, port), serving(database) as (_, other_port):
        other_url = f"http://127.0.0.1:{other_port}"
        with working(database, records, f"http://127.0.0.1:{port}"):
            await _send(records, other_url, _WARM_UP, _INTERVAL_SECONDS_ACROSS)
            for number in range(times):
                waits = await _send(records, other_url, 2 * count, _INTERVAL_SECONDS_ACROSS)
                middles.append(percentile(waits, 0.5))
                print_progress(f"{database.name}: pick-up through another node {number + 1}: p50 {middles[-1]:.2f} ms")
    what = f"pick-up of tasks submitted through another node {_INTERVAL_SECONDS_ACROSS * 1000:g} ms apart: p50"
    return [at_most(database.name, what, median(middles), "ms", 8, detail=f"medians of {times} rounds")]


async def _send(records: Records, url: str, count: int, interval_seconds: float) -> list[float]:
    """Submit `count` tasks and return how many milliseconds each waited for its handler to start."""
    before = records.count()
    await asyncio.to_thread(_submit, url, count, interval_seconds)
    await records.wait(before + count, 30)
    return [1000 * (record.at - record.tag) for record in records.read()[before:]]


def _submit(url: str, count: int, interval_seconds: float) -> None:
    app, noop = producer(url)
    started = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, started + number * interval_seconds - time.monotonic()))
        noop.submit(**payload(number, time.time()))
    app.close()
