"""A short plan in which each guard is needed within minutes of simulated time. The tests run it with each mutation."""

from __future__ import annotations

from typing import Any

from tests.simulation.plan import Entry, Plan

_SCALE = 30.0
_LEASE = 10 * _SCALE
_JOBS = 12


def scenario(seed: str, mutation: str | None = None) -> Plan:
    """Frequent schedules on three nodes that lose and regain partitions, with requests that are executed late."""
    entries = [Entry(1.0 + number, "put", data=_put(number)) for number in range(_JOBS)]
    moods = {"complete": 2.0, "stall": 3.0, "fail": 1.0}
    entries += [Entry(2.0, "worker", data={"name": f"worker-{number}", "mood": moods}) for number in range(4)]
    entries += [Entry(5.0, "orphan", 8 * _LEASE, {"node": None, "orphaned": 0.4, "max_delay": 0.7 * _LEASE})]
    for number in range(9):
        kind = "stop" if number % 3 else "crash"
        entries.append(Entry((2 + 0.7 * number) * _LEASE, kind, 0.2 * _LEASE, {"node": number % 3}))
    names = [_name(number) for number in range(0, _JOBS, 3)]
    entries += [Entry((2.5 + number) * _LEASE, "restore", 1.3 * _LEASE, {"names": names}) for number in range(4)]
    entries.sort(key=lambda entry: entry.at)
    return Plan(f"scenario-{seed}", _SCALE, 3, 9 * _LEASE, entries, mutation)


def _name(number: int) -> str:
    return f"job-{number}"


def _put(number: int) -> dict[str, Any]:
    definition = {
        "every_seconds": 40 + 5 * number,
        "anchor": -1000,
        "target": {"kind": "worker", "type": "work"},
        "overlap": "allow" if number % 2 else "skip",
        "catch_up": ("latest", "all", "none")[number % 3],
        "misfire_grace_seconds": 900,
    }
    return {"name": _name(number), "definition": definition}
