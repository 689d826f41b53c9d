"""Many schedules due at the same minute: how long after the tick their handlers start, in one worker over HTTP."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.client import batch_request, send_all
from bench.databases import BenchDatabase, Scale, serving
from bench.noop import QUEUE
from bench.queues import payload
from bench.records import Record, Records
from bench.report import ResultRow, at_least, at_most, percentile
from bench.working import working

_SCHEDULES = 1000
_TICKS = 3
_LEAD_SECONDS = 8
_WAIT_SECONDS = 20


async def run(database: BenchDatabase, scale: Scale) -> list[ResultRow]:
    cron, period = ("*/10 * * * * *", 10) if scale.is_quick else ("* * * * *", 60)
    await database.recreate()
    records = Records(database.folder)
    with serving(database) as (_, port), working(database, records, f"http://127.0.0.1:{port}"):
        await send_all(port, [batch_request(port, [_schedule(number, cron) for number in range(_SCHEDULES)])], 1)
        first = (time.time() + _LEAD_SECONDS) // period * period + period
        ticks = [first + number * period for number in range(_TICKS)]
        await asyncio.sleep(ticks[-1] - time.time())
        found = await _records_of(records, ticks)
    waits = [1000 * (record.at - int(record.tag)) for record in found]
    what = f"{_SCHEDULES:,} schedules {cron}, handler start after the tick"
    parts = [[wait for wait, record in zip(waits, found, strict=True) if int(record.tag) == tick] for tick in ticks]
    each = "; ".join(f"p50 {percentile(part, 0.5):.0f} ms, worst {max(part):.0f} ms" for part in parts if part)
    distinct, doubled = len({record.tag for record in found}), len(found) - len({record.tag for record in found})
    return [
        at_most(database.name, f"{what}: p50", percentile(waits, 0.5), "ms", 100, detail=f"for each tick: {each}"),
        at_most(database.name, f"{what}: p99", percentile(waits, 0.99), "ms", 250),
        at_least(database.name, f"{what}: ticks", distinct, "", _SCHEDULES * _TICKS, detail=f"{doubled} run twice"),
    ]


async def _records_of(records: Records, ticks: list[float]) -> list[Record]:
    """Return the records of these ticks, when all handlers have started or the time limit is reached."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        await asyncio.sleep(0.5)
        found = [record for record in records.read() if int(record.tag) in ticks]
        if len(found) >= _SCHEDULES * len(ticks) or time.monotonic() > deadline:
            return found


def _schedule(number: int, cron: str) -> dict[str, Any]:
    target = {"kind": "worker", "queue": QUEUE, "type": "tick"}
    return {"name": f"minute-{number:04d}", "cron": cron, "target": target, "payload": payload(number)}
