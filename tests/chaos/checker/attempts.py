"""Judges what workers did, by their own logs: each task is run by one holder at a time, and a stale one changes nothing."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.chaos.catalog import DELIVER, KINDS, START
from tests.chaos.checker.deadlines import STALL_RECOVERY_SECONDS, DatabaseClock
from tests.chaos.checker.evidence import Evidence, Record, Violation


class Holding(NamedTuple):
    """One holder's claim of a task, as far as its log or the receiver's shows it. `fence` orders the claims of a task."""

    task: str
    fence: int
    first_at: float
    runs: int
    answered: list[Record]
    lines: list[Record]

    @property
    def was_meant_to_end(self) -> bool:
        """Whether this attempt was to fail, to kill its worker or to outlive its lease on purpose."""
        return any(line.get("planned") for line in self.lines)

    @property
    def has_failed(self) -> bool:
        return any(line["event"] == "failed" or (line["event"] == "delivery" and line["answer"] != 200) for line in self.lines)


class AttemptVerdict(NamedTuple):
    violations: list[Violation]
    holdings: dict[str, list[Holding]]
    repeated: int
    refused_as_stale: int


# Events that run the task's effect once.
_RUNS = frozenset({"started", "delivery"})


def judge_attempts(evidence: Evidence) -> AttemptVerdict:
    holdings = _holdings(evidence)
    violations: list[Violation] = []
    states = {task["id"]: task for task in evidence.tasks}
    explain = _Explanations(evidence)
    for task, found in holdings.items():
        violations += _doubled(found, explain)
        violations += _stale(found, evidence, explain.clock)
        violations += _result(states.get(task), found)
    repeated = sum(len(found) > 1 for found in holdings.values())
    refused = sum(line["status"] in ("stale", "lost") for found in holdings.values() for one in found for line in one.answered)
    return AttemptVerdict(violations, holdings, repeated, refused)


def _holdings(evidence: Evidence) -> dict[str, list[Holding]]:
    lines: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for line in (*evidence.workers, *evidence.deliveries):
        if "fence" in line:
            lines[line["task"], line["fence"]].append(line)
    found: dict[str, list[Holding]] = defaultdict(list)
    for (task, fence), own in sorted(lines.items(), key=lambda item: item[0]):
        runs = sum(line["event"] in _RUNS for line in own)
        answered = [line for line in own if line["event"] == "answered"]
        found[task].append(Holding(task, fence, min(line["at"] for line in own), runs, answered, own))
    return found


class _Explanations:
    """What may have ended a claim before its task was done."""

    def __init__(self, evidence: Evidence) -> None:
        self.clock = DatabaseClock(evidence.faults)
        self._lease = float(evidence.run["settings"]["worker_lease_seconds"])
        self._spans = [
            (fault.started_at, fault.ended_at + KINDS[fault.kind].recovery_seconds)
            for fault in evidence.faults
            if KINDS[fault.kind].delays & {START, DELIVER}
        ]
        self._spans += [(from_, to + STALL_RECOVERY_SECONDS) for from_, to in evidence.stalls]

    def explains(self, earlier: Holding, later: Holding) -> bool:
        if earlier.was_meant_to_end or earlier.has_failed:
            return True
        # A lease may have been granted long before the first line about it, if the reply to the claim was lost or slow.
        from_, to = earlier.first_at - self._lease, later.first_at
        return any(start <= to and from_ <= end for start, end in self._spans)


def _doubled(found: list[Holding], explain: _Explanations) -> Iterator[Violation]:
    for one in found:
        if one.runs > 1:
            yield Violation("doubled", f"a task ran {one.runs} times under one fence", _shown(one))
    for earlier, later in itertools.pairwise(found):
        if not explain.explains(earlier, later):
            what = "a task was run again, and nothing had ended its first attempt"
            yield Violation("doubled", what, {"first": _shown(earlier), "second": _shown(later)})


def _stale(found: list[Holding], evidence: Evidence, clock: DatabaseClock) -> Iterator[Violation]:
    """A report that was sent after a later claim must be refused, and so must one that was sent after the lease."""
    accepted = [(one, line) for one in found for line in one.answered if line["status"] == "ok"]
    for one, line in accepted:
        later = [other for other in found if other.fence > one.fence and other.first_at < line["sent_at"]]
        if later:
            shown = {"report": line, "later_claim": _shown(later[0])}
            yield Violation("stale-accepted", "a report was accepted although a later claim existed", shown)
        elif _outlived(line) and not clock.was_stepped(line["claimed_at"], line["sent_at"]):
            yield Violation("stale-accepted", "a report was accepted after its lease had ended", {"report": line})
    ends = [line for _, line in accepted if line["verb"] == "complete"]
    if len({line["fence"] for line in ends}) > 1:
        yield Violation("stale-accepted", "two claims of one task completed it", {"reports": ends})


def _outlived(line: Record) -> bool:
    """Whether a holder that sent no heartbeat reported later than its lease, with a second to spare."""
    held = line.get("claimed_at")
    return held is not None and not line["heartbeats"] and line["sent_at"] - held > line["lease_seconds"] + 1.0


def _result(task: Record | None, found: list[Holding]) -> Iterator[Violation]:
    """The result of a handler is its fence. It must be that of the last claim."""
    if task is None or task["state"] != "completed" or not isinstance(task["result"], dict):
        return
    fence = task["result"].get("fence")
    if isinstance(fence, int) and fence < found[-1].fence:
        shown = {"task": task["id"], "fence_of_result": fence, "last_claim": _shown(found[-1])}
        yield Violation("stale-accepted", "the result is that of an earlier claim than the last one", shown)


def _shown(one: Holding) -> Record:
    return {"task": one.task, "fence": one.fence, "first_at": one.first_at, "lines": one.lines[:6]}
