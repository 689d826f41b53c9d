"""The plan of a run: which faults happen when, to whom and for how long. The same seed makes the same plan."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.chaos.catalog import GROUPS, KINDS, kinds_of

ROUND_SECONDS = 60.0
# At the end of each round nothing is disturbed, so that lateness can be judged by the bound of an undisturbed cluster.
CALM_SECONDS = 22.0
WARM_UP_SECONDS = 5.0
NODES = {"postgres": 3, "sqlite": 2}
WORKERS = 4


class PlannedFault(NamedTuple):
    """A fault, at an offset in seconds from the start of the faults."""

    number: int
    at: float
    kind: str
    group: str
    victim: int
    seconds: float
    value: float


def make_plan(seed: int, seconds: float, store: str) -> list[PlannedFault]:
    """Return the faults of a run in the order of time. Faults of one group do not overlap; those of two groups may."""
    found = [fault for group in GROUPS for fault in _group(group, seed, seconds, store)]
    found.sort(key=lambda fault: (fault[0], fault[2]))
    return [PlannedFault(number, *fault) for number, fault in enumerate(found)]


def _group(group: str, seed: int, seconds: float, store: str) -> Iterator[tuple[float, str, str, int, float, float]]:
    rng = random.Random(f"{seed}/{group}/{store}")
    lot: list[str] = []
    for start, end in _disturbed(seconds):
        at = start + rng.uniform(0, 5)
        while True:
            if not lot:
                lot = kinds_of(group, store)
                rng.shuffle(lot)
            kind = lot.pop()
            duration = round(rng.uniform(*KINDS[kind].seconds), 2)
            victim, value = rng.randrange(12), _value(kind, rng)
            if at + duration > end:
                lot.append(kind)
                break
            yield round(at, 2), kind, group, victim, duration, value
            at += duration + rng.uniform(4, 12)


def _disturbed(seconds: float) -> Iterator[tuple[float, float]]:
    """Yield the parts of each round in which faults may start and last."""
    start = 0.0
    while start < seconds:
        length = min(ROUND_SECONDS, seconds - start)
        calm = CALM_SECONDS * length / ROUND_SECONDS
        yield start + WARM_UP_SECONDS, start + length - calm
        start += length


def _value(kind: str, rng: random.Random) -> float:
    """Return the size of faults that have one: the step of a clock, in seconds."""
    steps = {"database_clock": (7.0, 15.0, 25.0, -10.0, -40.0, -3600.0), "node_clock": (3600.0, -3600.0, 86400.0)}
    return rng.choice(steps[kind]) if kind in steps else round(rng.random(), 3)


def as_json(plan: list[PlannedFault]) -> list[dict[str, Any]]:
    return [fault._asdict() for fault in plan]
