"""Webhooks to 1,000 hosts of 127.0.0.0/8: the rate compared with a bare aiohttp loop, and the lag beside 150 broken hosts.

Of the hosts, 50 hang, 50 refuse the connection and 50 answer 500. The lag is the time from the submit to the arrival of the
request; the clocks of both are that of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes import free_port

from bench.client import post, send_all
from bench.databases import BenchDatabase, Scale, serving
from bench.records import Records
from bench.report import ResultRow, against_raw, at_most, percentile

_HOSTS = 1000
_BROKEN_OF_A_KIND = 50
_CONCURRENCY = 100
_RATE = 100  # per second, to healthy hosts
_STEP_SECONDS = 0.1
_LAG_ROUNDS = 3
_ALLOW = ("--roles", "api,scheduler,dispatcher", "--webhook-allow", "127.0.0.0/8")


async def run(database: BenchDatabase, scale: Scale) -> list[ResultRow]:
    seconds, count = (8, 2000) if scale.is_quick else (20, 10_000)
    records = Records(database.folder)
    port, closed_port = free_port(), free_port()
    with _receiver(port, records.path):
        hosts = [f"127.1.{number // 250}.{number % 250 + 1}" for number in range(_HOSTS)]
        healthy = [f"http://{host}:{port}/ok/" for host in hosts[3 * _BROKEN_OF_A_KIND :]]
        hanging, refusing, failing = (hosts[index * _BROKEN_OF_A_KIND : (index + 1) * _BROKEN_OF_A_KIND] for index in range(3))
        broken = [f"http://{host}:{port}/hang/" for host in hanging]
        broken += [f"http://{host}:{closed_port}/ok/" for host in refusing]
        broken += [f"http://{host}:{port}/500/" for host in failing]
        bare = await asyncio.to_thread(_bare_rate, [f"{url}0" for url in healthy], count)
        rate = await _rate(database, records, healthy, count)
        lags_alone: list[float] = []
        lags_beside: list[float] = []
        for _ in range(1 if scale.is_quick else _LAG_ROUNDS):  # alternating: the p99 of one run varies with the machine
            lags_alone += await _lags(database, records, healthy, [], seconds)
            lags_beside += await _lags(database, records, healthy, broken, seconds)
    alone, beside = percentile(lags_alone, 0.99), percentile(lags_beside, 0.99)
    lag_detail = f"{len(lags_alone)} deliveries without, {len(lags_beside)} with broken hosts"
    return [
        against_raw(database.name, "webhooks, raw: bare aiohttp loop", rate, "/s", 0.4, bare),
        at_most(
            database.name,
            "webhooks, lag p99 beside 150 broken hosts; raw: without them",
            beside * 1000,
            "ms",
            1.2 * alone * 1000,
            alone * 1000,
            detail=lag_detail,
        ),
    ]


@contextlib.contextmanager
def _receiver(port: int, path: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.receiver", str(port), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def _bare_rate(urls: list[str], count: int) -> float:
    command = [sys.executable, "-m", "bench.bare_webhooks", str(count), str(_CONCURRENCY)]
    done = subprocess.run(command, input="\n".join(urls), capture_output=True, text=True, check=True, timeout=120)
    return float(done.stdout)


def _task(url: str, at: float) -> dict[str, object]:
    target = {"kind": "http", "url": f"{url}{at:.6f}"}
    return {"type": "call", "target": target, "payload": {"account": 7, "items": [1, 2, 3]}, "max_attempts": 2}


async def _rate(database: BenchDatabase, records: Records, urls: list[str], count: int) -> float:
    """Return how many tasks per second a node delivers that finds a backlog when it starts."""
    await database.recreate()
    endless = itertools.cycle(urls)
    with serving(database, "--webhook-allow", "127.0.0.0/8") as (_, port):
        tasks = [_task(next(endless), time.time()) for _ in range(count)]
        batches = [post(port, "/v1/tasks/batch", {"tasks": tasks[start : start + 1000]}) for start in range(0, count, 1000)]
        await send_all(port, batches, clients=1)
    before = records.count()
    with serving(database, *_ALLOW):
        await records.wait(before + count)
    arrived = sorted(one.at for one in records.read()[before:])
    return (len(arrived) - 1) / (arrived[-1] - arrived[0])


async def _lags(
    database: BenchDatabase, records: Records, healthy: list[str], broken: list[str], seconds: float
) -> list[float]:
    """Return the lags of the healthy hosts. Each broken host gets as many tasks as each healthy one."""
    await database.recreate()
    good, bad = itertools.cycle(healthy), itertools.cycle(broken)
    per_step = round(_RATE * _STEP_SECONDS)
    bad_per_step = round(per_step * len(broken) / len(healthy))
    with serving(database, *_ALLOW) as (_, port):
        before, sent = records.count(), 0
        started = time.monotonic()
        for step in range(round(seconds / _STEP_SECONDS)):
            await asyncio.sleep(max(0.0, started + step * _STEP_SECONDS - time.monotonic()))
            now = time.time()
            urls = [next(good) for _ in range(per_step)] + [next(bad) for _ in range(bad_per_step)]
            await send_all(port, [post(port, "/v1/tasks/batch", {"tasks": [_task(url, now) for url in urls]})], clients=1)
            sent += per_step
        await records.wait(before + sent)
    return [one.at - one.tag for one in records.read()[before:]]
