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
from everbeat.core.pauses import Pause
from everbeat.core.rules import Rule
from everbeat.core.schedules import CatchUp, Schedule, Status
from everbeat.core.task_explanations import (
    Fact,
    absence_facts,
    absence_text,
    is_unstarted,
    pause_facts,
    pause_text,
    sentence,
    task_link,
    task_state_text,
)
from everbeat.core.tasks import LIVE_STATES, TaskRecord
from everbeat.core.ticks import Occurrence, Outcome, SkipReason, Tick
from everbeat.core.workers import Absence
from everbeat.core.zones import transitions

_MAX_BLOCKERS = 10
_LATE_SECONDS = 5.0
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


class Explanation(NamedTuple):
    verdict: Verdict
    explanation: str
    facts: list[Fact]


class NearbyTicks(NamedTuple):
    """The ticks before and after an instant without a tick. `repeated`: a tick at the other instant of the same local time."""

    before: Occurrence | None
    after: Occurrence | None
    repeated: datetime | None = None


class ScheduleEdit(NamedTuple):
    """A change of the rule, or a pause, of the schedule: when, and by whom as far as the audit log has it."""

    at: datetime
    by: str | None


class PartitionOwner(NamedTuple):
    """The node that owns the partition of the schedule now. `node` None: no node does, so its ticks wait."""

    partition: int
    node: str | None


