"""No-op tasks drained by one worker over HTTP, and in one process; beside them the plain claim and finish."""

from __future__ import annotations

from bench.records import Records
from bench.report import Line, against_raw, median, rounds, say
from bench.sites import Scale, Site, serving
from bench.working import CONCURRENCY, Drain, drain, drained_tasks, embedding, submit_in_process, submit_over_http, working

_PEER = "PgQueuer, the fastest Python peer in process: 14,100/s"


async def run(site: Site, scale: Scale) -> list[Line]:
    count = drained_tasks(scale)
    raw: list[float] = []
    over_http: list[Drain] = []
    in_process: list[Drain] = []
    for number in range(scale.rounds):
        raw.append((await site.raw_queue.measure(count)).drain)
        over_http.append(await drain_over_http(site, count))
        in_process.append(await drain_in_process(site, count))
        rates = f"HTTP {over_http[-1].rate:,.0f}/s, in process {in_process[-1].rate:,.0f}/s, raw {raw[-1]:,.0f}/s"
        say(f"{site.name}: draining {number + 1}: {rates}")
    plain = await drain_in_process(site, count, "asyncio")
    sync = await drain_over_http(site, count, "noop_sync")
    # On SQLite raw is an order of magnitude above what one process of Python can do: there is no target in process.
    share = 0.5 if site.name == "PostgreSQL" else None
    return [
        _line(site, f"drain of {count:,} no-ops over HTTP", over_http, raw, 0.3, f"one worker, concurrency {CONCURRENCY}"),
        _line(site, f"drain of {count:,} no-ops in process", in_process, raw, share, _PEER),
        Line(site.name, "the same in process, asyncio's own event loop", "", plain.rate, "/s", median(raw), detail=plain.cpu),
        Line(site.name, "the same over HTTP, sync handlers", "", sync.rate, "/s", median(raw), detail=sync.cpu),
    ]


def _line(site: Site, what: str, drains: list[Drain], raw: list[float], share: float | None, note: str) -> Line:
    rates = [one.rate for one in drains]
    detail = f"{note}; {rounds(rates)}; raw {rounds(raw)}; last: {drains[-1].cpu}"
    if share is None:
        return Line(site.name, what, "", median(rates), "/s", median(raw), detail=detail)
    return against_raw(site.name, what, median(rates), "/s", share, median(raw), detail)


async def drain_over_http(site: Site, count: int, type_: str = "noop") -> Drain:
    await site.fresh()
    records = Records(site.folder)
    with serving(site) as (server, port):
        await submit_over_http(port, count, type_)
        await site.settle()
        with working(site, records, f"http://127.0.0.1:{port}") as worker:
            found = await drain(site, records, count, {"server": server.pid, "worker": worker.pid})
    await _check(site, count)
    return found


async def drain_in_process(site: Site, count: int, loop: str = "uvloop") -> Drain:
    await site.fresh()
    await submit_in_process(site, count)
    await site.settle()
    records = Records(site.folder)
    with embedding(site, records, loop) as process:
        found = await drain(site, records, count, {"process": process.pid})
    await _check(site, count)
    return found


async def _check(site: Site, count: int) -> None:
    if (completed := await site.count_completed()) != count:
        raise RuntimeError(f"{completed:,} of {count:,} tasks are in the history as completed")
