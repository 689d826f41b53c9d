"""Judges deadlines: "not done by 04:00", also if the schedule never ran.

A rule remembers up to when deadlines were judged. In most passes no deadline has come since, and nothing is read. When one has
come in some zones, the schedules of these zones are judged page by page, over several passes if there are many.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from everbeat.core.alert_conditions import deadline_of, is_deadline_met, last_deadline, schedule_subject
from everbeat.core.alerts import AlertRule, WhenDeadline
from everbeat.core.incidents import Finding
from everbeat.core.quiet_times import parse_clock
from everbeat.core.schedules import Schedule, Status
from everbeat.core.zones import load_zone, zone_names
from everbeat.services.alert_facts import TenantFacts
from everbeat.store.values import ScheduleFilter

_DEADLINE_RUNS = 200
_SCHEDULE_PAGE = 500


class RulePosition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the evaluation of a rule remembers.

    `sent_at`: when it last reported the opening of incidents. `failed_at`: the last failure that a success rate counts.
    `deadline_at`: up to when deadlines were judged. `deadline_until`, `deadline_after`: the pass over schedules that is in
    progress, and its last schedule.
    """

    sent_at: datetime | None = None
    failed_at: datetime | None = None
    deadline_at: datetime | None = None
    deadline_until: datetime | None = None
    deadline_after: str | None = None


async def judge_deadlines(facts: TenantFacts, rule: AlertRule, position: RulePosition) -> tuple[list[Finding], RulePosition]:
    """Judge the deadlines since the position, or a page of the schedules that have them. Returns the new position."""
    when = rule.given.when
    assert isinstance(when, WhenDeadline)
    until = position.deadline_until or facts.moment
    since = position.deadline_at or max(rule.created_at, facts.moment - timedelta(seconds=1))
    page, position = await _due_schedules(facts, rule, when, since, until, position)
    return await _missed_deadlines(facts, rule, when, page, since, until), position


async def _due_schedules(
    facts: TenantFacts, rule: AlertRule, when: WhenDeadline, since: datetime, until: datetime, position: RulePosition
) -> tuple[list[Schedule], RulePosition]:
    """Return the next page of schedules with a deadline in (since, until], and the position after it."""
    done = RulePosition(sent_at=position.sent_at, deadline_at=until)
    match = rule.given.match
    if match.schedule is not None:
        named = await facts.schedule_named(match.schedule)
        return [] if named is None else [named], done
    by = parse_clock(when.by)
    names = [when.timezone] if when.timezone is not None else zone_names()
    due = [] if by is None else [name for name in names if last_deadline(by, load_zone(name), until) > since]
    if not due:
        return [], done
    filter_ = ScheduleFilter(queue=match.queue, zones=None if when.timezone is not None else due)
    after = position.deadline_after
    page = await facts.store.schedule_list(facts.tenant_id, filter_, after_name=after, limit=_SCHEDULE_PAGE)
    if len(page) < _SCHEDULE_PAGE:
        return page, done
    last = page[-1].spec.name
    return page, RulePosition(sent_at=position.sent_at, deadline_at=since, deadline_until=until, deadline_after=last)


async def _missed_deadlines(
    facts: TenantFacts, rule: AlertRule, when: WhenDeadline, page: Sequence[Schedule], since: datetime, until: datetime
) -> list[Finding]:
    due = []
    for schedule in page:
        is_judged = schedule.status is Status.ACTIVE or (when.even_if_paused and schedule.status is Status.PAUSED)
        if not (is_judged or schedule.status is Status.FINISHED) or not _is_matched(rule, schedule):
            continue
        timeline = await facts.timeline(schedule)
        deadline = None if timeline is None else deadline_of(when, schedule, timeline, until)
        if deadline is not None and deadline.at > since:
            due.append((schedule, deadline))
    runs = await facts.runs((schedule.id for schedule, _ in due), _DEADLINE_RUNS)
    findings = []
    for schedule, deadline in due:
        if is_deadline_met(deadline, runs[schedule.id], _DEADLINE_RUNS):
            continue
        zone = when.timezone or schedule.spec.rule.timezone
        text = f"{schedule.spec.name} was not done by {when.by} ({zone})"
        details = {"deadline": deadline.at, "timezone": zone, "tick": deadline.first_tick}
        findings.append(Finding(schedule_subject(schedule.id, schedule.spec.name), text, deadline.first_tick, 1, details))
    return findings


def _is_matched(rule: AlertRule, schedule: Schedule) -> bool:
    spec = schedule.spec
    return rule.matches(schedule=spec.name, queue=spec.queue, labels=spec.labels)
