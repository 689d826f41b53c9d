"""The drain in one process on a database with very much history, in turn with the same on an empty one."""

from __future__ import annotations

from bench.records import Records
from bench.report import Line, against_raw, median, rounds, say
from bench.sites import Scale, Site
from bench.working import drain, drained_tasks, embedding, submit_in_process

_SHARE = 0.9


async def run(site: Site, scale: Scale) -> list[Line]:
    past, count, times = 200_000 if scale.is_quick else 10_000_000, drained_tasks(scale), scale.rounds
    long = site.branch("history")
    try:
        await site.fresh()
        await long.fresh()
        say(f"{site.name}: putting in {past:,} rows of history")
        await long.fill_history(past)
        empty: list[float] = []
        full: list[float] = []
        for number in range(times):
            # First the one, then the other, and the other way round: who comes first has no advantage on the whole.
            for place, rates in [(site, empty), (long, full)][:: 1 if number % 2 else -1]:
                rates.append(await _drain(place, count))
            say(f"{site.name}: history {number + 1}: empty {empty[-1]:,.0f}/s, {past:,} rows {full[-1]:,.0f}/s")
    finally:
        await long.close()
    what = f"drain in process with {past:,} rows of history, against an empty database"
    detail = f"{rounds(full)}; empty {rounds(empty)}"
    return [against_raw(site.name, what, median(full), "/s", _SHARE, median(empty), detail)._replace(target=">= 0.9 x empty")]


async def _drain(site: Site, count: int) -> float:
    await submit_in_process(site, count)
    await site.settle()
    records = Records(site.folder)
    with embedding(site, records) as process:
        return (await drain(site, records, count, {"process": process.pid})).rate
