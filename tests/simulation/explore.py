"""Runs plans of many seeds in parallel until the time is over or an invariant does not hold, and adds up what was simulated."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import NamedTuple

import msgspec

from tests.simulation.plan import Plan, make_dense_plan, make_plan
from tests.simulation.run import Outcome, run_plan
from tests.simulation.scenario import scenario
from tests.simulation.virtual_time import real_perf_counter

# Most runs stretch the intervals of the nodes, so that they cover many hours; some use the intervals of production.
WIDE_SCALE, WIDE_SECONDS = 30.0, 6 * 3600.0
USUAL_SCALE, USUAL_SECONDS = 1.0, 120.0
USUAL_EVERY = 10


class Totals(msgspec.Struct):
    """Sums over runs. `usual_node_hours`: those with the intervals of production."""

    runs: int = 0
    node_hours: float = 0
    usual_node_hours: float = 0
    cpu_seconds: float = 0
    store_calls: float = 0
    commits: float = 0
    fired: float = 0
    skipped: float = 0
    tasks: float = 0
    digests: list[str] = []

    def add(self, plan: Plan, outcome: Outcome) -> None:
        counts = outcome.counts
        self.runs += 1
        self.digests.append(outcome.digest)
        if plan.scale == USUAL_SCALE:
            self.usual_node_hours += counts["node_hours"]
        for name in ("node_hours", "cpu_seconds", "store_calls", "commits", "fired", "skipped", "tasks"):
            setattr(self, name, getattr(self, name) + counts[name])

    def __str__(self) -> str:
        return (
            f"{self.runs} runs, {self.node_hours:,.0f} node-hours ({self.usual_node_hours:,.1f} at the usual intervals), "
            f"{self.commits:,.0f} commits checked, {self.fired:,.0f} ticks fired and {self.skipped:,.0f} skipped, "
            f"{self.tasks:,.0f} tasks, {self.cpu_seconds:,.0f} s of CPU"
        )


class Finding(NamedTuple):
    plan: Plan
    outcome: Outcome


def plan_of_seed(seed: str, number: int, mutation: str | None = None, *, only_random: bool = False) -> Plan:
    """The plan of one run of a seed. The same seed and number always give the same plan.

    `only_random`: without the scenario, of which otherwise every second run with a mutation and some of the others are a form.
    """
    name = f"{seed}-{number}"
    if number % (20 if mutation is None else 2) == 0 and not only_random:
        return scenario(name, mutation)
    if number % 10 in (0, 5) if mutation is None else number % 8 != 7:
        return make_dense_plan(name, scale=WIDE_SCALE, mutation=mutation)
    if number % USUAL_EVERY == USUAL_EVERY - 1:
        return make_plan(name, scale=USUAL_SCALE, seconds=USUAL_SECONDS, mutation=mutation)
    return make_plan(name, scale=WIDE_SCALE, seconds=WIDE_SECONDS, mutation=mutation)


def explore(
    seed: str,
    *,
    seconds: float,
    processes: int,
    mutation: str | None = None,
    max_runs: int | None = None,
    only_random: bool = False,
) -> tuple[Totals, Finding | None]:
    """Run the plans of a seed one after the other, `processes` at a time. Returns the totals and the first finding."""
    totals, plans = Totals(), _plans(seed, real_perf_counter() + seconds, mutation, max_runs, only_random)
    running: dict[Connection, tuple[Plan, ForkProcess]] = {}
    try:
        while True:
            while len(running) < processes and (plan := next(plans, None)) is not None:
                connection, process = _start(plan)
                running[connection] = (plan, process)
            if not running:
                return totals, None
            ready = multiprocessing.connection.wait(list(running))
            for connection in [one for one in running if one in ready]:
                plan, process = running.pop(connection)
                outcome: Outcome = connection.recv()
                process.join()
                totals.add(plan, outcome)
                if outcome.violation is not None:
                    return totals, Finding(plan, outcome)
    finally:
        for _, process in running.values():
            process.kill()
            process.join()


def _start(plan: Plan) -> tuple[Connection, ForkProcess]:
    """Run a plan in a process of its own, so that its memory is returned."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_run_and_send, args=(plan, sender))
    process.start()
    sender.close()
    return receiver, process


def _run_and_send(plan: Plan, sender: Connection) -> None:
    # The process ends with the run. Collecting would go through all rows that the model keeps, again and again.
    gc.disable()
    sender.send(run_plan(plan))


def _plans(seed: str, until: float, mutation: str | None, max_runs: int | None, only_random: bool) -> Iterator[Plan]:
    number = 0
    while real_perf_counter() < until and (max_runs is None or number < max_runs):
        yield plan_of_seed(seed, number, mutation, only_random=only_random)
        number += 1
