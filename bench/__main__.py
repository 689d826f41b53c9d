"""`python -m bench [NAME …] [--store postgres|sqlite] [--quick]`: print a table per store, keep it as JSON."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from bench import (
    draining,
    edge,
    fairness,
    growth,
    herd,
    history,
    idle,
    lag,
    minute,
    pickup,
    polls,
    registering,
    submitting,
    ticks,
)
from bench.databases import BenchDatabase, Scale
from bench.postgres import PostgresDatabase
from bench.report import ResultRow, print_progress, print_tables, save, source_digest
from bench.sqlite import SqliteDatabase


class Benchmark(Protocol):
    def __call__(self, database: BenchDatabase, scale: Scale) -> Awaitable[list[ResultRow]]: ...


BENCHMARKS: dict[str, Benchmark] = {
    "herd": herd.run,
    "growth": growth.run,
    "lag": lag.run,
    "registering": registering.run,
    "idle": idle.run,
    "submitting": submitting.run,
    "draining": draining.run,
    "pickup": pickup.run,
    "minute": minute.run,
    "history": history.run,
    "polls": polls.run,
    "edge": edge.run,
    "fairness": fairness.run,
}
SITES: dict[str, Callable[[], BenchDatabase]] = {"postgres": PostgresDatabase, "sqlite": SqliteDatabase}
NAMES = [*BENCHMARKS, "ticks"]


async def _on_stores(names: Sequence[str], stores: Sequence[str], scale: Scale) -> list[ResultRow]:
    lines: list[ResultRow] = []
    for store in stores:
        database = SITES[store]()
        try:
            for name in names:
                print_progress(f"{database.name}: {name}")
                lines += await BENCHMARKS[name](database, scale)
        finally:
            await database.close()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Everbeat against the raw database.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to measure: {', '.join(NAMES)} (all)")
    parser.add_argument("--store", action="append", choices=list(SITES), help="only this store; may be given twice")
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds: a look, not a measurement")
    parser.add_argument("--rounds", type=int, help="rounds to take the median of (3; quick 1)")
    wanted = parser.parse_args()
    scale = Scale(wanted.quick, wanted.rounds or (1 if wanted.quick else 3))
    names = wanted.names or NAMES
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    lines: list[ResultRow] = []
    source = source_digest()
    if on_stores := [name for name in names if name in BENCHMARKS]:
        lines += asyncio.run(_on_stores(on_stores, wanted.store or list(SITES), scale))
    if "ticks" in names:
        lines += ticks.run(quick=wanted.quick)
    print_tables(lines)
    if source != source_digest():
        print("\nThe source of Everbeat changed during the run: the lines above may be of different code.")
    print(f"\nsaved as {save(lines, quick=wanted.quick, names=names)}")


if __name__ == "__main__":
    main()
