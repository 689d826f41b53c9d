"""Judges the alert rules of a tenant: reads the facts that a kind of rule needs, and says which subjects violate it.

Rules about events (dead, missed, slow, skipped, success_rate) begin with the signals that the database wrote, and rules about
states (late, queue_age, no_worker, deadline) with a limited query. An incident ends when the same facts say so. The cost of a
pass depends on what has happened and on the open incidents, not on the number of schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from everbeat.core.alert_conditions import (
    RULE_SUBJECT,
    USUAL_RUNS,
    duration_text,
    has_completed_since,
    is_on_time_again,
    is_rate_low,
    is_rate_recovered,
    queue_subject,
    schedule_subject,
    skip_streak,
    slow_limit,
    success_rate,
    tasks_text,
    type_subject,
    usual_seconds,
)
from everbeat.core.alert_facts import AlertSignal, ReadyAge, ScheduleRun, SignalKind
from everbeat.core.alerts import (
    MIN_SLOW_SECONDS,
    AlertKind,
    AlertRule,
    WhenLate,
    WhenNoWorker,
    WhenQueueAge,
    WhenSkipped,
    WhenSlow,
    WhenSuccessRate,
    split_label,
)
from everbeat.core.incidents import Finding, Incident, Judgement, Subject
from everbeat.core.schedules import Schedule, Status
from everbeat.core.targets import is_reserved_queue
from everbeat.core.tasks import TaskState
from everbeat.core.ticks import SkipReason
from everbeat.core.workers import absence_of
from everbeat.services.alert_checks import judge_checks
from everbeat.services.alert_deadlines import RulePosition, judge_deadlines
from everbeat.services.alert_facts import MAX_LISTED, TenantFacts

_RECENT_RUNS = 5
_RECENT_TICKS = 5
_DEADLINE_RUNS = 200
_RATE_RUNS = 1000
_RATE_TASKS = 50_000
_SCHEDULE_PAGE = 500


class RuleTask(msgspec.Struct, frozen=True):
    """A rule with its unresolved incidents and its position."""

    rule: AlertRule
    incidents: Sequence[Incident]
    position: RulePosition


Judged = tuple[Judgement, RulePosition]


class AlertJudge:
    def __init__(self, facts: TenantFacts) -> None:
        self._facts = facts
        self._kinds: dict[AlertKind, Callable[[RuleTask], Coroutine[Any, Any, Judged]]] = {
            AlertKind.DEAD: self._dead,
            AlertKind.MISSED: self._missed,
            AlertKind.LATE: self._late,
            AlertKind.DEADLINE: self._deadline,
            AlertKind.SLOW: self._slow,
            AlertKind.SUCCESS_RATE: self._success_rate,
            AlertKind.QUEUE_AGE: self._queue_age,
            AlertKind.NO_WORKER: self._no_worker,
            AlertKind.SKIPPED: self._skipped,
        }

    async def judge(self, task: RuleTask) -> Judged:
        return await self._kinds[task.rule.kind](task)

    # Tasks

    async def _dead(self, task: RuleTask) -> Judged:
        signals = [one for one in self._facts.signals(SignalKind.FAILED) if one.reason == TaskState.DEAD]
        existing = await self._facts.schedules(one.schedule_id for one in signals)
        by_subject = _by_subject(task.rule, signals, existing)
        newest = {subject.key: ones[-1] for subject, ones in by_subject.items()}
        errors = await self._facts.dead_errors([one.task_id for one in newest.values() if one.task_id is not None])
        findings = []
        for subject, ones in by_subject.items():
            last = ones[-1]
            error = errors.get(last.task_id) if last.task_id is not None else None
            why = "" if error is None or not error.message else f": {error.message[:200]}"
            details = {"queue": last.queue, "type": last.type, "task_id": str(last.task_id)}
            details |= {} if error is None else {"error": error.message, "reason": error.reason}
            text = f"{subject.name}: a task became a dead letter{why}"
            findings.append(Finding(subject._replace(task_id=last.task_id), text, last.at, len(ones), details))
        down, up = await judge_checks(self._facts, task.rule, task.incidents)
        return Judgement(findings + down, await self._completed_subjects(task.incidents) | up), task.position

    async def _completed_subjects(self, incidents: Sequence[Incident]) -> set[str]:
        """Return the subjects of which a task was completed after it last happened."""
        runs = await self._facts.runs((one.schedule_id for one in incidents if one.schedule_id is not None), _RECENT_RUNS)
        recovered = {
            one.subject
            for one in incidents
            if one.schedule_id is not None and has_completed_since(runs[one.schedule_id], one.occurred_at)
        }
        others = [one for one in incidents if one.schedule_id is None]
        if others:
            for (queue, type_), at in (await self._facts.completions()).items():
                key = type_subject(queue, type_).key
                recovered |= {one.subject for one in others if one.subject == key and at > one.occurred_at}
        return recovered

    async def _slow(self, task: RuleTask) -> Judged:
        when, facts = task.rule.given.when, self._facts
        assert isinstance(when, WhenSlow)
        lowest = MIN_SLOW_SECONDS if when.times_usual is not None else when.seconds or MIN_SLOW_SECONDS
        running = [one for one in await facts.slow(lowest) if _matches(task.rule, one.schedule, one.queue, one.labels)]
        ended = [one for one in facts.signals(SignalKind.SLOW) if _matches_signal(task.rule, one)]
        of_incidents = [one.schedule_id for one in task.incidents]
        ids = {one for one in (*(r.schedule_id for r in running), *(e.schedule_id for e in ended), *of_incidents) if one}
        runs, existing = await facts.runs(ids, USUAL_RUNS + 1), await facts.schedules(ids)
        findings: list[Finding] = []
        for run in running:
            seconds = (facts.moment - run.started_at).total_seconds()
            subject = _task_subject(run.schedule_id, run.queue, run.type, run.id, existing)
            findings += _slow_finding(when, subject, seconds, run.started_at, runs.get(run.schedule_id or run.id, ()), True)
        for signal in ended:
            seconds = signal.seconds or 0.0
            subject = _task_subject(signal.schedule_id, signal.queue, signal.type, signal.task_id, existing)
            began_at = signal.at - timedelta(seconds=seconds)
            known = runs.get(signal.schedule_id, ()) if signal.schedule_id is not None else ()
            findings += _slow_finding(when, subject, seconds, began_at, known, False)
        slow_keys = {finding.subject.key for finding in findings}
        recovered = {
            one.subject
            for one in task.incidents
            if one.subject not in slow_keys
            and (one.schedule_id is None or _is_fast_again(when, one, runs.get(one.schedule_id, ())))
        }
        return Judgement(findings, recovered), task.position

    async def _success_rate(self, task: RuleTask) -> Judged:
        when, facts, position = task.rule.given.when, self._facts, task.position
        assert isinstance(when, WhenSuccessRate)
        failures = [one for one in facts.signals(SignalKind.FAILED) if _matches_signal(task.rule, one)]
        if failures:
            position = msgspec.structs.replace(position, failed_at=max(one.at for one in failures))
        window = timedelta(seconds=when.window_seconds)
        if not task.incidents and (position.failed_at is None or facts.moment - position.failed_at > window):
            return Judgement(), position
        rate = success_rate(await self._outcomes(task.rule, facts.moment - window))
        details = {"completed": rate.completed, "runs": rate.runs, "window_seconds": when.window_seconds}
        text = f"{rate.completed} of {rate.runs} tasks were completed in {duration_text(when.window_seconds)}"
        text = f"{_match_text(task.rule)}: {text}, which is less than {when.below * 100:g} %"
        if is_rate_low(when, rate):
            since = max((one.at for one in failures), default=position.failed_at or facts.moment)
            return Judgement([Finding(RULE_SUBJECT, text, since, len(failures) or 1, details)]), position
        return Judgement(recovered=[RULE_SUBJECT.key] if is_rate_recovered(when, rate) else ()), position

    async def _outcomes(self, rule: AlertRule, since: datetime) -> dict[TaskState, int]:
        match = rule.given.match
        if match.schedule is not None:
            schedule = await self._facts.schedule_named(match.schedule)
            runs = [] if schedule is None else (await self._facts.runs([schedule.id], _RATE_RUNS))[schedule.id]
            outcomes: dict[TaskState, int] = {}
            for run in runs:
                if run.finished_at >= since:
                    outcomes[run.state] = outcomes.get(run.state, 0) + 1
            return outcomes
        return await self._facts.store.task_outcomes(
            self._facts.tenant_id,
            since_id=_first_id(since),
            queue=match.queue,
            label=(None, None) if match.label is None else split_label(match.label),
            limit=_RATE_TASKS,
        )

    # Ticks

    async def _missed(self, task: RuleTask) -> Judged:
        signals = [
            one
            for one in self._facts.signals(SignalKind.MISSED, SignalKind.SKIPPED)
            if one.kind is SignalKind.MISSED or one.skip_reason is SkipReason.MISFIRE
        ]
        findings = []
        for schedule, ones in await self._by_schedule(task.rule, signals):
            last = max(one.scheduled_for or one.at for one in ones)
            count = sum(one.count for one in ones)
            what = "a tick was missed" if count == 1 else f"{count:,} ticks were missed"
            subject = schedule_subject(schedule.id, schedule.spec.name)
            text = f"{schedule.spec.name}: {what}, the last one at {last:%Y-%m-%d %H:%M:%S} UTC"
            findings.append(Finding(subject, text, last, count, {"last_tick": last, "missed": count}))
        ticks = await self._facts.ticks(_schedule_ids(task.incidents), _RECENT_TICKS)
        recovered = {
            one.subject
            for one in task.incidents
            if one.schedule_id is not None and is_on_time_again(ticks[one.schedule_id], one.occurred_at)
        }
        down, up = await judge_checks(self._facts, task.rule, task.incidents)
        return Judgement(findings + down, recovered | up), task.position

    async def _late(self, task: RuleTask) -> Judged:
        when, facts = task.rule.given.when, self._facts
        assert isinstance(when, WhenLate)
        overdue = [one for one in await facts.late(when.seconds) if _matches_schedule(task.rule, one)]
        findings = []
        for schedule in overdue:
            tick = schedule.next_tick_at or schedule.due_at or facts.moment
            seconds = (facts.moment - tick).total_seconds()
            findings.append(_late_finding(schedule, tick, seconds, f"the tick is late by {duration_text(seconds)}"))
        signals = [one for one in facts.signals(SignalKind.LATE) if (one.seconds or 0.0) >= when.seconds]
        for schedule, ones in await self._by_schedule(task.rule, signals):
            last = ones[-1]
            seconds = last.seconds or 0.0
            tick = last.scheduled_for or last.at
            findings.append(_late_finding(schedule, tick, seconds, f"the tick fired {duration_text(seconds)} late"))
        schedules = await facts.schedules(one.schedule_id for one in task.incidents)
        ticks = await facts.ticks(_schedule_ids(task.incidents), _RECENT_TICKS)
        recovered = set()
        for incident in task.incidents:
            schedule_now = schedules.get(incident.schedule_id) if incident.schedule_id is not None else None
            if schedule_now is None:
                continue
            allowed = timedelta(seconds=when.seconds + schedule_now.spec.jitter_seconds)
            in_time = is_on_time_again(ticks[schedule_now.id], incident.occurred_at, within=allowed)
            if in_time or schedule_now.status is not Status.ACTIVE:
                recovered.add(incident.subject)
        return Judgement(findings, recovered - {finding.subject.key for finding in findings}), task.position

    async def _skipped(self, task: RuleTask) -> Judged:
        when, facts = task.rule.given.when, self._facts
        assert isinstance(when, WhenSkipped)
        signals = [one for one in facts.signals(SignalKind.SKIPPED) if one.skip_reason in when.reasons]
        candidates = {one.id: one for one, _ in await self._by_schedule(task.rule, signals)}
        candidates |= await facts.schedules(one.schedule_id for one in task.incidents)
        ticks = await facts.ticks(candidates, min(2 * when.in_a_row + 20, MAX_LISTED))
        findings, recovered = [], set()
        for schedule in candidates.values():
            streak, name = skip_streak(when, ticks[schedule.id]), schedule.spec.name
            subject = schedule_subject(schedule.id, name)
            if streak.count >= when.in_a_row and streak.last_at is not None:
                text = f"{name}: the last {streak.count:,} ticks were skipped ({', '.join(when.reasons)})"
                findings.append(Finding(subject, text, streak.last_at, 1, {"skipped": streak.count}))
            elif streak.has_fired:
                recovered.add(subject.key)
        return Judgement(findings, recovered), task.position

    async def _by_schedule(self, rule: AlertRule, signals: Sequence[AlertSignal]) -> list[tuple[Schedule, list[AlertSignal]]]:
        """Return the signals by schedule, as far as the rule matches it."""
        schedules = await self._facts.schedules(one.schedule_id for one in signals)
        found: dict[UUID, list[AlertSignal]] = {}
        for one in signals:
            if one.schedule_id in schedules and _matches_schedule(rule, schedules[one.schedule_id]):
                found.setdefault(one.schedule_id, []).append(one)
        return [(schedules[id_], ones) for id_, ones in found.items()]

    async def _deadline(self, task: RuleTask) -> Judged:
        findings, position = await judge_deadlines(self._facts, task.rule, task.position)
        return Judgement(findings, await self._completed_subjects(task.incidents)), position

    # Queues

    async def _queue_age(self, task: RuleTask) -> Judged:
        when = task.rule.given.when
        assert isinstance(when, WhenQueueAge)
        ages, is_complete = await self._waiting(task.rule, when.seconds)
        by_queue: dict[str, list[ReadyAge]] = {}
        for age in ages:
            by_queue.setdefault(age.queue, []).append(age)
        findings = []
        for queue, ones in by_queue.items():
            oldest, count = min(one.oldest_at for one in ones), sum(one.tasks for one in ones)
            waiting = duration_text((self._facts.moment - oldest).total_seconds())
            text = f"queue {queue}: {tasks_text(count)} waiting for too long, the oldest for {waiting}"
            findings.append(Finding(queue_subject(queue), text, oldest, 1, {"queue": queue, "tasks": count}))
        return Judgement(findings, all_others=is_complete), task.position

    async def _no_worker(self, task: RuleTask) -> Judged:
        when = task.rule.given.when
        assert isinstance(when, WhenNoWorker)
        ages, is_complete = await self._waiting(task.rule, when.seconds)
        findings = []
        for age in ages:
            if is_reserved_queue(age.queue):
                continue
            absence = absence_of(age.queue, age.type, await self._facts.workers(age.queue), self._facts.moment)
            if absence is not None:
                subject = Subject(f"worker:{age.queue}/{age.type}", f"{age.type} in queue {age.queue}")
                text = f"queue {age.queue}: {tasks_text(age.tasks)} of type {age.type} waiting: {absence.text}"
                details = {"queue": age.queue, "type": age.type, "tasks": age.tasks}
                findings.append(Finding(subject, text, age.oldest_at, 1, details))
        return Judgement(findings, all_others=is_complete), task.position

    async def _waiting(self, rule: AlertRule, seconds: float) -> tuple[list[ReadyAge], bool]:
        """Return the waiting tasks that the rule matches, and whether the list is complete."""
        queue, limit = rule.given.match.queue, timedelta(seconds=seconds)
        found = await self._facts.ready_ages(seconds)
        matched = [
            one
            for one in found
            if self._facts.moment - one.oldest_at > limit
            and (one.queue == queue if queue is not None else not is_reserved_queue(one.queue))
        ]
        return matched, len(found) < MAX_LISTED


def _schedule_ids(incidents: Sequence[Incident]) -> list[UUID]:
    return [one.schedule_id for one in incidents if one.schedule_id is not None]


def _matches(rule: AlertRule, schedule: str | None, queue: str | None, labels: Any) -> bool:
    return rule.matches(schedule=schedule, queue=queue or "", labels=labels)


def _matches_signal(rule: AlertRule, signal: AlertSignal) -> bool:
    return _matches(rule, signal.schedule_name, signal.queue, signal.labels)


def _matches_schedule(rule: AlertRule, schedule: Schedule) -> bool:
    return _matches(rule, schedule.spec.name, schedule.spec.queue, schedule.spec.labels)


def _task_subject(
    schedule_id: UUID | None, queue: str | None, type_: str | None, task_id: UUID | None, existing: Mapping[UUID, Schedule]
) -> Subject:
    """Return what an incident of a task is about: its schedule, as long as that exists, or its type."""
    if schedule_id is not None and schedule_id in existing:
        return schedule_subject(schedule_id, existing[schedule_id].spec.name, task_id)
    return type_subject(queue or "", type_ or "", task_id)


def _by_subject(
    rule: AlertRule, signals: Sequence[AlertSignal], existing: Mapping[UUID, Schedule]
) -> dict[Subject, list[AlertSignal]]:
    """Return the signals that the rule matches by subject, oldest first."""
    found: dict[Subject, list[AlertSignal]] = {}
    for one in sorted(signals, key=lambda signal: signal.at):
        if _matches_signal(rule, one):
            found.setdefault(_task_subject(one.schedule_id, one.queue, one.type, None, existing), []).append(one)
    return found


def _slow_finding(
    when: WhenSlow, subject: Subject, seconds: float, began_at: datetime, runs: Sequence[ScheduleRun], is_running: bool
) -> list[Finding]:
    usual = usual_seconds(runs, without=subject.task_id)
    limit = slow_limit(when, usual)
    if limit is None or seconds <= limit:
        return []
    verb = "has been running for" if is_running else "took"
    text = f"{subject.name}: a task {verb} {duration_text(seconds)}, longer than {duration_text(limit)}"
    text += "" if usual is None else f"; usual is {duration_text(usual)}"
    details = {"seconds": round(seconds, 3), "limit_seconds": round(limit, 3), "task_id": str(subject.task_id)}
    return [Finding(subject, text, began_at, 1, details)]


def _is_fast_again(when: WhenSlow, incident: Incident, runs: Sequence[ScheduleRun]) -> bool:
    """Whether the newest run of a schedule is a later one, and took no longer than allowed."""
    last = next((run for run in runs if run.seconds is not None), None)
    if last is None or last.started_at is None or last.started_at <= incident.occurred_at:
        return False
    limit = slow_limit(when, usual_seconds(runs, without=last.id))
    return limit is None or (last.seconds or 0.0) <= limit


def _late_finding(schedule: Schedule, tick: datetime, seconds: float, what: str) -> Finding:
    text = f"{schedule.spec.name}: {what}, it was due at {tick:%Y-%m-%d %H:%M:%S} UTC"
    subject = schedule_subject(schedule.id, schedule.spec.name)
    return Finding(subject, text, tick, 1, {"tick": tick, "late_seconds": round(seconds, 3)})


def _match_text(rule: AlertRule) -> str:
    match = rule.given.match
    parts = [("schedule", match.schedule), ("label", match.label), ("queue", match.queue)]
    return ", ".join(f"{name} {value}" for name, value in parts if value is not None) or "all tasks"


def _first_id(since: datetime) -> UUID:
    """Return the lowest id of tasks that were created at or after that time."""
    return UUID(int=int(since.timestamp() * 1000) << 80)
