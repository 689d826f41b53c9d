"""`python -m bench [NAME …] [--store postgres|sqlite] [--quick]`: prints a table per store and saves the results as JSON."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from bench import (
    auditing,
    burst,
    draining,
    edge,
    fairness,
    growth,
    history,
    idle,
    lag,
    minute,
    pickup,
    polls,
    registering,
    retention,
    submitting,
    ticks,
    webhooks,
)
from bench.databases import BenchDatabase, Scale
from bench.postgres import PostgresDatabase
from bench.report import ResultRow, print_progress, print_tables, save, source_digest
from bench.sqlite import SqliteDatabase


class Benchmark(Protocol):
    def __call__(self, database: BenchDatabase, scale: Scale) -> Awaitable[list[ResultRow]]: ...


BENCHMARKS: dict[str, Benchmark] = {
    "burst": burst.run,
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
    "webhooks": webhooks.run,
    "retention": retention.run,
    "auditing": auditing.run,
}
DATABASES: dict[str, Callable[[], BenchDatabase]] = {"postgres": PostgresDatabase, "sqlite": SqliteDatabase}
NAMES = [*BENCHMARKS, "ticks"]


async def _on_stores(names: Sequence[str], stores: Sequence[str], scale: Scale) -> list[ResultRow]:
    lines: list[ResultRow] = []
    for store in stores:
        database = DATABASES[store]()
        try:
            for name in names:
                print_progress(f"{database.name}: {name}")
                lines += await BENCHMARKS[name](database, scale)
        finally:
            await database.close()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Everbeat against the raw database.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"benchmarks to run: {', '.join(NAMES)} (all)")
    parser.add_argument("--store", action="append", choices=list(DATABASES), help="only this store; can be repeated")
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds, for a rough result")
    parser.add_argument("--rounds", type=int, help="number of rounds for the median (3; with --quick 1)")
    args = parser.parse_args()
    scale = Scale(args.quick, args.rounds or (1 if args.quick else 3))
    names = args.names or NAMES
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"unknown benchmark {', '.join(unknown)}; the benchmarks are {', '.join(NAMES)}")
    lines: list[ResultRow] = []
    source = source_digest()
    if on_stores := [name for name in names if name in BENCHMARKS]:
        lines += asyncio.run(_on_stores(on_stores, args.store or list(DATABASES), scale))
    if "ticks" in names:
        lines += ticks.run(quick=args.quick)
    print_tables(lines)
    if source != source_digest():
        print("\nThe source code of Everbeat changed during the run: the results above may be from different versions.")
    print(f"\nsaved as {save(lines, quick=args.quick, names=names)}")


if __name__ == "__main__":
    main()
