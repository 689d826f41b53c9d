"""A burst on a database that was empty at the start: query plans and statistics of small tables must not persist."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from bench.client import batch_request, send_all
from bench.databases import BenchDatabase, Scale, serving
from bench.report import ResultRow, against_raw, print_progress
from bench.rows import TARGET, burst_rows

# More than the five executions after which PostgreSQL may keep using a generic plan.
_WARM_UP = 20
_HOUR = timedelta(hours=1)
_WAIT_SECONDS = 60


async def run(database: BenchDatabase, scale: Scale) -> list[ResultRow]:
    count = 10_000 if scale.is_quick else 50_000
    await database.recreate()
    with serving(database) as (_, port):
        await _warm_up(database, port)
        now = await database.now()
        at = now + timedelta(seconds=7 + count / 10_000)
        await database.load(list(burst_rows(count, now, at, 1, timedelta())))
        await asyncio.sleep((at - await database.now()).total_seconds())
        fired, seconds = await _wait_until_fired(database, at.timestamp(), count)
    print_progress(f"{database.name}: {fired:,} of {count:,} fired in {seconds:.1f} s")
    await database.recreate()
    await database.load(list(burst_rows(count, now, now + _HOUR, 1, timedelta())))
    raw = count / await database.raw_fire(_HOUR)
    what = f"burst of {count:,} on a database that was empty at the start"
    return [against_raw(database.name, what, fired / seconds, "/s", 0.5, raw, f"{fired:,} fired in {seconds:.1f} s")]


async def _warm_up(database: BenchDatabase, port: int) -> None:
    """Fire some single ticks, so that every statement of the ticker has been planned for small tables."""
    first = await database.now() + timedelta(seconds=2)
    once = [
        {"name": f"once-{number}", "at": (first + timedelta(milliseconds=50 * number)).isoformat(), "target": TARGET}
        for number in range(_WARM_UP)
    ]
    await send_all(port, [batch_request(port, once)], 1)
    await asyncio.sleep(4)
    if (fired := await database.count_ticks()) != _WARM_UP:
        raise RuntimeError(f"{fired} of {_WARM_UP} warm-up ticks fired")


async def _wait_until_fired(database: BenchDatabase, at: float, count: int) -> tuple[int, float]:
    """Return how many ticks fired within the time limit, and the seconds taken."""
    for _ in range(_WAIT_SECONDS):
        await asyncio.sleep(1)
        if await database.count_ticks() >= count + _WARM_UP:
            return count, (await database.batches())[-1].fired_at.timestamp() - at
    return await database.count_ticks() - _WARM_UP, float(_WAIT_SECONDS)
