"""The roll-up: counts each day of the ledger (UTC) once it is over, and keeps the counts up to date.

It runs on one node at a time, under the lease of its loop, and continues where the last run ended. Days that were not complete
when they were counted are counted again when the cursor of the schedule has moved. A slow sweep compares all days whose ledger
is kept with the counts, so that rows that disappear later are found.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from everbeat.core.audit_findings import FindingKind
from everbeat.core.ledger_days import (
    DAY,
    LedgerDay,
    RecheckPosition,
    RollUpPosition,
    day_of,
    decode_roll_up_position,
)
from everbeat.core.retention import RetentionPeriods
from everbeat.core.timeline import TimelineCache
from everbeat.services.event_stream import EventStream
from everbeat.services.events import Emit, ignore
from everbeat.services.maintenance.day_counts import DayCounter
from everbeat.services.maintenance.finding_log import FindingLog
from everbeat.services.maintenance.leased_loop import LeasedLoop
from everbeat.services.maintenance.tick_checks import CheckedWindow, TickChecks
from everbeat.store.base import Store
from everbeat.store.values import AuditedSchedule, LoopLease

_PAGE = 500
_SHARE = 0.2
_RECHECK_SHARE = 0.1
_PRUNED = 5000
# A day is counted some time after its end, when its last ticks have fired.
_GRACE = timedelta(minutes=2)


_encode = msgspec.json.Encoder().encode


class RollUp(LeasedLoop):
    name = "roll_up"

    def __init__(
        self,
        store: Store,
        node_id: UUID,
        timelines: TimelineCache,
        *,
        periods: RetentionPeriods,
        kept_days: float,
        late_seconds: float,
        interval_seconds: float,
        emit: Emit = ignore,
        event_stream: EventStream | None = None,
    ) -> None:
        super().__init__(store, node_id, interval_seconds=interval_seconds)
        self._late = timedelta(seconds=late_seconds)
        self._kept = timedelta(days=kept_days)
        self._periods = periods
        self._checks = TickChecks(store, timelines)
        self._counter = DayCounter(store, self._checks, periods, late=self._late)
        self._log = FindingLog(store, emit, event_stream or EventStream())

    async def work(self, lease: LoopLease, now: datetime | None) -> str:
        position = decode_roll_up_position(lease.position)
        self._counter.begin()
        began = time.monotonic()
        position = await self._close(position, lease.now, began + self._interval_seconds * _SHARE)
        await self._count_again(lease.now)
        recheck = await self._recheck(position, lease.now, time.monotonic() + self._interval_seconds * _RECHECK_SHARE)
        await self._store.ledger_day_prune(before=lease.now - self._kept, limit=_PRUNED)
        return _encode(msgspec.structs.replace(position, recheck=recheck)).decode()

    async def _close(self, position: RollUpPosition, now: datetime, deadline: float) -> RollUpPosition:
        """Count the days that are over, page by page, until the time of this run is used up."""
        if position.closed_until is None:
            first = await self._first_day(now)
            position = msgspec.structs.replace(position, closed_from=first, closed_until=first)
        while position.closed_until is not None and position.closed_until + DAY + _GRACE <= now:
            day = position.closed_until
            page = await self._store.schedule_audit(after=position.after, limit=_PAGE)
            await self._write([one for one in await self._counter.count(page, day, now) if not one.is_empty])
            if len(page) < _PAGE:
                position = msgspec.structs.replace(position, closed_until=day + DAY, after=None)
            else:
                position = msgspec.structs.replace(position, after=page[-1].id)
            if time.monotonic() >= deadline:
                break
        return position

    async def _first_day(self, now: datetime) -> datetime:
        """Return the first day to count: that of the oldest schedule, if its ledger is kept. Ids are in the order of time."""
        oldest = await self._store.schedule_audit(after=None, limit=1)
        first = day_of(oldest[0].created_at) if oldest else day_of(now)
        return max(min(first, day_of(now)), day_of(now - self._periods.ledger) + DAY)

    async def _count_again(self, now: datetime) -> None:
        by_day: dict[datetime, list[UUID]] = {}
        for one in await self._store.ledger_day_incomplete(limit=_PAGE):
            by_day.setdefault(one.day, []).append(one.schedule_id)
        for day, ids in by_day.items():
            page = await self._store.schedule_audit_find(ids)
            await self._write(await self._counter.count(page, day, now))

    async def _recheck(self, position: RollUpPosition, now: datetime, deadline: float) -> RecheckPosition:
        """Compare the ledger with the counts: today first, then the closed days, the newest first, and then again."""
        recheck = position.recheck
        while True:
            day = day_of(now) if recheck.day is None or recheck.day > now else recheck.day
            page = await self._store.schedule_audit(after=recheck.after, limit=_PAGE)
            await self._recheck_page(
                page, day, now, is_closed=position.closed_until is not None and day < position.closed_until
            )
            is_last = position.closed_from is None or day <= position.closed_from or day <= now - self._periods.ledger
            recheck = RecheckPosition(day, page[-1].id) if len(page) == _PAGE else RecheckPosition(day - DAY)
            is_whole_cycle = len(page) < _PAGE and is_last
            if is_whole_cycle:
                return RecheckPosition()
            if time.monotonic() >= deadline:
                return recheck

    async def _recheck_page(self, page: Sequence[AuditedSchedule], day: datetime, now: datetime, *, is_closed: bool) -> None:
        page = await self._counter.kept(page, day, now)
        if not page:
            return
        window = CheckedWindow(day, now, self._late)
        if not is_closed:
            found = await self._checks.check(page, window)
            await self._log.record([one for one in found if one.kind is FindingKind.MISSING])
            return
        stored = {one.schedule_id: one for one in await self._store.ledger_day_find(day, [one.id for one in page])}
        counted = await self._counter.count(page, day, now)
        changed = [one for one in counted if stored.get(one.schedule_id) != one and not _is_absent(one, stored)]
        await self._write(changed)
        await self._find_missing(page, [one for one in counted if one.missing], window)

    async def _find_missing(self, page: Sequence[AuditedSchedule], missing: Sequence[LedgerDay], window: CheckedWindow) -> None:
        schedules = {one.id: one for one in page}
        for one in missing:
            schedule = schedules[one.schedule_id]
            past = await self._checks.past_rules([schedule])
            end = min(one.day + DAY, schedule.cursor_at + timedelta(microseconds=1))
            found = await self._checks.check_exactly(schedule, past.get(schedule.id, ()), end, window)
            await self._log.record([finding for finding in found if finding.kind is FindingKind.MISSING])

    async def _write(self, days: Sequence[LedgerDay]) -> None:
        if days:
            await self._store.ledger_day_write(days)


def _is_absent(day: LedgerDay, stored: dict[UUID, LedgerDay]) -> bool:
    return day.is_empty and day.schedule_id not in stored
