"""`python -m bench.scale`: 10 million schedules, 10,000 ticks a minute for 10 minutes, and a burst of 100,000 (`make scale`).

Prints tables and writes the figures to build/scale/. `--document FILE` writes those of a run into the documentation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.report import median, print_progress, source_digest
from bench.scale.data import SETTINGS, ScaleDatabase, ScaleServer
from bench.scale.document import PAGE, PLOT, write_documents
from bench.scale.measure import Figures, highest_rate, long_run, steady

_RATES = [20_000, 40_000, 60_000, 80_000, 100_000, 120_000, 150_000, 180_000, 210_000, 240_000, 300_000]


def main() -> None:
    args = _arguments()
    if args.document is not None:
        write_documents(json.loads(args.document.read_text()))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{max(args.sizes)}.json"
    with ScaleServer(args.data) as server:
        found = asyncio.run(_run(args, server, lambda figures: path.write_text(json.dumps(figures, indent=1) + "\n")))
    if args.prepare:
        return
    print_results(found)
    print(f"\nsaved as {path}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description="Measure how cost grows with the schedules.")
    parser.add_argument("--sizes", type=_numbers, default=[10_000, 100_000, 1_000_000, 10_000_000], help="schedules, in order")
    parser.add_argument("--per-minute", type=int, default=10_000, help="ticks a minute (10,000)")
    parser.add_argument("--window", type=float, default=120, help="seconds of each steady measurement (120)")
    parser.add_argument("--minutes", type=float, default=10, help="length of the run with the burst (10)")
    parser.add_argument("--burst", type=int, default=100_000, help="schedules due at the top of one minute (100,000)")
    parser.add_argument("--history", type=int, default=10_000_000, help="rows of the task history (10,000,000)")
    parser.add_argument(
        "--pairs", type=int, default=2, help="small and large databases compared alternately, so many times (2)"
    )
    parser.add_argument("--no-rates", action="store_true", help="do not look for the highest rate")
    parser.add_argument("--data", type=Path, help="keep the data of PostgreSQL here, and use it again")
    parser.add_argument("--prepare", action="store_true", help="only fill the databases, for a run with the same --data")
    parser.add_argument("--out", type=Path, default=Path("build/scale"), help="where the figures are written (build/scale)")
    parser.add_argument("--document", type=Path, metavar="FILE", help=f"only write the figures of a run to {PAGE} and {PLOT}")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return sorted(int(part) for part in text.split(","))


async def _run(args: argparse.Namespace, server: ScaleServer, save: Callable[[Figures], Any]) -> Figures:
    found: Figures = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "source": source_digest(),
        "machine": {"system": platform.platform(), "cores": os.cpu_count(), "load": os.getloadavg(), "settings": SETTINGS},
        "growth": [],
        "pairs": [],
    }
    databases = await _prepared(args, server)
    if args.prepare:
        return found
    for database in databases.values():
        print_progress(f"steady, {database.schedules:,} schedules")
        size_mb = round(await database.size_mb())
        found["growth"].append({**await steady(database, args.window), "database_mb": size_mb})
        save(found)
    small, large = databases[args.sizes[0]], databases[args.sizes[-1]]
    for number in range(args.pairs):
        print_progress(f"pair {number + 1} of {args.pairs}")
        order = [("small", small), ("large", large)][:: 1 if number % 2 else -1]
        found["pairs"].append({name: await steady(database, args.window) for name, database in order})
        save(found)
    if args.minutes:
        print_progress(f"{args.minutes:g} minutes with a burst of {args.burst:,}")
        found["long"] = await long_run(large, args.minutes, args.burst)
        save(found)
    if not args.no_rates:
        found["rates"] = await highest_rate(large, args.per_minute, [rate for rate in _RATES if rate > args.per_minute], 100.0)
    found["bars"] = bars(found)
    save(found)
    return found


async def _prepared(args: argparse.Namespace, server: ScaleServer) -> dict[int, ScaleDatabase]:
    """Return a database for each size, filled as far as a run before has not done it. The largest has the history."""
    databases = {size: ScaleDatabase(server, f"schedules_{size}") for size in args.sizes}
    for size, database in databases.items():
        began_at = time.monotonic()
        await database.create()
        if not await database.count_named("minutely-"):
            await database.fill_every("minutely-", 0, args.per_minute, await database.now(), 60, timedelta(minutes=1))
        await database.fill_daily(size - database.schedules)
        if size == args.sizes[-1]:
            await database.fill_history(args.history)
        await database.vacuum_and_checkpoint()
        print_progress(f"{size:,} schedules prepared in {time.monotonic() - began_at:.0f} s")
    return databases


def bars(found: Figures) -> list[Figures]:
    """Compare the figures with what the run has to show."""
    rows: list[tuple[str, float | None, float, str]] = []
    if "long" in found:
        long = found["long"]
        rows.append(("fire lag p99 outside the burst", long["outside_the_burst"]["p99_ms"], 10.0, "ms"))
        rows.append(("the burst, fired within", long["burst"]["fired_within_seconds"], 8.0, "s"))
        rows.append(("memory of the node", long["node_rss_mb"], 200.0, "MB"))
    if found["pairs"]:
        costs = {name: [pair[name]["postgres_cpu_s_per_1000"] for pair in found["pairs"]] for name in ("small", "large")}
        ratio = median(costs["large"]) / median(costs["small"])
        rows.append(("PostgreSQL's cost of a tick, large by small", round(ratio, 3), 1.1, "x"))
    return [
        {"what": what, "figure": figure, "at_most": limit, "unit": unit, "met": figure is not None and figure <= limit}
        for what, figure, limit, unit in rows
    ]


_COLUMNS = {
    "schedules": "schedules",
    "ticks": "ticks",
    "p50_ms": "lag p50 ms",
    "p99_ms": "lag p99 ms",
    "claim_p99_ms": "claim p99 ms",
    "node_cpu_s_per_1000": "node CPU s/1,000",
    "postgres_cpu_s_per_1000": "PostgreSQL CPU s/1,000",
    "node_rss_mb": "node MB",
    "database_mb": "database MB",
}


def print_results(found: Figures) -> None:
    pairs = [pair[name] for pair in found["pairs"] for name in ("small", "large")]
    for title, rows in (("Growth", found["growth"]), ("Small and large, alternately", pairs)):
        print(f"\n{title}\n  " + "  ".join(f"{name:>22}" for name in _COLUMNS.values()))
        for row in rows:
            print("  " + "  ".join(f"{_number(row.get(name)):>22}" for name in _COLUMNS))
    if "long" in found:
        print("\nThe long run\n" + json.dumps(found["long"], indent=2))
    if "rates" in found:
        print("\nRates")
        for row in found["rates"]:
            print(f"  {row['per_minute']:>9,} a minute: p50 {row['p50_ms']} ms, p99 {row['p99_ms']} ms, {row['ticks']:,} fired")
    print("\nBars")
    for bar in found["bars"]:
        print(
            f"  {bar['what']}: {bar['figure']} {bar['unit']} (at most {bar['at_most']:g}): {'ok' if bar['met'] else 'MISSED'}"
        )


def _number(value: Any) -> str:
    return "" if value is None else f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


if __name__ == "__main__":
    main()
