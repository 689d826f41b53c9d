"""The forecast: how many ticks the schedules of a tenant have in the next 24 hours, for the heat map of the dashboard.

It is computed from the rules, in a thread and within a time limit, and kept for a few minutes. Schedules with the same rule are
computed once. With many different rules it covers only the first schedules in order of name, and says so.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from everbeat.core.calendars import Calendar
from everbeat.core.errors import InvalidInput
from everbeat.core.schedules import Schedule, Status
from everbeat.core.timeline import Timeline, TimelineCache
from everbeat.store.base import Store
from everbeat.store.values import ScheduleFilter

CELL = timedelta(minutes=1)
CELLS = 1440

_PAGE = 500
_MAX_SCHEDULES = 20_000
_MAX_SECONDS = 2.0
_KEPT_SECONDS = 300.0
# The ticks of a rule with more ticks a day are counted by minute and not listed: it ticks in nearly every minute anyway.
_MAX_LISTED = 1500
_MAX_NAMES = 5
_MICROSECOND = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)


class Forecast(NamedTuple):
    """Ticks by minute from `begin`. `fullest_at`: the second with most ticks. `fullest_names`: schedules that tick then."""

    begin: datetime
    cells: list[int]
    fullest_at: datetime | None
    fullest: int
    fullest_names: list[str]
    schedules: int
    is_complete: bool


class _RuleTicks:
    """The ticks of one rule by minute, and by second if they are listed. `schedules` and `names`: those with this rule."""

    def __init__(self, timeline: Timeline, begin: datetime) -> None:
        self._timeline = timeline
        self.schedules = 0
        self.names: list[str] = []
        self.cells = Counter[int]()
        self.seconds: set[datetime] = set()
        end = begin + CELL * CELLS
        self._is_listed = timeline.count_between(begin - _MICROSECOND, end - _MICROSECOND) <= _MAX_LISTED
        if not self._is_listed:
            for index in range(CELLS):
                start = begin + CELL * index - _MICROSECOND
                self.cells[index] = timeline.count_between(start, start + CELL)
            return
        for at, skip in timeline.occurrences(begin - _MICROSECOND, end - _MICROSECOND):
            if skip is None:
                self.cells[(at - begin) // CELL] += 1
                self.seconds.add(at.replace(microsecond=0))

    def unlisted_seconds(self, start: datetime) -> set[datetime]:
        """Return the seconds of a minute in which a rule ticks that is not listed."""
        if self._is_listed:
            return set()
        found = self._timeline.occurrences(start - _MICROSECOND, start + CELL - _MICROSECOND)
        return {at.replace(microsecond=0) for at, skip in found if skip is None}

    def ticks_in(self, second: datetime) -> bool:
        if self._is_listed:
            return second in self.seconds
        return self._timeline.count_between(second - _MICROSECOND, second + _SECOND - _MICROSECOND) > 0


class ForecastService:
    def __init__(self, store: Store, timelines: TimelineCache) -> None:
        self._store = store
        self._timelines = timelines
        self._kept: dict[UUID, tuple[float, Forecast]] = {}

    async def next_day(self, tenant_id: UUID, *, now: datetime | None = None) -> Forecast:
        """Return the forecast of the next 24 hours, which may be a few minutes old."""
        kept = self._kept.get(tenant_id)
        if kept is not None and kept[0] > time.monotonic():
            return kept[1]
        forecast = await self._compute(tenant_id, await self._store.clock(now=now))
        if len(self._kept) > 1000:
            self._kept.clear()
        self._kept[tenant_id] = (time.monotonic() + _KEPT_SECONDS, forecast)
        return forecast

    async def _compute(self, tenant_id: UUID, now: datetime) -> Forecast:
        begin = now.replace(second=0, microsecond=0)
        calendars = {one.name: one for one in await self._store.calendar_list(tenant_id)}
        rules: dict[Timeline, _RuleTicks] = {}
        name: str | None = None
        count, deadline, is_complete = 0, time.monotonic() + _MAX_SECONDS, False
        active = ScheduleFilter(status=Status.ACTIVE.value)
        while time.monotonic() < deadline and count < _MAX_SCHEDULES:
            page = await self._store.schedule_list(tenant_id, active, after_name=name, limit=_PAGE)
            added = await asyncio.to_thread(self._add, page, calendars, begin, rules, deadline)
            count += added
            if len(page) < _PAGE:
                is_complete = added == len(page)
                break
            name = page[-1].spec.name
        return await asyncio.to_thread(_forecast, begin, now, list(rules.values()), count, is_complete)

    def _add(
        self,
        schedules: Sequence[Schedule],
        calendars: Mapping[str, Calendar],
        begin: datetime,
        rules: dict[Timeline, _RuleTicks],
        deadline: float,
    ) -> int:
        """Add the ticks of these schedules. Returns how many were added before the deadline."""
        for index, schedule in enumerate(schedules):
            if time.monotonic() > deadline:
                return index
            try:
                timeline = self._timelines.get(schedule.spec.rule, schedule.id, calendars)
            except InvalidInput:  # a faulty schedule
                continue
            ticks = rules.get(timeline)
            if ticks is None:
                ticks = rules[timeline] = _RuleTicks(timeline, begin)
            ticks.schedules += 1
            if len(ticks.names) < _MAX_NAMES:
                ticks.names.append(schedule.spec.name)
        return len(schedules)


def _forecast(begin: datetime, now: datetime, rules: Sequence[_RuleTicks], count: int, is_complete: bool) -> Forecast:
    cells, seconds = [0] * CELLS, Counter[datetime]()
    for rule in rules:
        for index, ticks in rule.cells.items():
            cells[index] += ticks * rule.schedules
        for at in rule.seconds:
            seconds[at] += rule.schedules
    # Rules that are not listed tick often. Their seconds are listed only for the minute with most ticks; a part of the first
    # minute has passed.
    if any(cells):
        start = begin + CELL * max(range(1, CELLS), key=lambda index: cells[index])
        for rule in rules:
            for at in rule.unlisted_seconds(start):
                seconds[at] += rule.schedules
    ahead = [at for at in seconds if at >= now.replace(microsecond=0)]
    fullest_at = max(ahead, key=lambda at: (seconds[at], -at.timestamp()), default=None)
    then = [] if fullest_at is None else [rule for rule in rules if rule.ticks_in(fullest_at)]
    names = sorted(name for rule in then for name in rule.names)[:_MAX_NAMES]
    return Forecast(begin, cells, fullest_at, sum(rule.schedules for rule in then), names, count, is_complete)
