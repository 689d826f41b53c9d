"""The command line of the simulation: `python -m tests.simulation --help`."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of texts must be the same in every run
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    # What dead processes were waiting for is never awaited.
    warnings.filterwarnings("ignore", message="coroutine .* was never awaited")
    from tests.simulation import virtual_time

    virtual_time.install()
    from tests.simulation import commands
    from tests.simulation.database import share_blocks
    from tests.simulation.nodes import share_partitions

    share_blocks()
    share_partitions()

    return commands.run(_parser(sorted(commands.MUTATIONS)).parse_args())


def _parser(mutations: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make simulate", description="Simulate a cluster of nodes under faults.")
    parser.add_argument("--seed", help="the seed of the plans (random by default)")
    parser.add_argument("--seconds", type=float, default=600, help="how long to run (600)")
    parser.add_argument("--runs", type=int, help="stop after this many plans")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many plans run at a time")
    parser.add_argument("--mutation", choices=[*mutations, "all"], help="remove a guard, and expect that this is found")
    parser.add_argument("--scenario", action="store_true", help="run a short plan in which every guard is needed")
    parser.add_argument("--only-random", action="store_true", help="leave that plan out of the others")
    parser.add_argument("--plan", type=Path, help="run the plan in this file, and nothing else")
    parser.add_argument("--shrink", action="store_true", help="also shrink the plan that finds a mutation")
    parser.add_argument("--shrink-seconds", type=float, default=300, help="how long to shrink a failing plan (300)")
    parser.add_argument("--shrink-runs", type=int, default=1000, help="how many smaller plans to try (1000)")
    parser.add_argument("--save", type=Path, default=Path("build/simulation"), help="the folder for failing plans")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
