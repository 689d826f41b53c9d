"""Reads the report folder of a run. What cannot be read is a gap: then nothing can be proven by absence."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

Record = dict[str, Any]
SECONDS_WITHOUT_BEAT = 10.0


class Violation(NamedTuple):
    """Something that must not happen. `is_positive`: it is proven by what is there, not by what is missing."""

    kind: str
    what: str
    evidence: Record
    is_positive: bool = True


class FaultDone(NamedTuple):
    """A fault as it was carried out, in the time of this machine. An infinite end: it was never reported as ended."""

    kind: str
    group: str
    started_at: float
    ended_at: float
    was_effective: bool
    value: float


@dataclass
class Evidence:
    run: Record = field(default_factory=dict)
    rules: list[Record] = field(default_factory=list)
    plan: list[Record] = field(default_factory=list)
    faults: list[FaultDone] = field(default_factory=list)
    stalls: list[tuple[float, float]] = field(default_factory=list)
    load: list[Record] = field(default_factory=list)
    workers: list[Record] = field(default_factory=list)
    deliveries: list[Record] = field(default_factory=list)
    schedules: list[Record] = field(default_factory=list)
    ticks: list[Record] = field(default_factory=list)
    tasks: list[Record] = field(default_factory=list)
    attempts: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    audit: Record = field(default_factory=dict)
    gaps: list[str] = field(default_factory=list)

    @property
    def window(self) -> tuple[float, float]:
        return self.run["window"]["from"], self.run["window"]["to"]

    @property
    def lease_seconds(self) -> float:
        return float(self.run["settings"]["lease_seconds"])


def instant(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()


def read_evidence(folder: Path) -> Evidence:
    """Read everything that is there, and record what is not."""
    reader = _Reader(folder)
    found = Evidence(gaps=reader.gaps)
    found.run = reader.document("run.json", {})
    found.rules = reader.document("rules.json", [])
    found.plan = reader.document("plan.json", [])
    found.faults = _faults(reader.lines("faults"))
    reader.gaps += [f"the fault {one.kind} has no end" for one in found.faults if one.ended_at == float("inf")]
    machine = reader.lines("machine")
    found.stalls = [(one["from"], one["to"]) for one in machine if one["event"] == "stall"]
    found.load = reader.lines("load")
    found.workers = reader.lines("workers")
    found.deliveries = reader.lines("receiver")
    found.schedules = reader.pages("schedules")
    found.ticks = reader.pages("ticks")
    found.tasks = reader.pages("tasks")
    for attempt in reader.pages("attempts"):
        found.attempts[attempt["task"]].append(attempt)
    found.audit = reader.document("api/audit.json", {})
    _require_beats(found, machine, "the watch of the machine")
    _require_beats(found, found.load, "the load generator")
    return found


class _Reader:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pages: Record | None = None
        self.gaps: list[str] = []

    def document(self, name: str, default: Any) -> Any:
        try:
            return json.loads((self._folder / name).read_text())
        except (OSError, ValueError) as error:
            self.gaps.append(f"{name}: {error}")
            return default

    def lines(self, folder: str) -> list[Record]:
        """Return the lines of all logs of a folder, by time."""
        paths = sorted((self._folder / folder).glob("*.jsonl"))
        if not paths:
            self.gaps.append(f"{folder}/: no log")
        found = [line for path in paths for line in self._numbered(path)]
        found.sort(key=lambda line: float(line["at"]))
        return found

    def _numbered(self, path: Path) -> Iterable[Record]:
        for number, text in enumerate(path.read_bytes().split(b"\n")[:-1]):
            try:
                line = json.loads(text)
            except ValueError as error:
                self.gaps.append(f"{path.parent.name}/{path.name}, line {number + 1}: {error}")
                return
            if line["seq"] != number:
                self.gaps.append(f"{path.parent.name}/{path.name}: line {number} is missing")
                return
            yield line

    def pages(self, name: str) -> list[Record]:
        """Return the answers of the API that were saved, if they are as many as the collector counted."""
        if self._pages is None:
            self._pages = self.document("api/complete.json", {})
        try:
            found = [json.loads(line) for line in (self._folder / "api" / f"{name}.jsonl").read_text().splitlines()]
        except (OSError, ValueError) as error:
            self.gaps.append(f"api/{name}.jsonl: {error}")
            return []
        if len(found) != self._pages.get(name):
            self.gaps.append(f"api/{name}.jsonl: {len(found)} lines, and the collector wrote {self._pages.get(name)}")
        return found


def _faults(lines: list[Record]) -> list[FaultDone]:
    """Pair the lines that start a fault with those that end it."""
    ends = {line["number"]: line for line in lines if line["event"] == "ended"}
    found = []
    for line in lines:
        if line["event"] != "started":
            continue
        end = ends.get(line["number"])
        done = end is not None and bool(end["effective"])
        ended_at = float("inf") if end is None else end["at"]
        found.append(FaultDone(line["kind"], line["group"], line["at"], ended_at, done, line["value"]))
    return sorted(found, key=lambda fault: fault.started_at)


def _require_beats(found: Evidence, lines: list[Record], what: str) -> None:
    """A process that logs a beat every second, and has stopped, has seen nothing since."""
    if "window" not in found.run:
        return
    first, last = found.window
    beats = [line["at"] for line in lines if line["event"] == "beat" and first <= line["at"] <= last]
    for before, after in itertools.pairwise([first, *beats, last]):
        if after - before > SECONDS_WITHOUT_BEAT:
            found.gaps.append(f"{what} was silent for {after - before:.1f} s")
