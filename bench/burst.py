"""Many schedules due at one instant, fired by a real server, compared with the same writes through the plain driver."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import NamedTuple

from bench.databases import Batch, BenchDatabase, Scale, cpu_seconds, serving
from bench.report import ResultRow, against_raw, at_least, at_most, median, print_progress, rounds
from bench.rows import burst_rows

_LEASE_SECONDS = 10.0
_SAMPLE_SECONDS = 0.3
_HOUR = timedelta(hours=1)


async def run(database: BenchDatabase, scale: Scale) -> list[ResultRow]:
    count, times = 20_000 if scale.is_quick else 100_000, scale.rounds
    raw, fired, ages, lost = [], [], [], 0
    for number in range(times):
        raw.append(await _raw(database, count))
        print_progress(f"{database.name}: raw burst {number + 1}: {raw[-1]:,.0f} ticks/s")
        burst = await _everbeat(database, count, instants=1)
        fired.append(burst.rate)
        ages.append(burst.heartbeat_age)
        lost += burst.has_lost
        print_progress(
            f"{database.name}: Everbeat burst {number + 1}: {burst.rate:,.0f} ticks/s, {burst.cpu_seconds:.1f} s of CPU"
        )
    mixed = await _everbeat(database, count, instants=100)
    ages.append(mixed.heartbeat_age)
    lost += mixed.has_lost
    inversions = _inversions(mixed.batches)
    what = f"burst of {count:,}"
    return [
        against_raw(
            database.name, f"{what}, ticks fired", median(fired), "/s", 0.5, median(raw), f"{rounds(fired)}; raw {rounds(raw)}"
        ),
        at_most(
            database.name,
            f"{what}, batches fired before an older one",
            inversions,
            "",
            0,
            detail=f"due at 100 instants 10 ms apart, {len(mixed.batches)} batches",
        ),
        at_most(database.name, f"{what}, oldest heartbeat", max(ages), "s", _LEASE_SECONDS),
        at_least(database.name, f"{what}, rounds without ownership lost", times + 1 - lost, "", times + 1),
    ]


class _Burst(NamedTuple):
    rate: float
    heartbeat_age: float
    batches: list[Batch]
    has_lost: bool
    cpu_seconds: float


async def _raw(database: BenchDatabase, count: int) -> float:
    await database.recreate()
    now = await database.now()
    await database.load(list(burst_rows(count, now, now + _HOUR, 1, timedelta())))
    await database.checkpoint()
    return count / await database.raw_fire(_HOUR)


async def _everbeat(database: BenchDatabase, count: int, instants: int) -> _Burst:
    await database.recreate()
    now = await database.now()
    at = (now + timedelta(seconds=12 + count / 12_000)).replace(microsecond=0)
    await database.load(list(burst_rows(count, now, at, instants, timedelta(milliseconds=10))))
    await database.checkpoint()
    with serving(database) as (process, _):
        spare = (at - await database.now()).total_seconds()
        if spare < 6:
            raise RuntimeError(f"the server was ready only {spare:.1f} s before the burst; this machine is too busy")
        await asyncio.sleep(spare - 1)
        busy = cpu_seconds(process.pid)
        age = await _wait_until_fired(database, count)
        busy = cpu_seconds(process.pid) - busy
        logs = process.logs()
    batches = await database.batches()
    seconds = (batches[-1].fired_at - at).total_seconds()
    return _Burst(count / seconds, age, batches, "ownership_lost" in logs, busy)


async def _wait_until_fired(database: BenchDatabase, count: int) -> float:
    """Wait until all ticks have fired. Returns the maximum age of the newest heartbeat in the meantime."""
    oldest, samples = 0.0, 0
    while samples < 600:
        oldest = max(oldest, await database.heartbeat_age())
        if samples % 4 == 3 and await database.count_ticks() >= count:
            return oldest
        samples += 1
        await asyncio.sleep(_SAMPLE_SECONDS)
    raise TimeoutError(f"only {await database.count_ticks():,} of {count:,} ticks fired")


def _inversions(batches: list[Batch]) -> int:
    """Count the batches with a tick that is older than a tick of an earlier batch."""
    count, newest = 0, batches[0].first_due_at
    for batch in batches:
        count += batch.first_due_at < newest
        newest = max(newest, batch.last_due_at)
    return count
