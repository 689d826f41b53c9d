"""An idle node: how many database statements it runs, and how much CPU time it uses."""

from __future__ import annotations

import asyncio
import re

from bench.client import get
from bench.databases import BenchDatabase, Scale, cpu_seconds, serving
from bench.report import ResultRow, at_most

_CALLS = re.compile(rb"(?m)^everbeat_store_seconds_count\S* (\S+)$")


async def run(database: BenchDatabase, scale: Scale) -> list[ResultRow]:
    seconds = 10 if scale.is_quick else 20
    await database.recreate()
    has_log = await database.log_statements()
    with serving(database) as (process, port):
        await asyncio.sleep(8)
        statements = database.statements() if has_log else 0
        calls, busy = await _calls(port), cpu_seconds(process.pid)
        await asyncio.sleep(seconds)
        busy = (cpu_seconds(process.pid) - busy) / seconds
        calls = await _calls(port) - calls
        statements = (database.statements() if has_log else 0) - statements
    detail = f"{calls / seconds:.2f} store calls per second, {busy:.1%} of a core"
    figure = statements / seconds if has_log else calls / seconds
    what = "idle node, statements" if has_log else "idle node, store calls"
    return [at_most(database.name, what, figure, "/s", 3, detail=detail)]


async def _calls(port: int) -> float:
    return sum(float(found) for found in _CALLS.findall(await get(port, "/metrics")))
