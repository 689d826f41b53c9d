"""What the command line does: explore seeds, replay a plan, and check that mutations are found."""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import msgspec

from tests.simulation.explore import Finding, Totals, explore
from tests.simulation.mutations import MUTATIONS
from tests.simulation.plan import Plan, load_plan
from tests.simulation.run import Outcome, run_plan
from tests.simulation.scenario import scenario
from tests.simulation.shrink import shrink
from tests.simulation.virtual_time import real_perf_counter

__all__ = ["MUTATIONS", "run"]


def run(arguments: argparse.Namespace) -> int:
    if arguments.plan is not None:
        return _replay(arguments)
    seed = arguments.seed or str(random.SystemRandom().randrange(10_000_000))
    if arguments.mutation is not None:
        names = list(MUTATIONS) if arguments.mutation == "all" else [arguments.mutation]
        return max(_find_mutation(name, seed, arguments) for name in names)
    print(f"seed {seed}, {arguments.seconds:.0f} s, {arguments.processes} processes", flush=True)
    totals, finding = _explore(seed, None, arguments)
    print(totals)
    if finding is None:
        _print_json(arguments, totals, None)
        print("no invariant was violated")
        return 0
    finding = _shrunk(finding, arguments)
    _print_json(arguments, totals, finding)
    return 1


def _explore(seed: str, mutation: str | None, arguments: argparse.Namespace) -> tuple[Totals, Finding | None]:
    if not arguments.scenario:
        seconds, processes = arguments.seconds, arguments.processes
        runs, only_random = arguments.runs, arguments.only_random
        return explore(seed, seconds=seconds, processes=processes, mutation=mutation, max_runs=runs, only_random=only_random)
    totals = Totals()
    for number in range(arguments.runs or 1):
        plan = scenario(f"{seed}-{number}", mutation)
        outcome = run_plan(plan)
        totals.add(plan, outcome)
        if outcome.violation is not None:
            return totals, Finding(plan, outcome)
    return totals, None


def _replay(arguments: argparse.Namespace) -> int:
    plan = load_plan(arguments.plan)
    outcome = run_plan(plan)
    _print_outcome(plan, outcome)
    _print_json(arguments, None, Finding(plan, outcome))
    return 0 if outcome.violation is None else 1


def _find_mutation(name: str, seed: str, arguments: argparse.Namespace) -> int:
    began = real_perf_counter()
    totals, finding = _explore(seed, name, arguments)
    took = f"{real_perf_counter() - began:.1f} s, {totals.cpu_seconds:.1f} s of CPU, {totals.runs} runs"
    if finding is None:
        print(f"{name}: NOT FOUND without {MUTATIONS[name].removed} ({took})", flush=True)
        return 1
    if finding.outcome.invariant not in MUTATIONS[name].invariants:
        print(f"{name}: ANOTHER FAILURE ({took})\n  {finding.outcome.violation}", flush=True)
        return 1
    print(f"{name}: found after {took}, without {MUTATIONS[name].removed}\n  {finding.outcome.violation}", flush=True)
    if arguments.shrink:
        _print_json(arguments, totals, _shrunk(finding, arguments))
    return 0


def _shrunk(finding: Finding, arguments: argparse.Namespace) -> Finding:
    plan, outcome = finding
    print(f"FAILED: {outcome.violation}\n  plan {plan.seed} with {len(plan.entries)} entries; shrinking", flush=True)
    path: Path = arguments.save / f"{plan.seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    plan.save(path.with_suffix(".full.json"))

    plan, outcome = shrink(
        plan,
        outcome,
        seconds=arguments.shrink_seconds,
        max_runs=arguments.shrink_runs,
        note=lambda smaller: smaller.save(path),
    )
    plan.save(path)
    _print_outcome(plan, outcome)
    print(f"\nreplay: make simulate PLAN={path}\nthe whole plan: {path.with_suffix('.full.json')}", flush=True)
    return Finding(plan, outcome)


def _print_outcome(plan: Plan, outcome: Outcome) -> None:
    print(f"{plan.nodes} nodes, {len(plan.entries)} entries, digest {outcome.digest}")
    for entry in plan.entries:
        print(f"  {entry.at:10.3f} s  {entry.kind:10} {f'for {entry.seconds:.1f} s' if entry.seconds else '':14} {entry.data}")
    print(f"  {outcome.at_seconds:10.3f} s  {outcome.violation or 'no invariant was violated'}")


def _print_json(arguments: argparse.Namespace, totals: Totals | None, finding: Finding | None) -> None:
    if arguments.json:
        result: dict[str, Any] = {"totals": totals}
        if finding is not None:
            result |= {"violation": finding.outcome.violation, "digest": finding.outcome.digest}
            result["entries"] = len(finding.plan.entries)
        print(msgspec.json.encode(result).decode())
