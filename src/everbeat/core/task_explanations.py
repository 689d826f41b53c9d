"""Why a task waits, runs or has ended: a sentence and the facts for it. services/explainer.py collects the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from everbeat.core.definitions import rfc3339
from everbeat.core.pauses import Pause, PauseScope
from everbeat.core.tasks import LIVE_STATES, Origin, TaskRecord, TaskState
from everbeat.core.workers import Absence

_MAX_HOLDERS = 5

Value = str | int | float | bool | None


class Fact(NamedTuple):
    """A named value that supports an explanation. Times are in RFC 3339. `link`: the path of the API that has more."""

    fact: str
    value: Value
    link: str | None = None


class QueuePosition(NamedTuple):
    """How many ready tasks of the tenant are before a task in its queue. `is_minimum`: not all were counted."""

    ahead: int
    is_minimum: bool

    def __str__(self) -> str:
        return f"{'more than ' if self.is_minimum else ''}{self.ahead + (not self.is_minimum)}"


class RunningLimit(NamedTuple):
    """The number of running tasks of the tenant, and its quota."""

    running: int
    max_running: int


class TaskContext(NamedTuple):
    """The data for the explanation of a task. `holders`: unfinished tasks of the schedule of a held task."""

    task: TaskRecord
    attempts: int
    now: datetime
    absence: Absence | None = None
    pause: Pause | None = None
    position: QueuePosition | None = None
    limit: RunningLimit | None = None
    holders: Sequence[TaskRecord] = ()


def explain_task(case: TaskContext) -> tuple[str, list[Fact]]:
    """Return what a task waits for, or how it ended, as a sentence and facts."""
    task = case.task
    text = _ready_text(case) if task.state is TaskState.READY else task_state_text(task, case.attempts)
    if case.holders and task.state is TaskState.HELD:
        text = f"it is held until {_named(case.holders)} of the schedule {'is' if len(case.holders) == 1 else 'are'} finished"
    pause = case.pause if is_unstarted(task) and task.origin is not Origin.TRIGGER else None
    if pause is not None:
        text = f"{text}; {pause_text(pause, case.now)}"
    elif case.limit is not None and case.limit.running >= case.limit.max_running and task.state is TaskState.READY:
        text = f"{text}; the tenant runs {case.limit.running} tasks, its quota max_running"
    return sentence(f"{text[:1].upper()}{text[1:]}{absence_text(task, case.absence)}"), [*_facts(case, pause)]


def _facts(case: TaskContext, pause: Pause | None) -> Iterator[Fact]:
    task = case.task
    yield Fact("attempts", case.attempts, f"{task_link(task.id)}/attempts")
    yield Fact("queue", task.queue, "/v1/queues")
    yield Fact("type", task.type)
    if task.schedule_id is not None:
        yield Fact("schedule", task.schedule, f"/v1/schedules/{task.schedule_id}")
    if task.state is TaskState.SCHEDULED:
        yield Fact("run_at", rfc3339(task.run_at))
    if task.state is TaskState.READY:
        yield Fact("ready_since", rfc3339(task.run_at))
    if case.position is not None:
        yield Fact("ahead_in_queue", case.position.ahead)
    if case.limit is not None:
        yield Fact("running_tasks", case.limit.running)
        yield Fact("max_running", case.limit.max_running)
    for holder in case.holders[:_MAX_HOLDERS]:
        yield Fact("held_by", f"{holder.id} is {holder.state.value}", task_link(holder.id))
    if task.worker:
        yield Fact("worker", task.worker, "/v1/workers")
    if task.state is TaskState.DEAD:
        yield Fact("dead_letter", str(task.id), f"/v1/dead-letters/{task.id}")
    yield from pause_facts(pause) if pause is not None else ()
    yield from absence_facts(case.absence) if is_unstarted(task) else ()


def _ready_text(case: TaskContext) -> str:
    waited = duration_text(max(timedelta(0), case.now - case.task.run_at))
    position = "" if case.position is None else f" at position {case.position}"
    unclaimed = "" if case.absence is not None else ", and no worker has claimed it yet"
    return f'it has been ready for {waited}{position} in the queue "{case.task.queue}"{unclaimed}'


def _named(holders: Sequence[TaskRecord]) -> str:
    more = f" and {len(holders) - 1} more tasks" if len(holders) > 1 else ""
    return f"the task {holders[0].id} ({holders[0].state.value}){more}"


def duration_text(span: timedelta) -> str:
    """Return a duration in its largest unit, such as 4 minutes."""
    seconds = span.total_seconds()
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}" + ("" if count == 1 else "s")
    return f"{int(seconds)} second" + ("" if int(seconds) == 1 else "s")


def task_link(task_id: UUID | None) -> str:
    return f"/v1/tasks/{task_id}"


def sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


def is_unstarted(task: TaskRecord) -> bool:
    return task.state in (TaskState.READY, TaskState.SCHEDULED, TaskState.HELD)


def is_unfinished(task: TaskRecord) -> bool:
    return task.state in LIVE_STATES


def absence_text(task: TaskRecord, absence: Absence | None) -> str:
    return f"; {absence.text}" if absence is not None and is_unstarted(task) else ""


def absence_facts(absence: Absence | None) -> list[Fact]:
    """Return the facts for tasks that no live worker asks for."""
    if absence is None:
        return []
    seen = None if absence.last_seen_at is None else rfc3339(absence.last_seen_at)
    return [
        Fact("no_worker", absence.text, "/v1/queues"),
        Fact("last_worker", absence.last_worker, "/v1/workers"),
        Fact("last_worker_seen_at", seen),
    ]


def pause_text(pause: Pause, now: datetime) -> str:
    what = {
        PauseScope.QUEUE: f'the queue "{pause.queue}"',
        PauseScope.TENANT: "everything of the tenant",
        PauseScope.ALL: "everything on this server",
    }[pause.scope]
    return f"{what} {'is' if pause.is_active_at(now) else 'was'} paused by {pause.paused_by}"


def pause_facts(pause: Pause) -> Iterator[Fact]:
    yield Fact("paused", pause.scope.value, "/v1/pauses")
    yield Fact("paused_by", pause.paused_by)
    yield Fact("paused_since", rfc3339(pause.since_at))
    end = pause.ended_at or pause.until_at
    yield from [Fact("paused_until", rfc3339(end))] if end is not None else []
    yield from [Fact("note", pause.note)] if pause.note is not None else []


def task_state_text(task: TaskRecord, attempts: int) -> str:
    tries = f"{attempts} attempt" + ("" if attempts == 1 else "s")
    match task.state:
        case TaskState.COMPLETED:
            return f"it completed after {tries}"
        case TaskState.DEAD:
            return f"it is a dead letter after {tries}: {task.reason or 'it failed permanently'}"
        case TaskState.FAILED:
            return f"it failed after {tries}: {task.reason or 'it is not retried'}"
        case TaskState.CANCELLED:
            return "it was cancelled"
        case TaskState.RUNNING:
            return f"it is running on {task.worker}, attempt {task.attempt} of {task.max_attempts}"
        case TaskState.HELD:
            return "it is held until earlier tasks of the schedule finish or the schedule is resumed"
        case TaskState.SCHEDULED:
            return f"it waits until {rfc3339(task.run_at)}" + (f" for its next attempt, after {tries}" if attempts else "")
        case _:
            return f'no worker has claimed it from the queue "{task.queue}" yet'
