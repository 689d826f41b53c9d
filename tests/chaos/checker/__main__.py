"""`python -m tests.chaos.checker FOLDER`: judges the report of a run. Exits with 0 for PASS, 1 for FAIL and 2 for UNKNOWN."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.chaos.checker.verdict import Outcome, judge_folder

EXIT_CODES = {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.UNKNOWN: 2}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.checker", description="Judge the report of a chaos run.")
    parser.add_argument("folder", type=Path, help="the report folder of the run")
    folder: Path = parser.parse_args().folder
    verdict = judge_folder(folder)
    print((folder / "summary.md").read_text())
    return EXIT_CODES[verdict.outcome]


if __name__ == "__main__":
    raise SystemExit(main())
