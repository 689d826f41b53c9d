"""Judges the ledger: each tick that a rule requires is there once, on time, and with a reason that something explains."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.chaos.checker.deadlines import DatabaseClock, Deadlines
from tests.chaos.checker.evidence import Evidence, Record, Violation, instant
from tests.chaos.checker.oracle import ticks_between

_PRECISION_SECONDS = 0.000_002
_AROUND_STEPS_SECONDS = 10.0


class LedgerRow(NamedTuple):
    """What the API returned about one tick. A range of skipped ticks makes one row for each of its ticks."""

    schedule: str
    at: float
    outcome: str
    reason: str | None
    task: str | None
    fired_at: float | None


class TickVerdict(NamedTuple):
    violations: list[Violation]
    rows: list[LedgerRow]
    expected: dict[str, list[float]]
    # Ticks whose lateness was judged by the bound of an undisturbed cluster.
    undisturbed: int
    worst_undisturbed_seconds: float

    def count(self, outcome: str, reason: str | None = None) -> int:
        return sum(row.outcome == outcome and (reason is None or row.reason == reason) for row in self.rows)


def judge_ticks(evidence: Evidence) -> TickVerdict:
    expected = {rule["name"]: ticks_between(rule, *evidence.window) for rule in evidence.rules}
    violations: list[Violation] = []
    rows = list(_rows(evidence, expected, violations))
    judge = _Judge(evidence, rows)
    for rule in evidence.rules:
        found = [row for row in rows if row.schedule == rule["name"]]
        violations += _compare(rule["name"], expected[rule["name"]], found)
        for row in found:
            violations += judge.judge(row, rule)
    return TickVerdict(violations, rows, expected, judge.undisturbed, judge.worst)


def _rows(evidence: Evidence, expected: dict[str, list[float]], violations: list[Violation]) -> Iterator[LedgerRow]:
    for tick in evidence.ticks:
        at = instant(tick["scheduled_for"])
        assert at is not None
        if tick["outcome"] == "missing":
            violations.append(Violation("lost", "the API itself says that the tick is missing", tick))
        if tick["outcome"] not in ("fired", "skipped"):
            continue
        row = LedgerRow(tick["schedule"], at, tick["outcome"], tick["reason"], tick["task_id"], instant(tick["fired_at"]))
        until = instant(tick.get("until"))
        if until is None:
            yield row
            continue
        wanted = expected.get(row.schedule, [])
        inside = wanted[bisect_left(wanted, at - _PRECISION_SECONDS) : bisect_right(wanted, until + _PRECISION_SECONDS)]
        if tick["count"] != len(inside):
            what = f"a range counts {tick['count']} ticks, and the rule has {len(inside)} in it"
            violations.append(Violation("unexpected", what, tick))
        yield from (row._replace(at=one) for one in inside)


def _compare(name: str, expected: list[float], rows: list[LedgerRow]) -> Iterator[Violation]:
    """Find ticks without a row, rows without a tick, and ticks with more than one row."""
    counts = Counter(round(row.at, 3) for row in rows)
    wanted = {round(at, 3) for at in expected}
    for at in sorted(wanted - set(counts)):
        yield Violation("lost", "no row of the ledger for a tick", {"schedule": name, "tick": at}, is_positive=False)
    for row in rows:
        if round(row.at, 3) not in wanted:
            yield Violation("unexpected", "a row of the ledger for no tick of the rule", row._asdict())
    for at, count in sorted(counts.items()):
        if count > 1:
            yield Violation("doubled", f"{count} rows of the ledger for one tick", {"schedule": name, "tick": at})


class _Judge:
    """Judges one row at a time, and counts what it judged strictly."""

    def __init__(self, evidence: Evidence, rows: list[LedgerRow]) -> None:
        self._clock = DatabaseClock(evidence.faults)
        self._deadlines = Deadlines(evidence, "fire")
        self._late_after = float(evidence.run["settings"]["late_after_seconds"])
        self._pauses = _pauses(evidence)
        self._ends = _ends(evidence, rows)
        self.undisturbed = 0
        self.worst = 0.0

    def judge(self, row: LedgerRow, rule: Record) -> Iterator[Violation]:
        yield from self._fired(row, rule) if row.outcome == "fired" else self._skipped(row, rule)

    def _fired(self, row: LedgerRow, rule: Record) -> Iterator[Violation]:
        shown = {**row._asdict(), "late_by_seconds": None if row.fired_at is None else row.fired_at - row.at}
        if row.fired_at is None or row.task is None:
            yield Violation("unexpected", "a tick fired without a time or a task", shown)
            return
        if row.fired_at < row.at - _PRECISION_SECONDS:
            yield Violation("unexpected", "a tick fired before its time", shown)
        latest = self._deadlines.latest(row.at, rate_limited=rule["catch_up"] == "all")
        if row.fired_at > latest:
            what = "a tick fired later than its disturbances explain"
            yield Violation("late", what, {**shown, "latest": latest, "over_by_seconds": row.fired_at - latest})
        if self._deadlines.is_undisturbed(row.at, rate_limited=rule["catch_up"] == "all"):
            self.undisturbed += 1
            self.worst = max(self.worst, row.fired_at - row.at)
        moments = self._clock.machine_times(row.fired_at)
        for pause in self._pauses.get(row.schedule, []):
            if all(pause["acknowledged_at"] < moment < pause["resume_sent_at"] for moment in moments):
                yield Violation("unexpected", "a tick fired while its schedule was paused", {**shown, "pause": pause})

    def _skipped(self, row: LedgerRow, rule: Record) -> Iterator[Violation]:
        if not self._is_explained(row, rule):
            yield Violation("lost", f"a tick was skipped as {row.reason}, and nothing explains that", row._asdict())

    def _is_explained(self, row: LedgerRow, rule: Record) -> bool:
        if row.reason == "misfire":
            is_late = self._deadlines.latest(row.at) > row.at + self._late_after
            return rule["catch_up"] != "all" and (is_late or self._was_resumed_in_the_past(row))
        if row.reason == "overlap":
            # Around a step of the clock of the database, a task may seem to have finished before or after it really did.
            around = (row.at - _AROUND_STEPS_SECONDS, row.at + _AROUND_STEPS_SECONDS)
            is_certain = len(self._clock.machine_times(row.at)) == 1 and not self._clock.was_stepped(*around)
            ends = self._ends.get(row.schedule, [])
            overlaps = any(start <= row.at + 0.001 and end >= row.at for start, end in ends)
            return rule["overlap"] == "skip" and (overlaps or not is_certain)
        if row.reason == "paused":
            latest = self._deadlines.latest(row.at, rate_limited=True)
            return any(
                self._clock.span(pause["sent_at"], pause["sent_at"])[0] <= latest
                and row.at <= self._clock.span(pause["resumed_at"], pause["resumed_at"])[1]
                for pause in self._pauses.get(row.schedule, [])
            )
        return False

    def _was_resumed_in_the_past(self, row: LedgerRow) -> bool:
        """Whether the clock of the database was stepped during a pause: its end may then seem to be before its ticks."""
        return any(
            pause["sent_at"] <= row.at <= pause["resumed_at"] and self._clock.was_stepped(pause["sent_at"], pause["resumed_at"])
            for pause in self._pauses.get(row.schedule, [])
        )


def _pauses(evidence: Evidence) -> dict[str, list[Record]]:
    """Return when each schedule was paused, by the time of this machine."""
    found: dict[str, list[Record]] = defaultdict(list)
    for line in evidence.load:
        if line["event"] == "paused":
            endless = {name: line[name] or float("inf") for name in ("resume_sent_at", "resumed_at")}
            found[line["schedule"]].append({**line, **endless})
    return found


def _ends(evidence: Evidence, rows: list[LedgerRow]) -> dict[str, list[tuple[float, float]]]:
    """Return the ticks of each schedule that fired, with the time at which their tasks had finished."""
    finished: dict[str, Any] = {task["id"]: instant(task["finished_at"]) for task in evidence.tasks}
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row.task is not None:
            found[row.schedule].append((row.at, finished.get(row.task) or float("inf")))
    return found
