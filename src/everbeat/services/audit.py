"""The audit: compares the ticks that the rules require with the ledger and the tasks.

The number of expected ticks comes from the rules alone (present and past ones), fired and skipped from the ledger, doubled
from the tasks. The three sources are independent of each other.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar
from uuid import UUID

import msgspec

from everbeat.core.audit_findings import FindingKind
from everbeat.core.calendars import Calendar
from everbeat.core.errors import InvalidInput
from everbeat.core.ledger_days import DAY, ROLL_UP_NAME, DayCounts, closed_days, whole_days
from everbeat.core.rule_periods import RulePeriod
from everbeat.core.rules import Rule
from everbeat.core.schedules import PastRule, Schedule
from everbeat.core.tenants import Tenant
from everbeat.core.ticks import Outcome, SkipReason, Tick
from everbeat.core.timeline import Timeline, TimelineCache
from everbeat.services.ledger import accounted_until
from everbeat.store.base import Store
from everbeat.store.values import DayTotal, FindingFilter, ScheduleFilter, TickTotal

_MICROSECOND = timedelta(microseconds=1)
_PAGE = 500
_MAX_KEPT = 1000
_KEPT_SECONDS = 60.0
_MAX_WINDOW = timedelta(days=366)
_MAX_WINDOWS_SECONDS = 2.0
# The parts of days at the edges of a window are computed from the rules for up to this number of schedules.
_MAX_EXACT = 10_000
_MAX_FINDINGS = 10_000

_Row = TypeVar("_Row", TickTotal, Tick, PastRule)


class AuditCount(msgspec.Struct):
    """The expected ticks of a window, and how many were fired, skipped, missing and doubled."""

    expected: int = 0
    fired: int = 0
    skipped: Counter[str] = msgspec.field(default_factory=Counter)
    missing: int = 0
    doubled: int = 0

    def add(self, other: AuditCount) -> None:
        self.expected += other.expected
        self.fired += other.fired
        self.skipped.update(other.skipped)
        self.missing += other.missing
        self.doubled += other.doubled


class ScheduleAuditCount(NamedTuple):
    schedule: Schedule
    counted: AuditCount


class AuditReport(NamedTuple):
    from_: datetime
    to: datetime
    total: AuditCount
    schedules: list[ScheduleAuditCount]
    faulty: list[Schedule]


class _Case(NamedTuple):
    """What one audit counts: the closed days from the roll-up, and the windows before and after them from the ledger."""

    tenant_id: UUID
    windows: Sequence[tuple[datetime, datetime]]
    days: tuple[datetime, datetime] | None
    now: datetime


class TenantAuditCount(NamedTuple):
    tenant: Tenant
    counted: AuditCount


class ClusterAuditReport(NamedTuple):
    from_: datetime
    to: datetime
    total: AuditCount
    tenants: list[TenantAuditCount]
    faulty: list[Schedule]


class AuditService:
    def __init__(self, store: Store, timelines: TimelineCache, *, late_seconds: float, retention_days: float) -> None:
        self._store = store
        self._timelines = timelines
        self._late_seconds = late_seconds
        self._retention = timedelta(days=retention_days)
        self._kept: dict[UUID, tuple[float, AuditReport]] = {}
        self._lock = asyncio.Lock()

    async def last_day(self, tenant_id: UUID, *, now: datetime | None = None) -> AuditReport:
        """Audit the last 24 hours without a list of schedules. The report may be a minute old: many dashboards share it."""
        async with self._lock:
            kept = self._kept.get(tenant_id)
            if kept is None or kept[0] <= time.monotonic():
                if len(self._kept) > _MAX_KEPT:
                    self._kept.clear()
                report = await self.run(tenant_id, from_=None, to=None, limit=0, now=now)
                kept = self._kept[tenant_id] = (time.monotonic() + _KEPT_SECONDS, report)
            return kept[1]

    async def run(
        self,
        tenant_id: UUID,
        *,
        from_: datetime | None,
        to: datetime | None,
        after_name: str | None = None,
        limit: int = 50,
        now: datetime | None = None,
    ) -> AuditReport:
        """Audit all schedules of a tenant, and list those of the page after `after_name`."""
        moment = await self._store.clock(now=now)
        start, end = audit_window(from_, to, moment)
        end += _MICROSECOND if to is None or to > moment else timedelta(0)
        days = await self._closed_days(start, end)
        windows = [(start, end)] if days is None else [one for one in ((start, days[0]), (days[1], end)) if one[0] < one[1]]
        total = (
            AuditCount()
            if days is None
            else _count_of(await self._store.ledger_day_total(tenant_id, from_=days[0], to=days[1]))
        )
        case = _Case(tenant_id, windows, days, moment)
        if await self._store.schedule_is_many(tenant_id, than=_MAX_EXACT):
            for window in windows:
                total.add(await self._count_window(tenant_id, *window, moment))
            listed = await self._list_page(case, after_name, limit)
        else:
            listed = await self._count_exactly(case, total, after_name, limit)
        faulty = await self._store.schedule_faulty(tenant_id, limit=100)
        return AuditReport(start, end, total, listed, faulty)

    async def _closed_days(self, start: datetime, end: datetime) -> tuple[datetime, datetime] | None:
        """Return the whole days of a window that the roll-up has counted, as [first, end)."""
        position = next((one.position for one in await self._store.loop_lease_list() if one.name == ROLL_UP_NAME), "{}")
        closed = closed_days(position)
        return None if closed is None else whole_days(start, end, closed)

    async def _count_exactly(
        self, case: _Case, total: AuditCount, after_name: str | None, limit: int
    ) -> list[ScheduleAuditCount]:
        """Add the counts of all schedules outside the closed days, and return the page of the list."""
        listed: list[ScheduleAuditCount] = []
        name: str | None = None
        while case.windows or len(listed) < limit:
            page = await self._store.schedule_list(case.tenant_id, ScheduleFilter(), after_name=name, limit=_PAGE)
            for one in await self._count_windows(case, page):
                total.add(one.counted)
                if len(listed) < limit and (after_name is None or one.schedule.spec.name > after_name):
                    listed.append(one)
            if len(page) < _PAGE:
                break
            name = page[-1].spec.name
        return await self._with_closed_days(case, listed)

    async def _list_page(self, case: _Case, after_name: str | None, limit: int) -> list[ScheduleAuditCount]:
        listed: list[ScheduleAuditCount] = []
        while len(listed) < limit:
            size = min(_PAGE, limit - len(listed))
            page = await self._store.schedule_list(case.tenant_id, ScheduleFilter(), after_name=after_name, limit=size)
            listed += await self._count_windows(case, page)
            if len(page) < size:
                break
            after_name = page[-1].spec.name
        return await self._with_closed_days(case, listed)

    async def _count_windows(self, case: _Case, page: Sequence[Schedule]) -> list[ScheduleAuditCount]:
        """Return the exact counts of a page of schedules outside the closed days."""
        calendars = {one.name: one for one in await self._store.calendar_list(case.tenant_id)}
        counted = [ScheduleAuditCount(schedule, AuditCount()) for schedule in page]
        for start, end in case.windows:
            found = await self._audit_schedules(case.tenant_id, page, calendars, start, end, case.now)
            for one, more in zip(counted, found, strict=True):
                one.counted.add(more.counted)
        return counted

    async def _with_closed_days(self, case: _Case, listed: list[ScheduleAuditCount]) -> list[ScheduleAuditCount]:
        if case.days is None or not listed:
            return listed
        days = [case.days[0] + index * DAY for index in range((case.days[1] - case.days[0]) // DAY)]
        found = await self._store.ledger_day_list(case.tenant_id, [one.schedule.id for one in listed], days)
        for one in listed:
            if one.schedule.id in found:
                one.counted.add(_count_of(found[one.schedule.id]))
        return listed

    async def _count_window(self, tenant_id: UUID, start: datetime, end: datetime, now: datetime) -> AuditCount:
        """Count a part of a day of a tenant with many schedules: the rows of the ledger, and the ticks that the auditor misses.

        To compute the ticks of every rule would take too long. The auditor does that all the time.
        """
        recorded = await self._store.tick_window_totals(tenant_id, from_=start, to=end)
        fired = recorded.pop(Outcome.FIRED.value, 0)
        count = AuditCount(fired=fired, skipped=Counter(recorded))
        for kind in (FindingKind.MISSING, FindingKind.OVERDUE, FindingKind.DOUBLED):
            filter_ = FindingFilter(kind=kind, from_at=start, to_at=end)
            found = len(await self._store.finding_list(tenant_id, filter_, limit=_MAX_FINDINGS))
            if kind is FindingKind.DOUBLED:
                count.doubled = found
            else:
                count.missing += found
        count.expected = fired + count.skipped.total() + count.missing
        return count

    async def run_all(
        self,
        *,
        from_: datetime | None,
        to: datetime | None,
        after_name: str | None = None,
        limit: int = 50,
        now: datetime | None = None,
    ) -> ClusterAuditReport:
        """Audit all tenants, and list those of the page after `after_name`."""
        moment = await self._store.clock(now=now)
        total, listed = AuditCount(), list[TenantAuditCount]()
        name: str | None = None
        while tenants := await self._store.tenant_list(after_name=name, limit=_PAGE):
            for tenant in tenants:
                one = await self.run(tenant.id, from_=from_, to=to, limit=0, now=moment)
                total.add(one.total)
                if len(listed) < limit and (after_name is None or tenant.name > after_name):
                    listed.append(TenantAuditCount(tenant, one.total))
            name = tenants[-1].name
            if len(tenants) < _PAGE:
                break
        return ClusterAuditReport(one.from_, one.to, total, listed, await self._store.schedule_faulty(None, limit=100))

    async def by_window(
        self, schedule: Schedule, windows: Sequence[tuple[datetime, datetime]], *, now: datetime | None = None
    ) -> list[AuditCount | None]:
        """Audit one schedule in each window, such as the days of a month.

        None: the ledger of the window may be removed already, or the window was not reached within the time limit.
        """
        moment = await self._store.clock(now=now)
        calendars = {calendar.name: calendar for calendar in await self._store.calendar_list(schedule.tenant_id)}
        counts: list[AuditCount | None] = []
        deadline = time.monotonic() + _MAX_WINDOWS_SECONDS
        for start, end in windows:
            found = None
            if time.monotonic() < deadline and start >= moment - self._retention:
                ((_, found),) = await self._audit_schedules(schedule.tenant_id, [schedule], calendars, start, end, moment)
            counts.append(found)
        return counts

    async def _audit_schedules(
        self,
        tenant_id: UUID,
        schedules: Sequence[Schedule],
        calendars: Mapping[str, Calendar],
        start: datetime,
        end: datetime,
        now: datetime,
    ) -> list[ScheduleAuditCount]:
        ids = [schedule.id for schedule in schedules]
        # Ticks that fire after the page was read are not counted. Up to each cursor, rules and ledger cover the same ticks.
        until = {one.id: accounted_until(one, now, self._late_seconds) for one in schedules}
        ends = {id_: max(start, min(end, at + _MICROSECOND)) for id_, at in until.items()}
        totals = _group_by_schedule(await self._store.tick_totals(tenant_id, ends, from_=start))
        ranges = _group_by_schedule(await self._store.tick_ranges(tenant_id, ends, from_=start))
        past = _group_by_schedule(await self._store.schedule_past_rules(tenant_id, ids))
        doubled = await self._store.tick_doubled(tenant_id, ids, from_=start, to=end)
        counted = []
        for index, schedule in enumerate(schedules):
            if index % 50 == 0:
                await asyncio.sleep(0)
            periods = self._periods(schedule, past.get(schedule.id, []), calendars, now)
            last = ends[schedule.id]
            count = count_recorded(totals.get(schedule.id, []), ranges.get(schedule.id, []), periods, start, last)
            count.expected = sum(period.ticks_in(start, end) for period in periods)
            # The rules do not contain a tick that a change of the tz database moved. Its row is recorded in addition.
            count.expected += count.skipped[SkipReason.ZONE_CHANGED.value]
            recorded = count.fired + count.skipped.total()
            if schedule.fault is not None:  # the rule cannot be computed, so the ledger is the only source
                count.expected = recorded
            count.missing = max(0, count.expected - recorded)
            count.doubled = doubled.get(schedule.id, 0)
            counted.append(ScheduleAuditCount(schedule, count))
        return counted

    def _periods(
        self, schedule: Schedule, past: Sequence[PastRule], calendars: Mapping[str, Calendar], now: datetime
    ) -> list[RulePeriod]:
        present = (schedule.spec.rule, schedule.rule_at, accounted_until(schedule, now, self._late_seconds))
        periods = []
        for rule, since, until in [*((one.rule, one.since, one.until) for one in past), present]:
            timeline = self._timeline(rule, schedule.id, calendars)
            if timeline is not None:
                periods.append(RulePeriod(since, until, timeline))
        return periods

    def _timeline(self, rule: Rule, id_: UUID, calendars: Mapping[str, Calendar]) -> Timeline | None:
        try:
            return self._timelines.get(rule, id_, calendars)
        except InvalidInput:  # a rule that cannot be computed has no expected ticks
            return None


def audit_window(from_: datetime | None, to: datetime | None, moment: datetime) -> tuple[datetime, datetime]:
    """Return the window to audit, which ends now at the latest. Default: the last day."""
    end = min(to, moment) if to is not None else moment
    start = from_ if from_ is not None else end - timedelta(days=1)
    if start > end:
        raise InvalidInput.of("from", "must be earlier than to, and not in the future")
    if end - start > _MAX_WINDOW:
        raise InvalidInput.of("from", "the window must not be longer than 366 days")
    return start, end


def _count_of(days: DayCounts) -> AuditCount:
    return AuditCount(days.expected, days.fired, Counter(days.skipped), days.missing, days.doubled)


def count_recorded(
    totals: Sequence[TickTotal] | Sequence[DayTotal],
    ranges: Sequence[Tick],
    periods: Sequence[RulePeriod],
    start: datetime,
    end: datetime,
) -> AuditCount:
    """Count the ticks in the ledger rows of a window. Of a skipped range that crosses an edge, the part inside counts."""
    count = AuditCount()
    for total in totals:
        if total.outcome is Outcome.FIRED:
            count.fired += total.count
        else:
            count.skipped[str(total.reason)] += total.count
    for tick in ranges:
        assert tick.until is not None
        inside = sum(period.ticks_in(max(start, tick.scheduled_for), min(end, tick.until + _MICROSECOND)) for period in periods)
        begins_inside = tick.scheduled_for >= start
        count.skipped[str(tick.reason)] += inside - (tick.count if begins_inside else 0)
    return count


def _group_by_schedule(rows: Sequence[_Row]) -> dict[UUID, list[_Row]]:
    groups: dict[UUID, list[_Row]] = {}
    for row in rows:
        groups.setdefault(row.schedule_id, []).append(row)
    return groups