class ExplainContext(NamedTuple):
    """The data for an explanation.

    `rule` is the rule in force at the instant; None if it cannot be computed. `tick` is the tick of the rule at the instant,
    and `row` its ledger row. The ledger should be complete up to `accounted_until`, and has no rows before `kept_since`.
    `pause`: the pause of its queue, of its tenant or of everything at that time; `paused`: that of the schedule itself.
    `node`: the one that wrote the row. `edit`: the change of the rule after a past rule, or shortly before the instant.
    `owner`: who owns the partition, for ticks that are due or missing.
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
    node: str | None = None
    edit: ScheduleEdit | None = None
    paused: ScheduleEdit | None = None
    owner: PartitionOwner | None = None


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
    facts += [Fact("fired_by", case.node, "/v1/cluster")] if case.node is not None else []
    facts.append(Fact("task_id", str(row.task_id), task_link(row.task_id)))
    if case.task is None:
        text = f"It ran: {_created_text(case, row)}. The task was removed after the retention period."
        return _explanation(case, Verdict.FIRED, text, *facts)
    task = case.task
    facts += [Fact("task_state", task.state.value), Fact("attempts", case.attempts)]
    facts += [Fact("task_reason", task.reason)] if task.reason else []
    facts += [Fact("finished_at", rfc3339(task.finished_at))] if task.finished_at is not None else []
    facts += [Fact("worker", task.worker)] if task.worker else []
    state = f"{task_state_text(task, case.attempts)}{absence_text(task, case.absence)}"
    text = sentence(f"It ran: {_created_text(case, row)}, and {state}")
    return _explanation(case, Verdict.FIRED, text, *facts, *(absence_facts(case.absence) if is_unstarted(task) else ()))


def _created_text(case: ExplainContext, row: Tick) -> str:
    by = "" if case.node is None else f" by the node {case.node}"
    late = (row.fired_at - row.scheduled_for).total_seconds()
    return f"a task was created{by}" + (f", {late:.0f} seconds late" if late >= _LATE_SECONDS else "")


# Explanations from the rule


def _computed(case: ExplainContext, tick: Occurrence) -> Explanation:
    schedule, reason = case.schedule, tick.skip
    if schedule.status is Status.FINISHED and tick.at > schedule.cursor_at:
        return _explanation(case, Verdict.FINISHED, "The schedule is finished and no longer runs.")
    if tick.at <= case.accounted_until or case.is_past_rule:
        text = "It should have run, but the ledger has neither a task nor a skip. A backfill can run it."
        if case.owner is not None and case.owner.node is None:
            text = f"{text} No node owns the partition {case.owner.partition} of the schedule."
        facts = [] if reason is None else [Fact("reason", reason.value)]
        return _explanation(case, Verdict.MISSING, text, *facts, *_owner_facts(case))
    if schedule.status is Status.PAUSED or case.pause is not None:
        reason = reason or SkipReason.PAUSED
    if reason is not None:
        is_past = tick.at <= case.now
        text = f"It {'did' if is_past else 'will'} not run: {_reason_text(case, reason)}."
        verdict = Verdict.SKIPPED if is_past and schedule.status is Status.PAUSED else Verdict.WILL_SKIP
        return _explanation(case, verdict, text, Fact("reason", reason.value), *_reason_facts(case, reason))
    facts = [] if schedule.due_at is None else [Fact("due_at", rfc3339(_due_at(schedule, tick.at)))]
    facts += absence_facts(case.absence)
    if tick.at > case.now:
        text = f"It will run at {_local(case, tick.at)}{_jitter_text(schedule)}."
        if case.absence is not None:
            text = sentence(f"It will run at {_local(case, tick.at)}{_jitter_text(schedule)}, but {case.absence.text}")
        return _explanation(case, Verdict.UPCOMING, text, *facts)
    if case.owner is not None and case.owner.node is None:
        text = f"It is due, but no node owns the partition {case.owner.partition} of the schedule; is a scheduler running?"
        return _explanation(case, Verdict.DUE, text, *facts, *_owner_facts(case))
    text = f"It is due and will be fired shortly{_jitter_text(schedule)}."
    return _explanation(case, Verdict.DUE, text, *facts, *_owner_facts(case))


def _owner_facts(case: ExplainContext) -> list[Fact]:
    if case.owner is None:
        return []
    return [Fact("partition", case.owner.partition, "/v1/cluster"), Fact("partition_owner", case.owner.node, "/v1/cluster")]


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
    text = f"The schedule has no tick at that time{_between_text(case)}."
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
    text = f"{text} {sentence(case.absence.text[:1].upper() + case.absence.text[1:])}"
    return _explanation(case, Verdict.NOT_SCHEDULED, text, *_nearby_tick_facts(case), *absence_facts(case.absence))


def _between_text(case: ExplainContext) -> str:
    """Name the ticks before and after the time, and the edit that may have removed a tick."""
    before, after = case.around.before, case.around.after
    parts = [] if before is None else [f"the one before is {_local(case, before.at)}"]
    parts += [] if after is None else [f"the next one is {_local(case, after.at)}"]
    if case.edit is not None:
        parts.append(f"the rule was changed at {_local(case, case.edit.at)}" + (f" by {case.edit.by}" if case.edit.by else ""))
    return f"; {', '.join(parts)}" if parts else ""


def _nearby_tick_facts(case: ExplainContext) -> Iterator[Fact]:
    for name, tick in (("previous_tick", case.around.before), ("next_tick", case.around.after)):
        if tick is not None:
            yield Fact(name, rfc3339(tick.at), f"/v1/schedules/{case.schedule.id}/why?at={rfc3339(tick.at)}")
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
            yield Fact("unfinished_task", f"{task.id} {state}", task_link(task.id))
    elif reason is SkipReason.MISFIRE:
        yield Fact("catch_up", spec.catch_up.value)
        yield Fact("misfire_grace_seconds", spec.misfire_grace_seconds)
    elif reason is SkipReason.CALENDAR and case.rule is not None:
        yield Fact("calendars_excluded", ", ".join(case.rule.exclude) or None, "/v1/calendars")
        yield Fact("calendars_only", ", ".join(case.rule.only) or None, "/v1/calendars")
    elif reason is SkipReason.PAUSED and case.pause is not None:
        yield from pause_facts(case.pause)
    elif reason is SkipReason.PAUSED:
        yield from [Fact("paused_by", case.paused.by, "/v1/audit-log")] if case.paused is not None else []
        yield from [Fact("paused_since", rfc3339(case.paused.at))] if case.paused is not None else []
        yield from [Fact("note", case.schedule.note)] if case.schedule.note is not None else []


def _paused_text(case: ExplainContext) -> str:
    if case.pause is None:
        return "the schedule is paused" if case.schedule.status is Status.PAUSED else "the schedule was paused"
    return pause_text(case.pause, case.now)


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
    if case.edit is not None:
        yield Fact("rule_changed_at", rfc3339(case.edit.at))
        yield Fact("rule_changed_by", case.edit.by, "/v1/audit-log?action=schedule.update")


def _clock_change_facts(case: ExplainContext) -> Iterator[Fact]:
    for change in transitions(case.zone, case.at - _CLOCK_CHANGE_WINDOW, case.at + _CLOCK_CHANGE_WINDOW):
        before, after = (change.at + offset for offset in (change.before, change.after))
        yield Fact("clock_change", f"{before:%Y-%m-%d}: from {before:%H:%M} to {after:%H:%M} in {case.zone.key}")


def _local(case: ExplainContext, at: datetime) -> str:
    return at.astimezone(case.zone).isoformat(sep=" ", timespec="seconds")


def _milliseconds(span: timedelta) -> float:
    return round(span.total_seconds() * 1000, 3)
