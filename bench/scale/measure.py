"""One measurement: a node and a worker on a database for some time, with what they and PostgreSQL used meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.processes import ServerProcess, free_port, make_folder

from bench.databases import cpu_seconds, resident_megabytes
from bench.report import percentile
from bench.scale.data import ScaleDatabase, until

Figures = dict[str, Any]

# More than a minute, so that every schedule has fired once and what was missed is recorded.
WARM_UP_SECONDS = 75


class Running(NamedTuple):
    node: ServerProcess
    worker: ServerProcess
    claims: Path


@contextlib.asynccontextmanager
async def running(database: ScaleDatabase) -> AsyncIterator[Running]:
    """Run a node and a worker on the database."""
    folder, port = make_folder("everbeat-scale-"), free_port()
    claims = folder / "claims"
    options = ("--database-url", database.url, "--port", str(port), "--log-level", "warning")
    node = ServerProcess("serve", *options, folder=folder, name="node")
    command = (sys.executable, "-m", "bench.scale.puller")
    worker = ServerProcess(str(port), str(claims), folder=folder, name="worker", command=command)
    with node:
        await asyncio.to_thread(node.wait_ready, f"http://127.0.0.1:{port}/readyz", 60)
        with worker:
            try:
                yield Running(node, worker, claims)
            finally:
                if not worker.is_running():
                    print(worker.logs()[-2000:])
        await asyncio.to_thread(node.terminate)


class Usage:
    """What the processes have used since the start."""

    def __init__(self, database: ScaleDatabase, processes: Running) -> None:
        self._database = database
        self._processes = processes
        self._before = self._now()
        self.worst_rss_mb = 0.0

    def _now(self) -> tuple[float, float]:
        return cpu_seconds(self._processes.node.pid), self._database.cpu_seconds()

    async def watch(self, moment: datetime) -> None:
        """Sample the memory until this time."""
        while (left := (moment - await self._database.now()).total_seconds()) > 0:
            await asyncio.sleep(min(1.0, left))
            self.worst_rss_mb = max(self.worst_rss_mb, resident_megabytes(self._processes.node.pid))

    def per_1000_ticks(self, ticks: float) -> Figures:
        node, postgres = (after - before for after, before in zip(self._now(), self._before, strict=True))
        return {
            "node_cpu_s_per_1000": round(node / ticks * 1000, 4) if ticks else None,
            "postgres_cpu_s_per_1000": round(postgres / ticks * 1000, 4) if ticks else None,
        }


async def steady(database: ScaleDatabase, seconds: float) -> Figures:
    """Measure a constant rate of ticks for some time."""
    await database.vacuum_and_checkpoint()
    async with running(database) as processes:
        begins = await database.now() + timedelta(seconds=WARM_UP_SECONDS)
        await until(database, begins)
        usage, ends = Usage(database, processes), begins + timedelta(seconds=seconds)
        await usage.watch(ends)
        cost = usage.per_1000_ticks(await _count(database, begins, ends))
        await asyncio.sleep(2)
        lags = await database.lags(begins, ends)
        claims = claim_times(processes.claims, begins, ends)
    return {"schedules": database.schedules, "seconds": seconds, **lags, **cost, **claims, "node_rss_mb": usage.worst_rss_mb}


async def _count(database: ScaleDatabase, begins: datetime, ends: datetime) -> int:
    sql = "SELECT count(*) FROM ticks WHERE outcome = 'fired' AND scheduled_for >= $1 AND scheduled_for < $2"
    return int(await database.value(sql, begins, ends))


def claim_times(file: Path, from_: datetime, to: datetime, *, most: int = 100) -> Figures:
    """Return the times of claims that returned tasks, of those with at most so many."""
    lines = [line.split() for line in file.read_text().splitlines()]
    times = [
        float(took) for at, took, count in lines if from_.timestamp() <= float(at) < to.timestamp() and 0 < int(count) <= most
    ]
    if not times:
        return {"claims": 0, "claim_p50_ms": None, "claim_p99_ms": None}
    p50, p99 = (round(percentile(times, share), 2) for share in (0.5, 0.99))
    return {"claims": len(times), "claim_p50_ms": p50, "claim_p99_ms": p99}


async def long_run(database: ScaleDatabase, minutes: float, burst: int) -> Figures:
    """Measure a constant rate for minutes, with many more schedules due at the top of one minute."""
    await database.vacuum_and_checkpoint()
    async with running(database) as processes:
        begins = await database.now() + timedelta(seconds=WARM_UP_SECONDS)
        ends = begins + timedelta(minutes=minutes)
        # As others register schedules: while the node runs, at least a minute and a half before they are due.
        top = (begins + (ends - begins) / 2).replace(second=0, microsecond=0)
        await database.fill_every("burst-", 0, burst, top, 86_400, timedelta())
        await until(database, begins)
        size, wal, usage = await database.size_mb(), await database.wal_mb(), Usage(database, processes)
        await usage.watch(ends)
        total = await _count(database, begins, ends)
        cost = usage.per_1000_ticks(total)
        await asyncio.sleep(2)
        fired, drained = await _burst(database, top)
        after = top + timedelta(seconds=drained + 1)
        figures = {
            "schedules": database.schedules,
            "minutes": minutes,
            "outside_the_burst": await database.lags(begins, ends, (top, after)),
            "until_the_burst": {**await database.lags(begins, top), **claim_times(processes.claims, begins, top)},
            "after_the_burst": await database.lags(after, ends),
            "burst": {"ticks": fired, "fired_within_seconds": round(drained, 2)},
            "worked_off_seconds": await _worked_off(database, top),
            **cost,
            **claim_times(processes.claims, begins, ends),
            "node_rss_mb": round(usage.worst_rss_mb, 1),
            "database_mb": round(await database.size_mb()),
            "growth_bytes_per_tick": round((await database.size_mb() - size) * 1e6 / max(1, total)),
            "wal_bytes_per_tick": round((await database.wal_mb() - wal) * 1e6 / max(1, total)),
            "largest_tables_mb": await database.sizes_mb(),
        }
    await database.remove_every("burst-")
    return figures


async def _burst(database: ScaleDatabase, top: datetime) -> tuple[int, float]:
    """Return how many ticks fired for this instant, and how long after it the last one did."""
    sql = """SELECT count(*), extract(epoch FROM max(fired_at) - $1)::float8 FROM ticks
    WHERE scheduled_for = $1 AND outcome = 'fired'"""
    count, seconds = (await database.fetch(sql, top))[0]
    return int(count), float(seconds or 0.0)


async def _worked_off(database: ScaleDatabase, top: datetime) -> float | None:
    """Return how long after this instant the last of its tasks was completed, or None if that has not happened yet."""
    if await database.value("SELECT count(*) FROM tasks WHERE scheduled_for = $1", top):
        return None
    sql = """SELECT extract(epoch FROM max(finished_at) - $1)::float8 FROM task_history
    WHERE scheduled_for = $1 AND finished_at > $1"""
    return round(float(await database.value(sql, top) or 0.0), 1)


async def highest_rate(database: ScaleDatabase, present: int, rates: list[int], limit_ms: float) -> list[Figures]:
    """Raise the number of ticks a minute until the lag of a minute exceeds the limit. Returns what each rate had."""
    found: list[Figures] = []
    await database.vacuum_and_checkpoint()
    async with running(database) as processes:
        for rate in rates:
            begins = await database.now() + timedelta(seconds=10)
            await database.fill_every(f"rate-{rate}-", 0, rate - present, begins, 60, timedelta(minutes=1))
            present = rate
            measured = begins + timedelta(seconds=70)
            await until(database, measured)
            usage = Usage(database, processes)
            await usage.watch(measured + timedelta(seconds=60))
            cost = usage.per_1000_ticks(rate)
            await asyncio.sleep(3)
            lags = await database.lags(measured, measured + timedelta(seconds=60))
            found.append({"per_minute": rate, **lags, **cost, "node_rss_mb": round(usage.worst_rss_mb, 1)})
            print(f"  {rate:,} a minute: {found[-1]}", flush=True)
            if lags["p99_ms"] > limit_ms or lags["ticks"] < 0.999 * rate:
                break
    await database.remove_every("rate-")
    return found
