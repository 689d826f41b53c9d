"""Fire lag while a month of the ledger is dropped, compared with quiet phases before and after it in the same run."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta

import asyncpg

from bench.client import batch_request, send_all
from bench.databases import BenchDatabase, Scale, serving
from bench.lag import every_minute
from bench.report import ResultRow, at_most, percentile, print_progress
from everbeat.store.postgres.store import PostgresStore

_OLDEST = timedelta(days=180)
_MONTH = timedelta(days=31)
_FILL = """
INSERT INTO ticks (schedule_id, scheduled_for, tenant_id, outcome, task_id, fired_at, epoch)
SELECT lpad(to_hex(n + $3::bigint), 32, '0')::uuid, $1::timestamptz + n * interval '0.2 second',
  '00000000-0000-0000-0000-000000000000', 'fired', '00000000-0000-0000-0000-000000000001', $1::timestamptz, 1
FROM generate_series(1, $2::bigint) AS n
"""
_FILL_BATCH = 1_000_000


async def run(database: BenchDatabase, scale: Scale) -> list[ResultRow]:
    """SQLite has no months to drop; its steps are limited by their duration instead."""
    if database.name != "PostgreSQL":
        return []
    rows, window_seconds = (1_000_000, 20) if scale.is_quick else (10_000_000, 60)
    await database.recreate()
    months = await _fill(database, rows, scale.rounds)
    quiet: list[float] = []
    busy: list[float] = []
    durations: list[float] = []
    with serving(database, "--retention-days", "36500") as (_, port):
        requests = [batch_request(port, part) for part in every_minute(await database.now())]
        await send_all(port, requests, 2)
        await database.checkpoint()
        await asyncio.sleep(20 if scale.is_quick else 65)
        for number in range(scale.rounds):
            quiet += await _lags(database, window_seconds)
            started = await database.now()
            seconds = await _prune(database, months[number])
            durations.append(seconds)
            busy += await _lags(database, window_seconds, started)
            print_progress(f"{database.name}: a month of {rows:,} rows was dropped in {seconds:.2f} s")
        quiet += await _lags(database, window_seconds)
    before, during = percentile(quiet, 0.99), percentile(busy, 0.99)
    what = f"a month of {rows:,} rows dropped"
    detail = (
        f"p99 {during:.1f} ms, and {before:.1f} ms in quiet phases; "
        f"p50 {percentile(busy, 0.5):.1f} ms and {percentile(quiet, 0.5):.1f} ms; "
        f"worst {max(busy):.0f} ms and {max(quiet):.0f} ms; {len(busy):,} and {len(quiet):,} ticks; "
        f"dropped in {max(durations):.2f} s"
    )
    return [at_most(database.name, f"{what}: lag p99, times that of quiet phases", during / before, "", 1.2, detail=detail)]


async def _fill(database: BenchDatabase, rows: int, count: int) -> list[datetime]:
    """Fill `count` old months. Returns the times before which they are past retention."""
    store = PostgresStore(database.url, listen=False)
    connection = await asyncpg.connect(database.url)
    ends = []
    first = (await database.now() - _OLDEST).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    for _ in range(count):
        await store.month_ensure([first])
        for start in range(0, rows, _FILL_BATCH):
            await connection.execute(_FILL, first, min(_FILL_BATCH, rows - start), start, timeout=600)
            print_progress(f"{database.name}: {first:%Y-%m}: {start + _FILL_BATCH:,} rows")
        first = (first + _MONTH).replace(day=1)
        ends.append(first)
    await connection.execute("VACUUM (ANALYZE) ticks", timeout=600)
    await connection.close()
    await store.close()
    return ends


async def _prune(database: BenchDatabase, before: datetime) -> float:
    """Drop a month as the pruner of a node does. Not by the command, whose start needs as much processor time as the node."""
    store = PostgresStore(database.url, listen=False)
    started = time.monotonic()
    dropped = await store.pool("maintenance").month_prune(before=before, limit=10, tables=("ticks",))
    seconds = time.monotonic() - started
    await store.close()
    if dropped != 1:
        raise RuntimeError(f"{dropped} months were dropped, not one")
    return seconds


async def _lags(database: BenchDatabase, seconds: float, begins: datetime | None = None) -> list[float]:
    """The lags in milliseconds of the ticks in a window, which begins now or has begun."""
    begins = begins or await database.now()
    ends = begins + timedelta(seconds=seconds)
    await asyncio.sleep(max(0.0, (ends - await database.now()).total_seconds()) + 2)
    return [lag * 1000 for lag in await database.lags(begins, ends)]
