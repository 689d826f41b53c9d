"""Judges tasks: what was acknowledged exists once and ends as it must, and nothing runs that nobody asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.chaos.checker.attempts import Holding
from tests.chaos.checker.deadlines import DatabaseClock, Deadlines
from tests.chaos.checker.evidence import Evidence, Record, Violation, instant
from tests.chaos.checker.ticks import LedgerRow

_UNFINISHED = frozenset({"held", "scheduled", "ready", "running"})


class TaskVerdict(NamedTuple):
    violations: list[Violation]
    acknowledged: int
    ended: int
    judged_starts: int


def judge_tasks(evidence: Evidence, rows: list[LedgerRow], holdings: dict[str, list[Holding]]) -> TaskVerdict:
    tasks = {task["id"]: task for task in evidence.tasks}
    submits = {line["ticket"]: line for line in evidence.load if line["event"] == "submitted"}
    violations = [
        *_submitted(submits, tasks),
        *_of_ticks(rows, tasks),
        *_unasked(evidence, submits, tasks, holdings),
        *_ends(evidence, submits, tasks, holdings),
        *_cancelled(evidence, tasks, holdings),
    ]
    late, judged = _starts(evidence, submits, tasks, holdings)
    acknowledged = sum(line["task"] is not None for line in submits.values())
    ended = sum(task["state"] not in _UNFINISHED for task in tasks.values())
    return TaskVerdict([*violations, *late], acknowledged, ended, judged)


def _submitted(submits: dict[str, Record], tasks: dict[str, Record]) -> Iterator[Violation]:
    """Each acknowledged submit has its task, and each ticket has at most one."""
    by_ticket: dict[str, list[str]] = defaultdict(list)
    for task in tasks.values():
        if task["origin"] == "submit":
            by_ticket[(task["payload"] or {}).get("ticket", "")].append(task["id"])
    for ticket, line in submits.items():
        if line["task"] is not None and line["task"] not in tasks:
            yield Violation("lost", "an acknowledged submit has no task", line, is_positive=False)
        if len(ids := by_ticket.get(ticket, [])) > 1:
            yield Violation("doubled", f"one submit made {len(ids)} tasks", {"submit": line, "tasks": ids})


def _of_ticks(rows: list[LedgerRow], tasks: dict[str, Record]) -> Iterator[Violation]:
    """Each tick that fired has its task, and each tick at most one."""
    fired = {row.task: row for row in rows if row.task is not None}
    by_tick: dict[tuple[str, float], list[str]] = defaultdict(list)
    for task in tasks.values():
        if task["origin"] == "tick":
            at = instant(task["scheduled_for"])
            assert at is not None
            by_tick[task["schedule"], at].append(task["id"])
            if task["id"] not in fired:
                yield Violation("unexpected", "a task of a tick that the ledger does not have as fired", _brief(task))
    for id_, row in fired.items():
        if id_ not in tasks:
            yield Violation("lost", "a tick fired, and its task does not exist", row._asdict(), is_positive=False)
        elif instant(tasks[id_]["scheduled_for"]) != row.at or tasks[id_]["schedule"] != row.schedule:
            yield Violation(
                "unexpected", "the task of a tick names another tick", {**row._asdict(), "found": _brief(tasks[id_])}
            )
    for (schedule, at), ids in by_tick.items():
        if len(ids) > 1:
            yield Violation("doubled", f"{len(ids)} tasks for one tick", {"schedule": schedule, "tick": at, "tasks": ids})


def _unasked(
    evidence: Evidence, submits: dict[str, Record], tasks: dict[str, Record], holdings: dict[str, list[Holding]]
) -> Iterator[Violation]:
    """Find tasks and runs that nobody asked for, and ticks that workers ran as two tasks."""
    for task in tasks.values():
        if task["origin"] == "submit" and (task["payload"] or {}).get("ticket") not in submits:
            yield Violation("unexpected", "a task that nobody submitted", _brief(task))
    run_as: dict[tuple[str, float], set[str]] = defaultdict(set)
    for id_, found in holdings.items():
        line = found[0].lines[0]
        if id_ not in tasks:
            yield Violation("unexpected", "a worker ran a task that the API does not know", {"line": line}, is_positive=False)
        if line.get("schedule") is not None and line.get("tick") is not None:
            run_as[line["schedule"], line["tick"]].add(id_)
    for (schedule, at), ids in run_as.items():
        if len(ids) > 1:
            shown = {"schedule": schedule, "tick": at, "tasks": sorted(ids)}
            yield Violation("doubled", "workers ran one tick as two tasks", shown)


def _ends(
    evidence: Evidence, submits: dict[str, Record], tasks: dict[str, Record], holdings: dict[str, list[Holding]]
) -> Iterator[Violation]:
    """After the faults, every task has ended as it must, and a completed one has really run."""
    cancels = {line["task"] for line in evidence.load if line["event"] == "cancelled"}
    for task in tasks.values():
        line = submits.get((task["payload"] or {}).get("ticket", ""), {})
        wanted = {line.get("ends_as", "completed")} | ({"cancelled"} if task["id"] in cancels else set())
        if task["state"] in _UNFINISHED:
            yield Violation("lost", f"a task is {task['state']} after everything had time to end", _brief(task))
        elif task["state"] not in wanted:
            what = f"a task ended as {task['state']}, and it had to end as {' or '.join(sorted(wanted))}"
            yield Violation("unexpected", what, {**_brief(task), "error": task["error"]})
        elif task["state"] == "completed" and not any(one.runs for one in holdings.get(task["id"], [])):
            yield Violation("lost", "a completed task that no log has run", _brief(task), is_positive=False)


def _cancelled(evidence: Evidence, tasks: dict[str, Record], holdings: dict[str, list[Holding]]) -> Iterator[Violation]:
    """A task whose cancellation was acknowledged before it started never starts."""
    for line in evidence.load:
        if line["event"] != "cancelled" or line["state"] != "cancelled":
            continue
        after = [one for one in holdings.get(line["task"], []) if one.first_at > line["acknowledged_at"]]
        if after:
            yield Violation("unexpected", "a cancelled task was run", {"cancel": line, "lines": after[0].lines})
        if tasks.get(line["task"], line)["state"] != "cancelled":
            yield Violation(
                "unexpected", "a cancelled task ended in another way", {"cancel": line, "task": tasks[line["task"]]}
            )


def _starts(
    evidence: Evidence, submits: dict[str, Record], tasks: dict[str, Record], holdings: dict[str, list[Holding]]
) -> tuple[list[Violation], int]:
    """Judge how late tasks started for the first time, and that none started before its time."""
    clock = DatabaseClock(evidence.faults)
    deadlines = {"worker": Deadlines(evidence, "start"), "http": Deadlines(evidence, "deliver")}
    violations, judged = [], 0
    for task in tasks.values():
        found, created, run_at = holdings.get(task["id"]), instant(task["created_at"]), _run_at(task, submits)
        if not found or created is None or run_at is None:
            continue
        earliest, _ = clock.span(found[0].first_at, found[0].first_at)
        due = max(created, run_at)
        shown = {**_brief(task), "due": due, "first_line": found[0].lines[0]}
        if clock.latest_shown(found[0].first_at) < run_at - 0.001:
            violations.append(Violation("unexpected", "a task started before its time", shown))
        if task["queue"] in evidence.run["settings"]["slow_queues"]:
            continue
        judged += 1
        limit = deadlines[task["target"]["kind"]].latest(due, rate_limited=True)
        if earliest > limit:
            what = "a task started later than its disturbances explain"
            violations.append(Violation("late", what, {**shown, "latest": limit, "over_by_seconds": earliest - limit}))
    return violations, judged


def _run_at(task: Record, submits: dict[str, Record]) -> float | None:
    """Return the time for which the task was made. The task itself shows that of its last attempt."""
    if task["origin"] == "tick":
        return instant(task["scheduled_for"])
    run_at: float | None = submits.get((task["payload"] or {}).get("ticket", ""), {}).get("run_at")
    return run_at


def _brief(task: Record) -> Record:
    names = ("id", "queue", "origin", "schedule", "scheduled_for", "state", "attempt", "created_at", "run_at", "finished_at")
    return {name: task[name] for name in names}
