"""Compares the ticks that the rules require with the ledger, for pages of schedules and for single ones.

It reads the rules and the cursor of a schedule, and nothing that the ticker writes to plan its work. Up to the cursor, every
tick needs a ledger row. After it, the first tick that may fire must not be overdue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from everbeat.core.audit_findings import AuditFinding, FindingKind
from everbeat.core.calendars import Calendar
from everbeat.core.errors import InvalidInput
from everbeat.core.jitter import jitter_of
from everbeat.core.rule_periods import MICROSECOND, RulePeriod, missing_ticks
from everbeat.core.rules import Rule
from everbeat.core.schedules import PastRule, Status
from everbeat.core.ticks import Outcome
from everbeat.core.timeline import Timeline, TimelineCache
from everbeat.services.maintenance.finding_log import FindingSubject, late_finding, new_finding, overdue_finding
from everbeat.services.time_slices import TimeSlices
from everbeat.store.base import Store
from everbeat.store.values import AuditedSchedule

_MAX_ROWS = 20_000
_MAX_FINDINGS_OF_SCHEDULE = 100


class CheckedWindow(NamedTuple):
    """The ticks after `from_` are checked. A tick is late, or overdue, `late` after it and its jitter."""

    from_: datetime
    now: datetime
    late: timedelta


class _Expected(NamedTuple):
    """The number of ticks that a schedule should have recorded before `end`."""

    schedule: AuditedSchedule
    end: datetime
    ticks: int


class TickChecks:
    def __init__(self, store: Store, timelines: TimelineCache) -> None:
        self._store = store
        self._timelines = timelines
        self._calendars: dict[UUID, Mapping[str, Calendar]] = {}

    def begin(self) -> None:
        """Forget the calendars, which may have changed since the last run."""
        self._calendars = {}

    async def check(self, page: Sequence[AuditedSchedule], window: CheckedWindow) -> list[AuditFinding]:
        """Return the findings of a page of schedules."""
        found: list[AuditFinding] = []
        expected: dict[UUID, _Expected] = {}
        past = await self.past_rules([one for one in page if one.rule_at > window.from_])
        slices = TimeSlices()
        for schedule in page:
            await slices.pause()
            timeline = None if schedule.fault is not None else await self._timeline(schedule, schedule.rule)
            if timeline is None:  # a fault is reported on its own
                continue
            overdue = overdue_tick(schedule, timeline, window)
            if overdue is not None:
                found.append(overdue_finding(subject_of(schedule), overdue, window.now))
            one = await self._expected(schedule, timeline, past.get(schedule.id, ()), window)
            if one.ticks:
                expected[schedule.id] = one
        return found + await self._compare(expected, past, window)

    async def _compare(
        self, expected: Mapping[UUID, _Expected], past: Mapping[UUID, Sequence[PastRule]], window: CheckedWindow
    ) -> list[AuditFinding]:
        if not expected:
            return []
        found: list[AuditFinding] = []
        recorded = await self._store.tick_audit({id_: one.end for id_, one in expected.items()}, from_=window.from_)
        for id_, one in expected.items():
            ledger = recorded.get(id_)
            allowed = (jitter_of(id_, one.schedule.jitter_seconds) + window.late).total_seconds()
            if ledger is None or ledger.recorded < one.ticks or ledger.lag_seconds > allowed:
                found += await self.check_exactly(one.schedule, past.get(id_, ()), one.end, window)
        return found

    async def check_exactly(
        self, schedule: AuditedSchedule, past: Sequence[PastRule], end: datetime, window: CheckedWindow
    ) -> list[AuditFinding]:
        """Return every missing and every late tick of a schedule before `end`, up to a limit."""
        tenant_id, id_ = schedule.tenant_id, schedule.id
        periods = await self.periods(schedule, past, end)
        rows = await self._store.tick_list(tenant_id, id_, from_=window.from_, to=end, limit=_MAX_ROWS)
        if len(rows) == _MAX_ROWS:
            end = rows[-1].scheduled_for
        missing = missing_ticks(periods, rows, window.from_, end, limit=_MAX_FINDINGS_OF_SCHEDULE)
        if missing:
            to = missing[-1] + MICROSECOND
            done = set(await self._store.task_ticks(tenant_id, id_, from_=missing[0], to=to))
            missing = [at for at in missing if at not in done]
        late = jitter_of(id_, schedule.jitter_seconds) + window.late
        lates = [row for row in rows if row.outcome is Outcome.FIRED and row.fired_at - row.scheduled_for > late]
        subject = subject_of(schedule)
        return [
            *(new_finding(FindingKind.MISSING, at, window.now, subject) for at in missing),
            *(late_finding(subject, row.scheduled_for, row.fired_at, window.now) for row in lates[-_MAX_FINDINGS_OF_SCHEDULE:]),
        ]

    async def periods(self, schedule: AuditedSchedule, past: Sequence[PastRule], until: datetime) -> list[RulePeriod]:
        periods = []
        for rule, since, end in [*((one.rule, one.since, one.until) for one in past), (schedule.rule, schedule.rule_at, until)]:
            timeline = await self._timeline(schedule, rule)
            if timeline is not None:
                periods.append(RulePeriod(since, end, timeline))
        return periods

    async def timeline(self, schedule: AuditedSchedule) -> Timeline | None:
        """Return the timeline of the present rule; None if it cannot be computed."""
        return await self._timeline(schedule, schedule.rule)

    async def _expected(
        self, schedule: AuditedSchedule, timeline: Timeline, past: Sequence[PastRule], window: CheckedWindow
    ) -> _Expected:
        end = min(schedule.cursor_at, window.now - window.late) + MICROSECOND
        if schedule.cursor_at <= window.now:
            end = schedule.cursor_at + MICROSECOND
        if end <= window.from_:
            return _Expected(schedule, end, 0)
        if schedule.rule_at <= window.from_:
            first = timeline.next_tick(window.from_ - MICROSECOND)
            if not timeline.has_skips and (first is None or first >= end):  # fast, because timelines remember the next tick
                return _Expected(schedule, end, 0)
        periods = await self.periods(schedule, past, end)
        return _Expected(schedule, end, sum(period.ticks_in(window.from_, end) for period in periods))

    async def past_rules(self, schedules: Sequence[AuditedSchedule]) -> dict[UUID, list[PastRule]]:
        by_tenant: dict[UUID, list[UUID]] = {}
        for schedule in schedules:
            by_tenant.setdefault(schedule.tenant_id, []).append(schedule.id)
        past: dict[UUID, list[PastRule]] = {}
        for tenant_id, ids in by_tenant.items():
            for rule in await self._store.schedule_past_rules(tenant_id, ids):
                past.setdefault(rule.schedule_id, []).append(rule)
        return past

    async def _timeline(self, schedule: AuditedSchedule, rule: Rule) -> Timeline | None:
        calendars: Mapping[str, Calendar] = {}
        if rule.exclude or rule.only:
            if schedule.tenant_id not in self._calendars:
                found = await self._store.calendar_list(schedule.tenant_id)
                self._calendars[schedule.tenant_id] = {one.name: one for one in found}
            calendars = self._calendars[schedule.tenant_id]
        try:
            return self._timelines.get(rule, schedule.id, calendars)
        except (InvalidInput, ValueError, ArithmeticError):  # a rule that cannot be computed has no expected ticks
            return None


def overdue_tick(schedule: AuditedSchedule, timeline: Timeline, window: CheckedWindow) -> datetime | None:
    """Return the first tick after the cursor, if it should have fired by now."""
    if schedule.status is Status.PAUSED or schedule.cursor_at >= window.now:
        return None
    tick = timeline.next_tick(schedule.cursor_at)
    if tick is None or tick + window.late >= window.now:
        return None
    return tick if tick + jitter_of(schedule.id, schedule.jitter_seconds) + window.late < window.now else None


def subject_of(schedule: AuditedSchedule) -> FindingSubject:
    return FindingSubject(schedule.tenant_id, schedule.id, schedule.name)
