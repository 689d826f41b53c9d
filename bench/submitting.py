"""Submitting over HTTP: in bulk, compared with a plain insert, and single tasks from many connections."""

from __future__ import annotations

import time

from bench.client import post, send_all
from bench.connections import Calls, call_all
from bench.databases import BenchDatabase, Scale, serving
from bench.noop import QUEUE
from bench.queues import payload
from bench.report import ResultRow, against_raw, at_least, at_most, median, percentile, print_progress, rounds
from bench.working import batches

_CONNECTIONS = 64
_CLIENTS = 2


async def run(database: BenchDatabase, scale: Scale) -> list[ResultRow]:
    count, singles = (10_000, 3_000) if scale.is_quick else (50_000, 20_000)
    raw, bulk, single, latencies = [], [], [], []
    for number in range(scale.rounds):
        raw.append((await database.raw_queue.measure(count)).insert)
        rate, calls = await _round(database, count, singles, keyed=False)
        bulk.append(rate)
        single.append(singles / calls.seconds)
        latencies += [1000 * latency for latency in calls.latencies]
        print_progress(
            f"{database.name}: submitting {number + 1}: bulk {rate:,.0f}/s (raw {raw[-1]:,.0f}/s), single {single[-1]:,.0f}/s"
        )
    keyed, calls = await _round(database, count, singles, keyed=True)
    what = f"single submits, {_CONNECTIONS} connections"
    tail = ", ".join(f"p{share:g} {percentile(latencies, share / 100):.1f} ms" for share in (50, 90, 99.9, 100))
    return [
        against_raw(
            *(database.name, "bulk submits over HTTP", median(bulk), "/s", 0.4, median(raw)),
            f"{count:,} in batches of 1,000 on {_CLIENTS} connections, {rounds(bulk)}; raw {rounds(raw)}",
        ),
        at_least(database.name, what, median(single), "/s", 3000, detail=rounds(single)),
        at_most(database.name, f"{what}: p99", percentile(latencies, 0.99), "ms", 50, detail=tail),
        ResultRow(database.name, "bulk submits, a key for each batch as the SDK sends it", "", keyed, "/s", median(raw)),
        ResultRow(database.name, f"{what}, a key for each as the SDK sends it", "", singles / calls.seconds, "/s"),
    ]


async def _round(database: BenchDatabase, count: int, singles: int, *, keyed: bool) -> tuple[float, Calls]:
    """Return the rate of bulk submits, and the results of single submits."""
    await database.recreate()
    await database.checkpoint()
    with serving(database) as (_, port):
        requests = batches(port, count, keyed=keyed)
        started = time.perf_counter()
        await send_all(port, requests, _CLIENTS)
        rate = count / (time.perf_counter() - started)
        await database.checkpoint()
        calls = await call_all(port, _singles(port, singles, keyed), _CONNECTIONS)
        if (found := await database.count_live()) != count + singles:
            raise RuntimeError(f"{count + singles:,} tasks were submitted, but there are {found:,}")
    return rate, calls


def _singles(port: int, count: int, keyed: bool) -> list[bytes]:
    return [
        post(
            port,
            "/v1/tasks",
            {"type": "noop", "queue": QUEUE, "payload": payload(number)},
            **({"Idempotency_Key": f"sdk-single-{number:025x}"} if keyed else {}),
        )
        for number in range(count)
    ]
