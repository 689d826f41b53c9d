"""Draining of no-op tasks by one worker over HTTP, and in one process, compared with plain claims and completions."""

from __future__ import annotations

from bench.databases import BenchDatabase, Scale, serving
from bench.records import Records
from bench.report import ResultRow, against_raw, median, print_progress, rounds
from bench.working import CONCURRENCY, Drain, drain, drained_tasks, embedding, submit_in_process, submit_over_http, working

_COMPARISON = "PgQueuer, the fastest comparable Python queue, in process: 14,100/s"


async def run(database: BenchDatabase, scale: Scale) -> list[ResultRow]:
    count = drained_tasks(scale)
    raw: list[float] = []
    over_http: list[Drain] = []
    in_process: list[Drain] = []
    for number in range(scale.rounds):
        raw.append((await database.raw_queue.measure(count)).drain)
        over_http.append(await drain_over_http(database, count))
        in_process.append(await drain_in_process(database, count))
        rates = f"HTTP {over_http[-1].rate:,.0f}/s, in process {in_process[-1].rate:,.0f}/s, raw {raw[-1]:,.0f}/s"
        print_progress(f"{database.name}: draining {number + 1}: {rates}")
    plain = await drain_in_process(database, count, "asyncio")
    sync = await drain_over_http(database, count, "noop_sync")
    # On SQLite, the raw rate is ten times what a Python process can do, so there is no target in process.
    share = 0.5 if database.name == "PostgreSQL" else None
    return [
        _line(database, f"drain of {count:,} no-ops over HTTP", over_http, raw, 0.3, f"one worker, concurrency {CONCURRENCY}"),
        _line(database, f"drain of {count:,} no-ops in process", in_process, raw, share, _COMPARISON),
        ResultRow(
            database.name, "the same in process, asyncio's own event loop", "", plain.rate, "/s", median(raw), detail=plain.cpu
        ),
        ResultRow(database.name, "the same over HTTP, sync handlers", "", sync.rate, "/s", median(raw), detail=sync.cpu),
    ]


def _line(
    database: BenchDatabase, what: str, drains: list[Drain], raw: list[float], share: float | None, note: str
) -> ResultRow:
    rates = [result.rate for result in drains]
    detail = f"{note}; {rounds(rates)}; raw {rounds(raw)}; last: {drains[-1].cpu}"
    if share is None:
        return ResultRow(database.name, what, "", median(rates), "/s", median(raw), detail=detail)
    return against_raw(database.name, what, median(rates), "/s", share, median(raw), detail)


async def drain_over_http(database: BenchDatabase, count: int, type_: str = "noop") -> Drain:
    await database.recreate()
    records = Records(database.folder)
    with serving(database) as (server, port):
        await submit_over_http(port, count, type_)
        await database.checkpoint()
        with working(database, records, f"http://127.0.0.1:{port}") as worker:
            found = await drain(database, records, count, {"server": server.pid, "worker": worker.pid})
    await _check(database, count)
    return found


async def drain_in_process(database: BenchDatabase, count: int, loop: str = "uvloop") -> Drain:
    await database.recreate()
    await submit_in_process(database, count)
    await database.checkpoint()
    records = Records(database.folder)
    with embedding(database, records, loop) as process:
        found = await drain(database, records, count, {"process": process.pid})
    await _check(database, count)
    return found


async def _check(database: BenchDatabase, count: int) -> None:
    if (completed := await database.count_completed()) != count:
        raise RuntimeError(f"{completed:,} of {count:,} tasks are in the history as completed")
