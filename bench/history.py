"""The drain in one process on a database with a large history, alternating with the drain on an empty database."""

from __future__ import annotations

from bench.databases import BenchDatabase, Scale
from bench.records import Records
from bench.report import ResultRow, against_raw, median, print_progress, rounds
from bench.working import drain, drained_tasks, embedding, submit_in_process

_SHARE = 0.9


async def run(database: BenchDatabase, scale: Scale) -> list[ResultRow]:
    past, count, times = 200_000 if scale.is_quick else 10_000_000, drained_tasks(scale), scale.rounds
    with_history = database.sibling("history")
    try:
        await database.recreate()
        await with_history.recreate()
        print_progress(f"{database.name}: inserting {past:,} rows of history")
        await with_history.fill_history(past)
        empty: list[float] = []
        full: list[float] = []
        for number in range(times):
            # Alternate the order, so that neither database has the advantage of always being first.
            for target, rates in [(database, empty), (with_history, full)][:: 1 if number % 2 else -1]:
                rates.append(await _drain(target, count))
            print_progress(f"{database.name}: history {number + 1}: empty {empty[-1]:,.0f}/s, {past:,} rows {full[-1]:,.0f}/s")
    finally:
        await with_history.close()
    what = f"drain in process with {past:,} rows of history, compared with an empty database"
    detail = f"{rounds(full)}; empty {rounds(empty)}"
    return [
        against_raw(database.name, what, median(full), "/s", _SHARE, median(empty), detail)._replace(target=">= 0.9 x empty")
    ]


async def _drain(database: BenchDatabase, count: int) -> float:
    await submit_in_process(database, count)
    await database.checkpoint()
    records = Records(database.folder)
    with embedding(database, records) as process:
        return (await drain(database, records, count, {"process": process.pid})).rate
