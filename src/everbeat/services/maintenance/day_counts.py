"""Counts the ticks of schedules on one day (UTC): expected by their rules, recorded in the ledger, and doubled in the tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from everbeat.core.ledger_days import DAY, LedgerDay
from everbeat.core.retention import RetentionPeriods
from everbeat.core.rule_periods import MICROSECOND, RulePeriod
from everbeat.core.schedules import Status
from everbeat.core.ticks import SkipReason, Tick
from everbeat.core.timeline import Timeline
from everbeat.services.audit import count_recorded
from everbeat.services.maintenance.tick_checks import CheckedWindow, TickChecks, overdue_tick
from everbeat.services.time_slices import TimeSlices
from everbeat.store.base import Store
from everbeat.store.values import AuditedSchedule, DayTotal


class _Ledger(NamedTuple):
    """What the ledger and the tasks have of some schedules on a day."""

    totals: Mapping[UUID, Sequence[DayTotal]]
    ranges: Mapping[UUID, Sequence[Tick]]
    doubled: Mapping[UUID, int]


class DayCounter:
    def __init__(self, store: Store, checks: TickChecks, periods: RetentionPeriods, *, late: timedelta) -> None:
        self._store = store
        self._checks = checks
        self._periods = periods
        self._late = late
        self._kept: dict[UUID, timedelta] = {}

    def begin(self) -> None:
        """Forget the retention of the tenants, which may have changed since the last run."""
        self._kept = {}
        self._checks.begin()

    async def kept(self, page: Sequence[AuditedSchedule], day: datetime, now: datetime) -> list[AuditedSchedule]:
        """Return the schedules whose ledger of the day is certainly kept."""
        unknown = {one.tenant_id for one in page} - self._kept.keys()
        if unknown:
            found = {one.id: one.quotas.retention_days for one in await self._store.tenant_find(ids=sorted(unknown))}
            for tenant_id in unknown:
                own = self._periods.of_tenant(found.get(tenant_id))
                self._kept[tenant_id] = self._periods.ledger if own is None else own.ledger
        return [one for one in page if day >= now - self._kept[one.tenant_id]]

    async def count(self, page: Sequence[AuditedSchedule], day: datetime, now: datetime) -> list[LedgerDay]:
        """Return the counts of the schedules that existed on the day."""
        existing = [one for one in page if one.created_at < day + DAY]
        if not existing:
            return []
        kept = {one.id for one in await self.kept(existing, day, now)}
        ledger = await self._read([one.id for one in existing], day)
        past = await self._checks.past_rules([one for one in existing if one.rule_at > day])
        window, slices = CheckedWindow(day, now, self._late), TimeSlices()
        counted = []
        for schedule in existing:
            await slices.pause()
            timeline = None if schedule.fault is not None else await self._checks.timeline(schedule)
            until = _accounted_until(schedule, timeline, window)
            periods = await self._checks.periods(schedule, past.get(schedule.id, ()), until)
            is_known = timeline is not None and schedule.id in kept
            counted.append(_count(schedule, ledger, periods, day, until, is_known=is_known))
            if not _is_complete(schedule, timeline, day):
                counted[-1].cursor_at = schedule.cursor_at
        return counted

    async def _read(self, ids: Sequence[UUID], day: datetime) -> _Ledger:
        totals: dict[UUID, list[DayTotal]] = {}
        for total in await self._store.tick_day_totals(ids, from_=day, to=day + DAY):
            totals.setdefault(total.schedule_id, []).append(total)
        ranges: dict[UUID, list[Tick]] = {}
        for tick in await self._store.tick_day_ranges(ids, from_=day, to=day + DAY):
            ranges.setdefault(tick.schedule_id, []).append(tick)
        return _Ledger(totals, ranges, await self._store.tick_day_doubled(ids, from_=day, to=day + DAY))


def _accounted_until(schedule: AuditedSchedule, timeline: Timeline | None, window: CheckedWindow) -> datetime:
    """Return the time up to which the ledger must be complete: the cursor or, if a tick is overdue, shortly before now."""
    if timeline is not None and overdue_tick(schedule, timeline, window) is not None:
        return max(schedule.cursor_at, window.now - window.late)
    return schedule.cursor_at


def _is_complete(schedule: AuditedSchedule, timeline: Timeline | None, day: datetime) -> bool:
    """Whether no row can be added to the ledger of the day: rows are only added after the cursor."""
    end = day + DAY - MICROSECOND
    if schedule.cursor_at >= end or schedule.status is Status.FINISHED:
        return True
    if timeline is None:
        return False
    moved = schedule.moved_tick_at
    return timeline.count_between(schedule.cursor_at, end) == 0 and not (moved and schedule.cursor_at < moved <= end)


def _count(
    schedule: AuditedSchedule, ledger: _Ledger, periods: Sequence[RulePeriod], day: datetime, until: datetime, *, is_known: bool
) -> LedgerDay:
    """Count a day. Unless `is_known`, the rule or part of the ledger is gone, and what is recorded counts as expected."""
    totals = ledger.totals.get(schedule.id, ())
    end = max(day, min(day + DAY, until + MICROSECOND))
    found = count_recorded(totals, ledger.ranges.get(schedule.id, ()), periods, day, end)
    recorded = found.fired + found.skipped.total()
    expected = sum(period.ticks_in(day, day + DAY) for period in periods) + found.skipped[SkipReason.ZONE_CHANGED.value]
    expected = expected if is_known else recorded
    return LedgerDay(
        day=day,
        schedule_id=schedule.id,
        tenant_id=schedule.tenant_id,
        expected=expected,
        fired=found.fired,
        missing=max(0, expected - recorded),
        doubled=ledger.doubled.get(schedule.id, 0),
        skipped={reason: number for reason, number in found.skipped.items() if number},
        lag_seconds=max((one.lag_seconds for one in totals if one.reason is None), default=0.0),
        first_at=min((one.first_at for one in totals), default=None),
        last_at=max((one.last_at for one in totals), default=None),
    )
