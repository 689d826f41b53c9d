"""A short form of `make simulate`: a few seeds, the replay of a run, the guards whose removal must be found, and shrinking.

The simulation replaces the clocks of its interpreter, so it runs in processes of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.plan import load_plan

ROOT = Path(__file__).parents[2]


def simulate(*arguments: str, hash_seed: str = "1") -> tuple[int, str]:
    """Run the command line. It chooses its own hash seed, whatever that of its parent is."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--processes", "1", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def result_of(output: str) -> dict[str, Any]:
    (line,) = [line for line in output.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.timeout(600)
def test_no_invariant_is_violated_and_a_seed_repeats_exactly() -> None:
    first_code, first = simulate("--scenario", "--seed", "1", "--json")
    assert first_code == 0, first
    second_code, second = simulate("--scenario", "--seed", "1", "--json", hash_seed="2")
    assert second_code == 0, second
    totals = result_of(first)["totals"]
    assert totals["digests"] == result_of(second)["totals"]["digests"]
    assert totals["fired"] > 100
    assert totals["skipped"] > 50
    assert totals["tasks"] > 20


@pytest.mark.timeout(600)
def test_no_invariant_is_violated_by_random_plans() -> None:
    code, output = simulate("--seed", "check", "--runs", "2", "--seconds", "300", "--json")
    assert code == 0, output
    assert result_of(output)["totals"]["node_hours"] > 5


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", ["owner", "position", "ledger", "fence", "expiry"])
def test_the_removal_of_a_guard_is_found(mutation: str) -> None:
    code, output = simulate("--scenario", "--seed", "1", "--runs", "8", "--mutation", mutation)
    assert code == 0, output
    assert f"{mutation}: found" in output


@pytest.mark.timeout(600)
def test_a_failing_plan_is_shrunk_and_replays(tmp_path: Path) -> None:
    arguments = ("--mutation", "position", "--shrink", "--shrink-runs", "8", "--save", str(tmp_path), "--json")
    code, output = simulate("--scenario", "--seed", "1", "--runs", "8", *arguments)
    assert code == 0, output
    (whole,) = tmp_path.glob("*.full.json")
    (small,) = (path for path in tmp_path.glob("*.json") if path != whole)
    assert len(load_plan(small).entries) <= len(load_plan(whole).entries) // 2
    replay_code, replay = simulate("--plan", str(small), "--json")
    assert replay_code == 1, "the violation is in the plan, and not in the command that found it"
    assert result_of(replay)["violation"] == result_of(output)["violation"]
    assert result_of(replay)["digest"] == result_of(output)["digest"]
