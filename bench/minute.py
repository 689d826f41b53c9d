"""Very many schedules on one minute: how long after it their handlers begin, in one worker over HTTP."""

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
    await database.fresh()
    records = Records(database.folder)
    with serving(database) as (_, port), working(database, records, f"http://127.0.0.1:{port}"):
        await send_all(port, [batch_request(port, [_schedule(number, cron) for number in range(_SCHEDULES)])], 1)
        first = (time.time() + _LEAD_SECONDS) // period * period + period
        marks = [first + number * period for number in range(_TICKS)]
        await asyncio.sleep(marks[-1] - time.time())
        noted = await _noted(records, marks)
    waits = [1000 * (record.at - int(record.tag)) for record in noted]
    what = f"{_SCHEDULES:,} schedules {cron}, handler start after the tick"
    parts = [[wait for wait, record in zip(waits, noted, strict=True) if int(record.tag) == mark] for mark in marks]
    each = "; ".join(f"p50 {percentile(part, 0.5):.0f} ms, worst {max(part):.0f} ms" for part in parts if part)
    distinct, doubled = len({record.tag for record in noted}), len(noted) - len({record.tag for record in noted})
    return [
        at_most(database.name, f"{what}: p50", percentile(waits, 0.5), "ms", 100, detail=f"tick by tick: {each}"),
        at_most(database.name, f"{what}: p99", percentile(waits, 0.99), "ms", 250),
        at_least(database.name, f"{what}: ticks", distinct, "", _SCHEDULES * _TICKS, detail=f"{doubled} run twice"),
    ]


async def _noted(records: Records, marks: list[float]) -> list[Record]:
    """What the handlers of these ticks noted, once all have, or after a while."""
    give_up_at = time.monotonic() + _WAIT_SECONDS
    while True:
        await asyncio.sleep(0.5)
        noted = [record for record in records.read() if int(record.tag) in marks]
        if len(noted) >= _SCHEDULES * len(marks) or time.monotonic() > give_up_at:
            return noted


def _schedule(number: int, cron: str) -> dict[str, Any]:
    target = {"kind": "worker", "queue": QUEUE, "type": "tick"}
    return {"name": f"minute-{number:04d}", "cron": cron, "target": target, "payload": payload(number)}
