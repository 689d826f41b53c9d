"""Fire lag at a constant rate with many registered schedules, and the memory of the server."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime, timedelta
from typing import Any

from bench.client import batch_request, get, send_all
from bench.databases import BATCH, BenchDatabase, Scale, cpu_seconds, resident_megabytes, serving
from bench.report import ResultRow, at_least, at_most, percentile, print_progress
from bench.rows import PAYLOAD, TARGET, template

_PER_MINUTE = 10_000
_STORE_SECONDS = re.compile(r'(?m)^everbeat_store_seconds_(sum|count)\{verb="(\w+)"\} (\S+)$')


async def run(database: BenchDatabase, scale: Scale) -> list[ResultRow]:
    registered, window_seconds = (100_000, 30) if scale.is_quick else (1_000_000, 120)
    await database.recreate()
    now = await database.now()
    print_progress(f"{database.name}: inserting {registered - _PER_MINUTE:,} daily schedules")
    await database.load_daily(template({"cron": "0 0 * * *"}, now), registered - _PER_MINUTE, now)
    with serving(database) as (process, port):
        now = await database.now()
        requests = [batch_request(port, part) for part in every_minute(now)]
        await send_all(port, requests, 2)
        await database.checkpoint()
        print_progress(f"{database.name}: registered; warming up")
        begins = await database.now() + timedelta(seconds=20 if scale.is_quick else 65)
        await asyncio.sleep((begins - await database.now()).total_seconds())
        ends, busy = begins + timedelta(seconds=window_seconds), cpu_seconds(process.pid)
        await asyncio.sleep(window_seconds)
        busy = (cpu_seconds(process.pid) - busy) / window_seconds
        calls = _mean_calls((await get(port, "/metrics")).decode())
        megabytes = resident_megabytes(process.pid)
        await asyncio.sleep(2)
        lags = [lag * 1000 for lag in await database.lags(begins, ends)]
    what = f"{_PER_MINUTE:,} ticks per minute, {registered:,} registered"
    expected = _PER_MINUTE * window_seconds / 60
    tail = ", ".join(f"p{share} {percentile(lags, share / 100):.1f} ms" for share in (90, 95, 99.9))
    tail += f", worst {max(lags):.1f} ms; {busy:.0%} of a core; mean call duration: {calls}"
    return [
        at_most(database.name, f"{what}: lag p50", percentile(lags, 0.5), "ms", 5, detail=tail),
        at_most(database.name, f"{what}: lag p99", percentile(lags, 0.99), "ms", 50),
        at_least(database.name, f"{what}: ticks fired in {window_seconds} s", len(lags), "", expected * 0.999),
        at_most(database.name, f"{what}: resident memory", megabytes, "MB", 200),
    ]


def _mean_calls(metrics: str) -> str:
    """Return the mean duration of the two store calls of the ticker, from the metrics of the server."""
    found = {(kind, verb): float(value) for kind, verb, value in _STORE_SECONDS.findall(metrics)}
    verbs = [verb for verb in ("tick_fire", "schedule_due") if ("count", verb) in found]
    return ", ".join(f"{verb} {found['sum', verb] / found['count', verb] * 1000:.1f} ms" for verb in verbs)


def every_minute(now: datetime) -> list[list[dict[str, Any]]]:
    """Return batches of one-minute schedules whose anchors spread them evenly over the minute."""
    interval = timedelta(minutes=1) / _PER_MINUTE
    # Schedules with adjacent due times must not have adjacent rows.
    order = [number * 7919 % _PER_MINUTE for number in range(_PER_MINUTE)]
    schedules = [
        {
            "name": f"minutely-{number:05d}",
            "every_seconds": 60,
            "anchor": (now - timedelta(hours=1) + position * interval).isoformat(),
            "overlap": "allow",
            "target": TARGET,
            "payload": PAYLOAD,
        }
        for number, position in enumerate(order)
    ]
    return [schedules[start : start + BATCH] for start in range(0, len(schedules), BATCH)]
