"""Pick-up on an idle system: from the submit call of the SDK to the start of the handler in a worker, both over HTTP."""

from __future__ import annotations

import asyncio
import time

from bench.databases import BenchDatabase, Scale, serving
from bench.noop import producer
from bench.queues import payload
from bench.records import Records
from bench.report import ResultRow, at_most, median, percentile, print_progress
from bench.working import working

_APART_SECONDS = 0.1
_WARM_UP = 20


async def run(database: BenchDatabase, scale: Scale) -> list[ResultRow]:
    count, times = (50, 1) if scale.is_quick else (200, scale.rounds)
    await database.fresh()
    records = Records(database.folder)
    middles, tails, all_ = [], [], []
    with serving(database) as (_, port):
        url = f"http://127.0.0.1:{port}"
        with working(database, records, url):
            await _send(records, url, _WARM_UP)
            for number in range(times):
                waits = await _send(records, url, count)
                middles.append(percentile(waits, 0.5))
                tails.append(percentile(waits, 0.99))
                all_ += waits
                print_progress(f"{database.name}: pick-up {number + 1}: p50 {middles[-1]:.2f} ms, p99 {tails[-1]:.2f} ms")
    what = f"pick-up on an idle system, {count} tasks {_APART_SECONDS * 1000:g} ms apart"
    detail = ", ".join(f"p{share} {percentile(all_, share / 100):.1f} ms" for share in (90, 95)) + f", worst {max(all_):.1f} ms"
    return [
        at_most(database.name, f"{what}: p50", median(middles), "ms", 4, detail=f"medians of {times} rounds; of all: {detail}"),
        at_most(database.name, f"{what}: p99", median(tails), "ms", 12),
    ]


async def _send(records: Records, url: str, count: int) -> list[float]:
    """The milliseconds that each of so many tasks waited."""
    before = records.count()
    await asyncio.to_thread(_submit, url, count)
    await records.wait(before + count, 30)
    return [1000 * (record.at - record.tag) for record in records.read()[before:]]


def _submit(url: str, count: int) -> None:
    app, noop = producer(url)
    started = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, started + number * _APART_SECONDS - time.monotonic()))
        noop.submit(**payload(number, time.time()))
    app.close()
