"""Why a schedule ran, did not run or will run at an instant: a verdict from a closed list, a sentence and the facts for it.

services/explainer.py collects the data, and `explain` evaluates it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple
from zoneinfo import ZoneInfo

from everbeat.core.definitions import rfc3339
from everbeat.core.describe import describe
from everbeat.core.jitter import jitter_of
from everbeat.core.pauses import Pause, PauseScope
from everbeat.core.rules import Rule
from everbeat.core.schedules import CatchUp, Schedule, Status
from everbeat.core.tasks import LIVE_STATES, TaskRecord, TaskState
from everbeat.core.ticks import Occurrence, Outcome, SkipReason, Tick
from everbeat.core.workers import Absence
from everbeat.core.zones import transitions

_MAX_BLOCKERS = 10
_CLOCK_CHANGE_WINDOW = timedelta(hours=3)


class Verdict(StrEnum):
    """What happened, or will happen, at a tick. A closed list: adding a verdict changes the API contract."""

    FIRED = "fired"
    SKIPPED = "skipped"
    MISSING = "missing"
    DUE = "due"
    UPCOMING = "upcoming"
    WILL_SKIP = "will_skip"
    NOT_SCHEDULED = "not_scheduled"
    NOT_REGISTERED = "not_registered"
    FINISHED = "finished"
    FAULTY = "faulty"
    FORGOTTEN = "forgotten"


Value = str | int | float | bool | None


class Fact(NamedTuple):
    """A named value that supports the verdict. Times are in RFC 3339."""

    fact: str
    value: Value


class Explanation(NamedTuple):
    verdict: Verdict
    explanation: str
    facts: list[Fact]


class NearbyTicks(NamedTuple):
    """The ticks before and after an instant without a tick. `repeated`: a tick at the other instant of the same local time."""

    before: Occurrence | None
    after: Occurrence | None
    repeated: datetime | None = None


class ExplainContext(NamedTuple):
    """The data for an explanation.

    `rule` is the rule in force at the instant; None if it cannot be computed. `tick` is the tick of the rule at the instant,
    and `row` its ledger row. The ledger should be complete up to `accounted_until`, and has no rows before `kept_since`.
    `pause`: the pause of its queue, of its tenant or of everything at that time.
    """

    schedule: Schedule
    at: datetime
    now: datetime
    zone: ZoneInfo
    accounted_until: datetime
    kept_since: datetime
    rule: Rule | None
    is_past_rule: bool = False
    row: Tick | None = None
    task: TaskRecord | None = None
    attempts: int = 0
    blockers: Sequence[TaskRecord] = ()
    pause: Pause | None = None
    tick: Occurrence | None = None
    absence: Absence | None = None
    around: NearbyTicks = NearbyTicks(None, None)


def explain(case: ExplainContext) -> Explanation:
    if case.row is not None:
        return _recorded(case, case.row)
    if case.at < case.schedule.created_at:
        return _explanation(
            case, Verdict.NOT_REGISTERED, f"The schedule was created later, at {_local(case, case.schedule.created_at)}."
        )
    if case.schedule.fault is not None and (case.rule is None or case.at > case.accounted_until):
        reason = f"The schedule is paused because it cannot be computed or fired: {case.schedule.fault}"
        return _explanation(case, Verdict.FAULTY, reason, Fact("fault", case.schedule.fault))
    if case.tick is None and case.at == case.schedule.moved_tick_at and case.at > case.schedule.cursor_at:
        reason_text, fact = _reason_text(case, SkipReason.ZONE_CHANGED), Fact("reason", SkipReason.ZONE_CHANGED.value)
        return _explanation(case, Verdict.WILL_SKIP, f"It will not run: {reason_text}.", fact, *_nearby_tick_facts(case))
    if case.tick is None:
        return _not_scheduled(case)
    if case.at < case.kept_since:
        text = "There was a tick, but its ledger row was removed after the retention period."
        return _explanation(case, Verdict.FORGOTTEN, text, Fact("kept_since", rfc3339(case.kept_since)))
    return _computed(case, case.tick)


# Explanations from the ledger


def _recorded(case: ExplainContext, row: Tick) -> Explanation:
    if row.outcome is Outcome.FIRED:
        return _fired(case, row)
    assert row.reason is not None
    facts = [Fact("reason", row.reason.value)]
    if row.until is not None and row.count > 1:
        facts += [Fact("range_from", rfc3339(row.scheduled_for)), Fact("range_until", rfc3339(row.until))]
        facts.append(Fact("range_count", row.count))
    return _explanation(
        case, Verdict.SKIPPED, f"It did not run: {_reason_text(case, row.reason)}.", *facts, *_reason_facts(case, row.reason)
    )


def _fired(case: ExplainContext, row: Tick) -> Explanation:
    facts = [Fact("fired_at", rfc3339(row.fired_at)), Fact("lag_ms", _milliseconds(row.fired_at - row.scheduled_for))]
    facts.append(Fact("task_id", str(row.task_id)))
    if case.task is None:
        text = "It ran: a task was created. The task was removed after the retention period."
        return _explanation(case, Verdict.FIRED, text, *facts)
    task = case.task
    facts += [Fact("task_state", task.state.value), Fact("attempts", case.attempts)]
    facts += [Fact("task_reason", task.reason)] if task.reason else []
    facts += [Fact("finished_at", rfc3339(task.finished_at))] if task.finished_at is not None else []
    facts += [Fact("worker", task.worker)] if task.worker else []
    state = f"{_task_state_text(task, case.attempts)}{_absence_text(task, case.absence)}"
    text = _sentence(f"It ran: a task was created, and {state}")
    return _explanation(case, Verdict.FIRED, text, *facts, *(_absence_facts(case.absence) if _is_unstarted(task) else ()))


def explain_task(task: TaskRecord, attempts: int, absence: Absence | None) -> tuple[str, list[Fact]]:
    """Return what a task waits for, or how it ended, as a sentence and facts."""
    text = _task_state_text(task, attempts)
    facts = [Fact("attempts", attempts), Fact("queue", task.queue), Fact("type", task.type)]
    facts += [Fact("run_at", rfc3339(task.run_at))] if task.state is TaskState.SCHEDULED else []
    facts += [Fact("worker", task.worker)] if task.worker else []
    facts += _absence_facts(absence) if _is_unstarted(task) else []
    return _sentence(f"{text[:1].upper()}{text[1:]}{_absence_text(task, absence)}"), facts


def _sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


def _is_unstarted(task: TaskRecord) -> bool:
    return task.state in (TaskState.READY, TaskState.SCHEDULED, TaskState.HELD)


def _absence_text(task: TaskRecord, absence: Absence | None) -> str:
    return f"; {absence.text}" if absence is not None and _is_unstarted(task) else ""


def _absence_facts(absence: Absence | None) -> list[Fact]:
    """Return the facts for tasks that no live worker asks for."""
    if absence is None:
        return []
    seen = None if absence.last_seen_at is None else rfc3339(absence.last_seen_at)
    return [Fact("no_worker", absence.text), Fact("last_worker", absence.last_worker), Fact("last_worker_seen_at", seen)]


def _task_state_text(task: TaskRecord, attempts: int) -> str:
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


# Explanations from the rule


def _computed(case: ExplainContext, tick: Occurrence) -> Explanation:
    schedule, reason = case.schedule, tick.skip
    if schedule.status is Status.FINISHED and tick.at > schedule.cursor_at:
        return _explanation(case, Verdict.FINISHED, "The schedule is finished and no longer runs.")
    if tick.at <= case.accounted_until or case.is_past_rule:
        text = "It should have run, but the ledger has neither a task nor a skip. A backfill can run it."
        return _explanation(case, Verdict.MISSING, text, *([] if reason is None else [Fact("reason", reason.value)]))
    if schedule.status is Status.PAUSED or case.pause is not None:
        reason = reason or SkipReason.PAUSED
    if reason is not None:
        is_past = tick.at <= case.now
        text = f"It {'did' if is_past else 'will'} not run: {_reason_text(case, reason)}."
        verdict = Verdict.SKIPPED if is_past and schedule.status is Status.PAUSED else Verdict.WILL_SKIP
        return _explanation(case, verdict, text, Fact("reason", reason.value), *_reason_facts(case, reason))
    facts = [] if schedule.due_at is None else [Fact("due_at", rfc3339(_due_at(schedule, tick.at)))]
    facts += _absence_facts(case.absence)
    if tick.at > case.now:
        text = f"It will run at {_local(case, tick.at)}{_jitter_text(schedule)}."
        if case.absence is not None:
            text = _sentence(f"It will run at {_local(case, tick.at)}{_jitter_text(schedule)}, but {case.absence.text}")
        return _explanation(case, Verdict.UPCOMING, text, *facts)
    return _explanation(case, Verdict.DUE, f"It is due and will be fired shortly{_jitter_text(schedule)}.", *facts)


def _due_at(schedule: Schedule, tick: datetime) -> datetime:
    if tick == schedule.next_tick_at and schedule.due_at is not None:
        return schedule.due_at
    return tick + jitter_of(schedule.id, schedule.spec.jitter_seconds)


def _jitter_text(schedule: Schedule) -> str:
    seconds = jitter_of(schedule.id, schedule.spec.jitter_seconds).total_seconds()
    return f", delayed by {seconds:g} seconds of jitter" if seconds else ""


def _not_scheduled(case: ExplainContext) -> Explanation:
    schedule, rule = case.schedule, case.rule
    if rule is None:
        text = "It is unknown whether there was a tick: the rule that was in force at that time cannot be computed."
        return _explanation(case, Verdict.FORGOTTEN, text)
    if schedule.status is Status.FINISHED and case.at > schedule.cursor_at:
        return _explanation(case, Verdict.FINISHED, "The schedule is finished and no longer runs.", *_nearby_tick_facts(case))
    text = "The schedule has no tick at that time."
    if rule.starts_at is not None and case.at < rule.starts_at:
        text = f"The schedule starts later, at {_local(case, rule.starts_at)}."
    elif rule.ends_at is not None and case.at > rule.ends_at:
        text = f"The schedule ended at {_local(case, rule.ends_at)}."
    elif case.around.repeated is not None:
        text = (
            f"The local time {case.at.astimezone(case.zone):%H:%M} occurs twice on that day in {case.zone.key}; the schedule "
            f"runs at the {'second' if case.around.repeated > case.at else 'first'} one, {_local(case, case.around.repeated)}."
        )
    if case.absence is None or case.at < case.now or schedule.status is not Status.ACTIVE:
        return _explanation(case, Verdict.NOT_SCHEDULED, text, *_nearby_tick_facts(case))
    # Asked without a time: the next ticks will create tasks that no worker takes.
    text = f"{text} {_sentence(case.absence.text[:1].upper() + case.absence.text[1:])}"
    return _explanation(case, Verdict.NOT_SCHEDULED, text, *_nearby_tick_facts(case), *_absence_facts(case.absence))


def _nearby_tick_facts(case: ExplainContext) -> Iterator[Fact]:
    for name, tick in (("previous_tick", case.around.before), ("next_tick", case.around.after)):
        if tick is not None:
            yield Fact(name, rfc3339(tick.at))
            yield Fact(f"{name}_local", tick.at.astimezone(case.zone).isoformat())


# Reasons


def _reason_text(case: ExplainContext, reason: SkipReason) -> str:
    spec = case.schedule.spec
    match reason:
        case SkipReason.OVERLAP:
            return f"its overlap policy is skip, and its unfinished tasks had reached max_concurrent ({spec.concurrency})"
        case SkipReason.MISFIRE:
            policy = "runs only the latest missed tick" if spec.catch_up is CatchUp.LATEST else "does not run missed ticks"
            return f"it could not be fired in time, and the schedule {policy} (catch_up {spec.catch_up.value})"
        case SkipReason.PAUSED:
            return _paused_text(case)
        case SkipReason.CALENDAR:
            return "its calendars exclude this day or hour"
        case SkipReason.DST_GAP:
            return f"its local time does not exist on that day in {case.zone.key} (DST gap)"
        case SkipReason.ZONE_CHANGED:
            return f"the tz database changed its rules for {case.zone.key}, and the tick moved to another time"
        case SkipReason.QUOTA:
            return "the tenant had reached its quota of ready tasks"
        case SkipReason.ENDED:
            return "the schedule had ended"


def _reason_facts(case: ExplainContext, reason: SkipReason) -> Iterator[Fact]:
    spec = case.schedule.spec
    if reason is SkipReason.OVERLAP:
        yield Fact("overlap", spec.overlap.value)
        yield Fact("max_concurrent", spec.concurrency)
        for task in case.blockers[:_MAX_BLOCKERS]:
            state = "is unfinished" if task.state in LIVE_STATES else f"finished at {rfc3339(task.finished_at or case.now)}"
            yield Fact("unfinished_task", f"{task.id} {state}")
    elif reason is SkipReason.MISFIRE:
        yield Fact("catch_up", spec.catch_up.value)
        yield Fact("misfire_grace_seconds", spec.misfire_grace_seconds)
    elif reason is SkipReason.CALENDAR and case.rule is not None:
        yield Fact("calendars_excluded", ", ".join(case.rule.exclude) or None)
        yield Fact("calendars_only", ", ".join(case.rule.only) or None)
    elif reason is SkipReason.PAUSED and case.pause is not None:
        yield from _pause_facts(case.pause)
    elif reason is SkipReason.PAUSED and case.schedule.note is not None:
        yield Fact("note", case.schedule.note)


def _paused_text(case: ExplainContext) -> str:
    if case.pause is None:
        return "the schedule is paused" if case.schedule.status is Status.PAUSED else "the schedule was paused"
    what = {
        PauseScope.QUEUE: f'the queue "{case.pause.queue}"',
        PauseScope.TENANT: "everything of the tenant",
        PauseScope.ALL: "everything on this server",
    }[case.pause.scope]
    return f"{what} {'is' if case.pause.is_active_at(case.now) else 'was'} paused by {case.pause.paused_by}"


def _pause_facts(pause: Pause) -> Iterator[Fact]:
    yield Fact("paused", pause.scope.value)
    yield Fact("paused_by", pause.paused_by)
    yield Fact("paused_since", rfc3339(pause.since_at))
    end = pause.ended_at or pause.until_at
    yield from [Fact("paused_until", rfc3339(end))] if end is not None else []
    yield from [Fact("note", pause.note)] if pause.note is not None else []


# Facts of all verdicts


def _explanation(case: ExplainContext, verdict: Verdict, explanation: str, *facts: Fact) -> Explanation:
    return Explanation(verdict, explanation, [*_base_facts(case), *facts, *_clock_change_facts(case)])


def _base_facts(case: ExplainContext) -> Iterator[Fact]:
    yield Fact("at", rfc3339(case.at))
    yield Fact("local", case.at.astimezone(case.zone).isoformat())
    yield Fact("status", case.schedule.status.value)
    if case.rule is not None:
        yield Fact("trigger", describe(case.rule, case.schedule.id))
    if case.is_past_rule:
        yield Fact("is_past_rule", True)


def _clock_change_facts(case: ExplainContext) -> Iterator[Fact]:
    for change in transitions(case.zone, case.at - _CLOCK_CHANGE_WINDOW, case.at + _CLOCK_CHANGE_WINDOW):
        before, after = (change.at + offset for offset in (change.before, change.after))
        yield Fact("clock_change", f"{before:%Y-%m-%d}: from {before:%H:%M} to {after:%H:%M} in {case.zone.key}")


def _local(case: ExplainContext, at: datetime) -> str:
    return at.astimezone(case.zone).isoformat(sep=" ", timespec="seconds")


def _milliseconds(span: timedelta) -> float:
    return round(span.total_seconds() * 1000, 3)
