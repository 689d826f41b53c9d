"""The plan of a run: which faults and operations happen when. It follows from the seed, and can be saved, edited and shrunk."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec

from tests.simulation.clients import QUEUES

_FAULTS: dict[str, float] = {
    "crash": 5,
    "stop": 2,
    "freeze": 5,
    "cut": 4,
    "slow": 6,
    "lossy": 6,
    "orphan": 5,
    "locked": 2,
    "deaf": 3,
    "down": 1.5,
    "step": 2,
    "skew": 1,
    "clients": 3,
}
_OPERATIONS: dict[str, float] = {
    "put": 4,
    "pause": 2,
    "resume": 3,
    "delete": 0.7,
    "trigger": 2,
    "submit": 12,
    "cancel": 3,
    "reschedule": 1.5,
    "retry": 1,
    "replay": 1,
    "backfill": 0.5,
    "pause_queue": 1,
    "resume_queue": 2,
}
_TRIGGERS: list[dict[str, Any]] = [
    {"cron": "* * * * *"},
    {"cron": "*/2 * * * *"},
    {"cron": "*/5 * * * *"},
    {"cron": "*/10 * * * *", "timezone": "Europe/Berlin"},
    {"cron": "*/15 * * * *"},
    {"cron": "7 * * * *"},
    {"cron": "0 * * * *", "timezone": "Asia/Kolkata"},
    {"cron": "10 */6 * * *"},
    {"cron": "30 5 * * *", "timezone": "Asia/Kolkata"},
    {"cron": "*/20 * * * * *"},
]


class Entry(msgspec.Struct, omit_defaults=True):
    """Something that happens at a time in seconds. `seconds`: how long a fault lasts."""

    at: float
    kind: str
    seconds: float = 0
    data: dict[str, Any] = {}

    @property
    def is_fault(self) -> bool:
        return self.kind in _FAULTS or self.kind == "restore"


class Plan(msgspec.Struct):
    """`scale`: how many times as long as by default the intervals of the nodes are."""

    seed: str
    scale: float
    nodes: int
    seconds: float
    entries: list[Entry]
    mutation: str | None = None

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1))


def load_plan(path: Path) -> Plan:
    return msgspec.json.decode(path.read_bytes(), type=Plan)


def make_plan(seed: str, *, scale: float, seconds: float, mutation: str | None = None) -> Plan:
    return _Planner(seed, scale, seconds).plan(mutation)


def make_dense_plan(seed: str, *, scale: float, mutation: str | None = None) -> Plan:
    """A short random plan with frequent schedules, late requests, restarts and stalled workers, so that guards are needed."""
    return _DensePlanner(seed, scale, random.Random(f"{seed}/length").uniform(10, 25) * 10 * scale).plan(mutation)


class _Planner:
    def __init__(self, seed: str, scale: float, seconds: float) -> None:
        self._seed = seed
        self._random = random.Random(f"{seed}/plan")
        self._scale, self._seconds = scale, seconds
        self._lease = 10 * scale
        self._nodes = self._random.randint(3, 12)
        self._names = [f"job-{number}" for number in range(self._random.randint(4, 16))]
        self._key = 0
        # A run with a few kinds of faults reaches other states than one with all of them. So each seed has its own selection.
        self._faults = self._selected(_FAULTS)
        self._operations = self._selected(_OPERATIONS)
        self._has_frequent_schedules = self._random.random() < 0.3
        self._fault_rates: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0)
        self._operation_rates: tuple[float, ...] = self._fault_rates
        self._restore_rate = 0.25

    def _selected(self, weights: dict[str, float]) -> dict[str, float]:
        choice = self._random
        kinds = choice.sample(list(weights), choice.randint(1, len(weights)))
        return {kind: weights[kind] for kind in kinds}

    def plan(self, mutation: str | None) -> Plan:
        choice, entries = self._random, list[Entry]()
        entries += [Entry(choice.uniform(0, 2 * self._lease), "put", data=self._put(name)) for name in self._names]
        for number in range(choice.randint(2, 5)):
            entries.append(Entry(choice.uniform(0, self._lease), "worker", data=self._worker(number)))
        for _ in range(int(choice.choice(self._fault_rates) * self._seconds / (3 * self._lease))):
            entries.append(self._fault())
        for _ in range(int(choice.choice(self._operation_rates) * self._seconds / (3 * self._lease))):
            entries.append(self._operation())
        if choice.random() < self._restore_rate:
            names = choice.sample(self._names, 3)
            entries.append(Entry(self._any_time(), "restore", choice.uniform(1, 10) * self._lease, {"names": names}))
        entries.sort(key=lambda entry: entry.at)
        return Plan(self._seed, self._scale, self._nodes, self._seconds, entries, mutation)

    def _any_time(self) -> float:
        return self._random.uniform(0, self._seconds)

    def _worker(self, number: int) -> dict[str, Any]:
        mood = {"complete": 10, "fail": 2, "crash": 1, "stall": 1, "release": 0.5}
        return {"name": f"worker-{number}", "mood": mood}

    # Faults

    def _fault(self) -> Entry:
        choice, lease = self._random, self._lease
        (kind,) = choice.choices(list(self._faults), list(self._faults.values()))
        seconds = choice.uniform(0.1, 1) * lease * choice.choice([0.5, 2, 4])
        data: dict[str, Any] = {}
        # Most faults hit one node, others all of them.
        if kind not in ("down", "step", "clients"):
            data["node"] = choice.randrange(self._nodes) if choice.random() < 0.8 or kind in ("crash", "freeze") else None
        match kind:
            case "slow":
                data["max_delay"] = choice.choice([0.02, 0.1, 0.5, 1.5, 3]) * lease
            case "lossy":
                data |= {"requests": choice.choice([0, 0.2, 0.6]), "replies": choice.choice([0, 0.2, 0.6])}
            case "orphan":
                data |= {"orphaned": choice.uniform(0.1, 0.6), "max_delay": choice.choice([0.1, 0.5, 1.5]) * lease}
            case "locked":
                data["locked"] = choice.uniform(0.1, 0.9)
            case "deaf":
                data["lost"] = choice.choice([0.5, 1])
            case "step":
                size = choice.choice([0.3, 1, 5, 20]) * lease * choice.uniform(0.2, 1)
                data["by"] = size if choice.random() < 0.5 else -size
            case "skew":
                data["by"] = choice.uniform(-2, 2) * 3600
            case "clients":
                data |= {"lost": choice.choice([0, 0.2, 0.5]), "max_delay": choice.choice([0, 0.2, 1.2]) * lease}
            case "down":
                seconds = min(seconds, 2 * lease)
        return Entry(self._any_time(), kind, seconds, data)

    # Operations

    def _operation(self) -> Entry:
        choice = self._random
        (kind,) = choice.choices(list(self._operations), list(self._operations.values()))
        match kind:
            case "put":
                data = self._put(choice.choice(self._names))
            case "submit":
                data = self._submit()
            case "cancel" | "retry" | "replay":
                data = {"pick": choice.random()}
            case "backfill":
                data = {"name": choice.choice(self._names), "seconds": choice.uniform(0, 5) * self._lease}
            case "pause_queue":
                seconds = choice.choice([None, choice.uniform(0, 5) * self._lease])
                data = {"queue": choice.choice([None, *QUEUES]), "seconds": seconds}
            case "resume_queue":
                data = {"queue": choice.choice([None, *QUEUES])}
            case "reschedule":
                data = {"pick": choice.random(), "seconds": choice.uniform(-1, 4) * self._lease}
            case _:
                data = {"name": choice.choice(self._names)}
        return Entry(self._any_time(), kind, data=data)

    def _put(self, name: str) -> dict[str, Any]:
        choice, lease = self._random, self._lease
        definition: dict[str, Any] = {
            **self._trigger(),
            "target": {"kind": "worker", "type": "work", "queue": choice.choice(QUEUES)},
            "overlap": choice.choice(["skip", "queue", "cancel_previous", "allow"]),
            "catch_up": choice.choice(["latest", "all", "none"]),
            "misfire_grace_seconds": round(choice.uniform(0, 3) * lease),
            "jitter_seconds": round(choice.choice([0, 0, 0.3]) * lease),
            "max_attempts": choice.randint(1, 4),
            "timeout_seconds": choice.choice([6, 30, 60]) * lease,
            "retry": {"kind": "fixed", "base_seconds": choice.choice([0, 0.1, 1]) * lease},
        }
        if choice.random() < 0.2:
            definition["ends_at"] = round(choice.uniform(20, 200) * lease)
        if choice.random() < 0.15:
            definition["enabled"] = False
        return {"name": name, "definition": definition}

    def _trigger(self) -> dict[str, Any]:
        choice, lease = self._random, self._lease
        kind = choice.random()
        if self._has_frequent_schedules:
            seconds = max(1, round(choice.uniform(0.1, 0.6) * lease))
            return {"every_seconds": seconds, "anchor": round(choice.uniform(-50, 1) * lease)}
        if kind < 0.55:
            # Schedules that are much more frequent than the leases of the run would only make it slower.
            fitting = _TRIGGERS if self._scale < 6 else _TRIGGERS[:-1]
            return choice.choice(fitting)
        if kind < 0.8:
            seconds = max(1, round(choice.choice([0.3, 1, 5, 20]) * lease * choice.uniform(0.5, 1.5)))
            return {"every_seconds": seconds, "anchor": round(choice.uniform(-50, 5) * lease)}
        if kind < 0.92:
            interval = max(1, round(choice.uniform(0.2, 4) * lease / 60))
            return {"rrule": f"FREQ=MINUTELY;INTERVAL={interval}", "anchor": round(choice.uniform(-50, 5) * lease)}
        return {"at": round(choice.uniform(1, 60) * lease)}

    def _submit(self) -> dict[str, Any]:
        choice, lease = self._random, self._lease
        self._key += 1
        more = {
            "queue": choice.choice(QUEUES),
            "priority": choice.choice([1, 100]),
            "max_attempts": choice.randint(1, 4),
            "timeout_seconds": choice.choice([2, 6, 60]) * lease,
            "retry_seconds": choice.choice([0, 0.1, 1]) * lease,
        }
        if choice.random() < 0.4:
            more["delay_seconds"] = choice.uniform(0, 6) * lease
        key = f"key-{self._key}" if choice.random() < 0.5 else None
        return {"key": key, "more": more, "is_repeated": choice.random() < 0.3}


class _DensePlanner(_Planner):
    """Plans in which much happens to the same rows at the same time."""

    def __init__(self, seed: str, scale: float, seconds: float) -> None:
        super().__init__(seed, scale, seconds)
        choice = self._random
        self._nodes = choice.randint(2, 4)
        # Requests that are executed late are what guards are for; nodes that lose partitions make them stale.
        kinds = {"orphan", "slow", "crash", "stop", "freeze", *self._faults}
        self._faults = {kind: _FAULTS[kind] * (3 if kind == "orphan" else 1) for kind in _FAULTS if kind in kinds}
        self._has_frequent_schedules = choice.random() < 0.9
        self._fault_rates, self._operation_rates = (3.0, 6.0, 10.0), (0.5, 2.0)
        self._restore_rate = 0.7

    def _worker(self, number: int) -> dict[str, Any]:
        mood = {"complete": 4, "fail": 2, "crash": 1, "stall": self._random.choice([2, 6]), "release": 0.5}
        return {"name": f"worker-{number}", "mood": mood}
