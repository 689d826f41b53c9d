"""The ledger as the API shows it: recorded, upcoming and missing ticks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from everbeat.core.calendars import Calendar
from everbeat.core.errors import InvalidInput
from everbeat.core.responses import LedgerOutcome
from everbeat.core.schedules import Schedule, Status
from everbeat.core.ticks import Occurrence, SkipReason, Tick
from everbeat.core.timeline import Timeline, TimelineCache
from everbeat.store.base import Store

_MICROSECOND = timedelta(microseconds=1)
_DAY = timedelta(days=1)


class LedgerEntry(msgspec.Struct, frozen=True):
    scheduled_for: datetime
    outcome: LedgerOutcome
    reason: SkipReason | None
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
    """Return the time up to which the ledger must be complete: the cursor or, if a tick is overdue, `late_seconds` ago.

    A tick that waits for its jitter or for the catch-up rate is not overdue. Only an active schedule has overdue ticks.
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
        """Return the entries in [from_, to), oldest first, after the given one. Default: from one day ago to one day ahead."""
        moment = await self._store.clock(now=now)
        start = from_ if from_ is not None else max(schedule.created_at, moment - _DAY)
        end = to if to is not None else moment + _DAY
        if end <= start:
            raise InvalidInput.of("to", "must be later than from")
        if after is not None:
            start = max(start, after + _MICROSECOND)
        rows = await self._store.tick_list(schedule.tenant_id, schedule.id, from_=start, to=end, limit=limit + 1)
        # The last range of the previous page may reach into this one: continue where it ends.
        previous = [row for row in rows if after is not None and row.scheduled_for <= after]
        position = max([start - _MICROSECOND, *(row.until for row in previous if row.until is not None)])
        timeline = await self._timeline(schedule)
        merge = _Merge(schedule, timeline, moment, self._late_seconds)
        # A rule that ticks once in years takes long to compute; the tick loop must not wait for it.
        return await asyncio.to_thread(merge.entries, rows[len(previous) :], position, end, limit)

    async def _timeline(self, schedule: Schedule) -> Timeline | None:
        rule = schedule.spec.rule
        calendars: Mapping[str, Calendar] = {}
        if rule.exclude or rule.only:
            calendars = {one.name: one for one in await self._store.calendar_list(schedule.tenant_id)}
        try:
            return self._timelines.get(rule, schedule.id, calendars)
        except InvalidInput:  # a faulty schedule: show only what is recorded
            return None


class _Merge:
    """Merges recorded rows and computed ticks in order. Before `rule_at` another rule was in force: only its rows are shown."""

    def __init__(self, schedule: Schedule, timeline: Timeline | None, now: datetime, late_seconds: float) -> None:
        self._schedule = schedule
        self._timeline = timeline
        self._now = now
        self._accounted = accounted_until(schedule, now, late_seconds)

    def entries(self, rows: list[Tick], position: datetime, end: datetime, limit: int) -> list[LedgerEntry]:
        entries: list[LedgerEntry] = []
        pending = list(reversed(rows))
        while len(entries) < limit:
            row = pending[-1] if pending else None
            if row is None and len(rows) >= limit:
                break
            tick = self._next(position, end if row is None else min(end, row.scheduled_for + _MICROSECOND))
            if row is not None and (tick is None or row.scheduled_for <= tick.at):
                entries.append(_recorded(row))
                position = max(position, row.until or row.scheduled_for)
                pending.pop()
            elif tick is not None:
                entries.append(self._computed(tick))
                position = tick.at
            else:
                break
        return entries

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
        reason = tick.skip
        if tick.at <= self._accounted:
            return LedgerEntry(tick.at, "missing", reason)
        if self._schedule.status is Status.PAUSED:
            return LedgerEntry(tick.at, "skipped", reason or SkipReason.PAUSED)
        return LedgerEntry(tick.at, "upcoming", reason)


def _recorded(tick: Tick) -> LedgerEntry:
    return LedgerEntry(
        scheduled_for=tick.scheduled_for,
        outcome=tick.outcome.value,
        reason=tick.reason,
        task_id=tick.task_id,
        fired_at=tick.fired_at if tick.task_id is not None else None,
        until=tick.until,
        count=tick.count,
    )
