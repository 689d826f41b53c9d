"""Forges the report of a run: first one in which everything went well, which a test then changes in one place."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.chaos.catalog import GROUPS
from tests.chaos.checker.oracle import ticks_between

Record = dict[str, Any]

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC).timestamp()
SECONDS = 120.0
WINDOW = (START + 0.5, START + SECONDS + 0.5)
SETTINGS = {
    "lease_seconds": 3.0,
    "worker_lease_seconds": 5.0,
    "catch_up_rate": 2.0,
    "late_after_seconds": 5.0,
    "slow_queues": ["slow"],
}
RULES: list[Record] = [
    {"name": "all", "cron": "* * * * * *", "timezone": "UTC", "catch_up": "all", "overlap": "allow"},
    {"name": "latest", "cron": "*/2 * * * * *", "timezone": "Asia/Kathmandu", "catch_up": "latest", "overlap": "allow"},
    {"name": "skips", "cron": "* * * * * *", "timezone": "UTC", "catch_up": "latest", "overlap": "skip"},
    {"name": "paused", "cron": "* * * * * *", "timezone": "UTC", "catch_up": "latest", "overlap": "allow"},
    {"name": "hook", "every_seconds": 1, "anchor": "2026-03-01T00:00:00Z", "catch_up": "latest", "overlap": "allow"},
]
FAULT_KINDS = {"nodes": "node_kill", "workers": "worker_kill", "database": "database_restart", "network": "receiver_errors"}


def text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Forgery:
    """The parts of a report. A test changes them, and `write` makes the folder. Faults are in the first forty seconds."""

    def __init__(self) -> None:
        self.run: Record = {"seed": 1, "seconds": SECONDS, "store": "forged", "settings": SETTINGS}
        self.run["window"] = {"from": WINDOW[0], "to": WINDOW[1]}
        self.rules = [dict(rule) for rule in RULES]
        self.logs: dict[str, list[Record]] = {name: [] for name in ("faults", "machine", "load", "workers", "receiver")}
        self.ticks: list[Record] = []
        self.tasks: list[Record] = []
        self.attempts: list[Record] = []
        for number, (group, kind) in enumerate((group, FAULT_KINDS[group]) for _ in range(3) for group in GROUPS):
            self.fault(kind, number % 4 * 2.0 + number // 4 * 10.0, 1.0, group=group)
        self.logs["machine"] = [{"at": START + second, "event": "beat"} for second in range(int(SECONDS) + 2)]
        self.logs["load"] = [dict(line) for line in self.logs["machine"]]
        for rule in self.rules:
            for at in ticks_between(rule, *WINDOW):
                self.fire(rule["name"], at)
        for number in range(300):
            self.submit(f"ticket-{number}", START + 1 + number * 0.35)
        self._repeat()

    # What makes up a run

    def fault(self, kind: str, after: float, seconds: float, *, group: str, value: float = 0.0) -> None:
        number = len(self.logs["faults"]) // 2
        line = {"number": number, "kind": kind, "group": group, "value": value}
        self.logs["faults"].append({"at": START + after, "event": "started", **line})
        self.logs["faults"].append({"at": START + after + seconds, "event": "ended", "number": number, "effective": True})

    def fire(self, schedule: str, at: float, late: float = 0.002) -> Record:
        """Let a tick fire, its task run, and return the row of the ledger."""
        id_ = f"{schedule}-{at:.3f}"
        tick = {"schedule": schedule, "scheduled_for": text(at), "outcome": "fired", "reason": None, "task_id": id_}
        self.ticks.append({**tick, "fired_at": text(at + late), "lag_ms": late * 1000})
        task = self._task(id_, at + late, origin="tick", schedule=schedule, scheduled_for=text(at), run_at=text(at))
        if schedule == "hook":
            task["target"] = {"kind": "http"}
            line = {"task": id_, "fence": 1, "attempt": 1, "schedule": schedule, "tick": at, "answer": 200}
            self.logs["receiver"].append({"at": at + late + 0.01, "event": "delivery", **line})
        else:
            self.execute(id_, at + late + 0.01, schedule=schedule, tick=at)
        return self.ticks[-1]

    def submit(self, ticket: str, at: float) -> Record:
        id_ = f"task-{ticket}"
        line = {"ticket": ticket, "task": id_, "run_at": at, "sent_at": at, "ends_as": "completed"}
        self.logs["load"].append({"at": at + 0.005, "event": "submitted", **line})
        self._task(id_, at, origin="submit", run_at=text(at), payload={"ticket": ticket})
        self.execute(id_, at + 0.02, ticket=ticket)
        return self.logs["load"][-1]

    def execute(self, task: str, at: float, *, fence: int = 1, verb: str = "complete", status: str = "ok", **more: Any) -> None:
        claim = {"task": task, "fence": fence}
        self.logs["workers"].append({"at": at, "event": "started", **claim, "schedule": None, "tick": None, **more})
        held = {"claimed_at": at, "sent_at": at + 0.01, "heartbeats": 0, "lease_seconds": 5.0}
        self.logs["workers"].append({"at": at + 0.02, "event": "answered", **claim, "verb": verb, "status": status, **held})

    def _task(self, id_: str, at: float, **more: Any) -> Record:
        task: Record = {"id": id_, "queue": "chaos", "target": {"kind": "worker"}, "payload": {}, "schedule": None}
        task |= {"state": "completed", "attempt": 1, "scheduled_for": None, "error": None}
        task |= {"created_at": text(at), "finished_at": text(at + 0.1)}
        self.tasks.append({**task, "result": {"fence": 1}, **more})
        return self.tasks[-1]

    def _repeat(self) -> None:
        """A task whose worker was killed, and a stale report, as every long run has them."""
        self.submit("repeated", START + 8)
        first = self.lines("workers", task="task-repeated")[1]
        first["status"] = "stale"
        self.execute("task-repeated", START + 14, fence=2)
        self.task("task-repeated")["result"] = {"fence": 2}

    # What a test changes

    def tick(self, schedule: str, after: float) -> Record:
        at = text(START + after)
        return next(tick for tick in self.ticks if tick["schedule"] == schedule and tick["scheduled_for"] == at)

    def task(self, id_: str) -> Record:
        return next(task for task in self.tasks if task["id"] == id_)

    def task_of(self, schedule: str, after: float) -> Record:
        return self.task(str(self.tick(schedule, after)["task_id"]))

    def lines(self, log: str, **wanted: Any) -> list[Record]:
        return [line for line in self.logs[log] if all(line.get(name) == value for name, value in wanted.items())]

    def forget(self, task: str) -> None:
        """Remove what workers and the receiver logged about a task."""
        for name in ("workers", "receiver"):
            self.logs[name] = [line for line in self.logs[name] if line.get("task") != task]

    def drop_tick(self, schedule: str, after: float) -> Record:
        """Remove a tick with its task, as if it had never fired, and return its row."""
        tick = self.tick(schedule, after)
        self.ticks.remove(tick)
        self.tasks.remove(self.task(tick["task_id"]))
        self.forget(tick["task_id"])
        return tick

    def skip(self, schedule: str, after: float, reason: str) -> Record:
        tick = self.drop_tick(schedule, after)
        self.ticks.append({**tick, "outcome": "skipped", "reason": reason, "task_id": None, "fired_at": None})
        return self.ticks[-1]

    # The folder

    def write(self, folder: Path, change: Callable[[Path], None] = lambda folder: None) -> Path:
        for name, value in (("run", self.run), ("rules", self.rules), ("plan", [{}] * 12)):
            (folder / f"{name}.json").write_text(json.dumps(value))
        for name, lines in self.logs.items():
            (folder / name).mkdir()
            ordered = sorted(lines, key=lambda line: float(line["at"]))
            numbered = [json.dumps({"seq": number, **line}) + "\n" for number, line in enumerate(ordered)]
            (folder / name / "one.jsonl").write_text("".join(numbered))
        (folder / "api").mkdir()
        saved = {"schedules": [], "ticks": self.ticks, "tasks": self.tasks, "attempts": self.attempts}
        for name, items in saved.items():
            (folder / "api" / f"{name}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
        (folder / "api" / "complete.json").write_text(json.dumps({name: len(items) for name, items in saved.items()}))
        (folder / "api" / "audit.json").write_text(json.dumps(self.audit()))
        change(folder)
        return folder

    def audit(self) -> Record:
        schedules = [self._audited(rule) for rule in self.rules]
        total: Record = {"missing": 0, "doubled": 0, "expected": 0, "fired": 0, "skipped": {}}
        for one in schedules:
            total["expected"] += one["expected"]
            total["fired"] += one["fired"]
            for reason, count in one["skipped"].items():
                total["skipped"][reason] = total["skipped"].get(reason, 0) + count
        return {**total, "schedules": schedules}

    def _audited(self, rule: Record) -> Record:
        own = [tick for tick in self.ticks if tick["schedule"] == rule["name"]]
        skipped: dict[str, int] = {}
        for tick in own:
            if tick["outcome"] == "skipped":
                skipped[tick["reason"]] = skipped.get(tick["reason"], 0) + tick.get("count", 1)
        fired = sum(tick["outcome"] == "fired" for tick in own)
        expected = len(ticks_between(rule, *WINDOW))
        return {"name": rule["name"], "expected": expected, "fired": fired, "skipped": skipped, "missing": 0, "doubled": 0}
