"""The ledger as users read it: what is recorded, what is to come, and what should be there and is not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from everbeat.core.calendars import Calendar
from everbeat.core.errors import InvalidInput
from everbeat.core.schedules import Schedule, Status
from everbeat.core.ticks import Occurrence, SkipReason, Tick
from everbeat.core.timeline import Timeline, TimelineCache
from everbeat.store.base import Store

_MOMENT = timedelta(microseconds=1)
_DAY = timedelta(days=1)


class LedgerEntry(msgspec.Struct, frozen=True):
    scheduled_for: datetime
    outcome: str  # fired | skipped | upcoming | missing
    reason: str | None
    task_id: UUID | None = None
    fired_at: datetime | None = None
    until: datetime | None = None
    count: int = 1

    @property
    def lag_ms(self) -> float | None:
        if self.outcome != "fired" or self.fired_at is None:
            return None
        return round((self.fired_at - self.scheduled_for).total_seconds() * 1000, 3)


def accounted_until(schedule: Schedule, now: datetime, late_seconds: float) -> datetime:
    """Up to when the ledger must be complete: the cursor, or, when a tick is overdue, just now.

    A tick that waits for its jitter or for the pace of catch-up is not overdue; nor is anything while a schedule rests.
    """
    late_at = now - timedelta(seconds=late_seconds)
    if schedule.status is Status.ACTIVE and schedule.due_at is not None and schedule.due_at < late_at:
        return max(schedule.cursor_at, late_at)
    return schedule.cursor_at


class LedgerService:
    def __init__(self, store: Store, timelines: TimelineCache, *, late_seconds: float) -> None:
        self._store = store
        self._timelines = timelines
        self._late_seconds = late_seconds

    async def entries(
        self,
        schedule: Schedule,
        *,
        from_: datetime | None,
        to: datetime | None,
        after: datetime | None,
        limit: int,
        now: datetime | None = None,
    ) -> list[LedgerEntry]:
        """Lines in [from, to), oldest first, after a given one; by default from a day ago to a day ahead."""
        moment = await self._store.clock(now=now)
        start = from_ if from_ is not None else max(schedule.created_at, moment - _DAY)
        end = to if to is not None else moment + _DAY
        if end <= start:
            raise InvalidInput.of("to", "must be later than from")
        if after is not None:
            start = max(start, after + _MOMENT)
        rows = await self._store.tick_list(schedule.tenant_id, schedule.id, from_=start, to=end, limit=limit + 1)
        # A range that ended the page before reaches into this one: go on where it ends.
        passed = [row for row in rows if after is not None and row.scheduled_for <= after]
        position = max([start - _MOMENT, *(row.until for row in passed if row.until is not None)])
        timeline = await self._timeline(schedule)
        merge = _Merge(schedule, timeline, moment, self._late_seconds)
        # Rules that tick once in years take a while to follow; the tick loop must not wait for that.
        return await asyncio.to_thread(merge.lines, rows[len(passed) :], position, end, limit)

    async def _timeline(self, schedule: Schedule) -> Timeline | None:
        rule = schedule.spec.rule
        calendars: Mapping[str, Calendar] = {}
        if rule.exclude or rule.only:
            calendars = {one.name: one for one in await self._store.calendar_list(schedule.tenant_id)}
        try:
            return self._timelines.get(rule, schedule.id, calendars)
        except InvalidInput:  # set aside as faulty: only what is recorded can be shown
            return None


class _Merge:
    """Recorded rows and computed ticks in one order. Before `rule_at` another rule held: only its rows can be shown."""

    def __init__(self, schedule: Schedule, timeline: Timeline | None, now: datetime, late_seconds: float) -> None:
        self._schedule = schedule
        self._timeline = timeline
        self._now = now
        self._accounted = accounted_until(schedule, now, late_seconds)

    def lines(self, rows: list[Tick], position: datetime, end: datetime, limit: int) -> list[LedgerEntry]:
        lines: list[LedgerEntry] = []
        pending = list(reversed(rows))
        while len(lines) < limit:
            row = pending[-1] if pending else None
            if row is None and len(rows) >= limit:
                break
            tick = self._next(position, end if row is None else min(end, row.scheduled_for + _MOMENT))
            if row is not None and (tick is None or row.scheduled_for <= tick.at):
                lines.append(_recorded(row))
                position = max(position, row.until or row.scheduled_for)
                pending.pop()
            elif tick is not None:
                lines.append(self._computed(tick))
                position = tick.at
            else:
                break
        return lines

    def _next(self, after: datetime, before: datetime) -> Occurrence | None:
        if self._timeline is None or (self._schedule.status is Status.FINISHED and after >= self._schedule.cursor_at):
            return None
        after = max(after, self._schedule.rule_at)
        tick = next(self._timeline.occurrences(after), None)
        if tick is None or tick.at >= before:
            return None
        if self._schedule.status is not Status.ACTIVE and tick.at > max(self._schedule.cursor_at, self._now):
            return None
        return tick

    def _computed(self, tick: Occurrence) -> LedgerEntry:
        reason = None if tick.skip is None else tick.skip.value
        if tick.at <= self._accounted:
            return LedgerEntry(tick.at, "missing", reason)
        if self._schedule.status is Status.PAUSED:
            return LedgerEntry(tick.at, "skipped", reason or SkipReason.PAUSED.value)
        return LedgerEntry(tick.at, "upcoming", reason)


def _recorded(tick: Tick) -> LedgerEntry:
    return LedgerEntry(
        scheduled_for=tick.scheduled_for,
        outcome=tick.outcome.value,
        reason=None if tick.reason is None else tick.reason.value,
        task_id=tick.task_id,
        fired_at=tick.fired_at if tick.task_id is not None else None,
        until=tick.until,
        count=tick.count,
    )
