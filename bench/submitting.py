"""Submitting over HTTP: in bulk beside the plain insert, and one by one from many connections, each durable when answered."""

from __future__ import annotations

import time

from bench.callers import Calls, call_all
from bench.client import post, send_all
from bench.noop import QUEUE
from bench.queues import payload
from bench.report import Line, against_raw, at_least, at_most, median, percentile, rounds, say
from bench.sites import Scale, Site, serving
from bench.working import batches

_CONNECTIONS = 64
_CLIENTS = 2


async def run(site: Site, scale: Scale) -> list[Line]:
    count, singles = (10_000, 3_000) if scale.is_quick else (50_000, 20_000)
    raw, bulk, single, latencies = [], [], [], []
    for number in range(scale.rounds):
        raw.append((await site.raw_queue.measure(count)).insert)
        rate, calls = await _round(site, count, singles, keyed=False)
        bulk.append(rate)
        single.append(singles / calls.seconds)
        latencies += [1000 * latency for latency in calls.latencies]
        say(f"{site.name}: submitting {number + 1}: bulk {rate:,.0f}/s (raw {raw[-1]:,.0f}/s), single {single[-1]:,.0f}/s")
    keyed, calls = await _round(site, count, singles, keyed=True)
    what = f"single submits, {_CONNECTIONS} connections"
    tail = ", ".join(f"p{share:g} {percentile(latencies, share / 100):.1f} ms" for share in (50, 90, 99.9, 100))
    return [
        against_raw(
            *(site.name, "bulk submits over HTTP", median(bulk), "/s", 0.4, median(raw)),
            f"{count:,} in batches of 1,000 on {_CLIENTS} connections, {rounds(bulk)}; raw {rounds(raw)}",
        ),
        at_least(site.name, what, median(single), "/s", 3000, detail=rounds(single)),
        at_most(site.name, f"{what}: p99", percentile(latencies, 0.99), "ms", 50, detail=tail),
        Line(site.name, "bulk submits, a key for each batch as the SDK sends it", "", keyed, "/s", median(raw)),
        Line(site.name, f"{what}, a key for each as the SDK sends it", "", singles / calls.seconds, "/s"),
    ]


async def _round(site: Site, count: int, singles: int, *, keyed: bool) -> tuple[float, Calls]:
    """The rate of bulk submits, and the single ones."""
    await site.fresh()
    await site.settle()
    with serving(site) as (_, port):
        requests = batches(port, count, keyed=keyed)
        started = time.perf_counter()
        await send_all(port, requests, _CLIENTS)
        rate = count / (time.perf_counter() - started)
        await site.settle()
        calls = await call_all(port, _singles(port, singles, keyed), _CONNECTIONS)
        if (found := await site.count_live()) != count + singles:
            raise RuntimeError(f"{count + singles:,} were answered, {found:,} are there")
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
