"""The forecast: how many ticks the schedules of a tenant have in the next 24 hours, for the heat map of the dashboard.

It is computed from the rules, in a thread and within a time limit, and kept for a few minutes. With many schedules it covers
only the first ones in order of name, and says so.
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

CELL = timedelta(minutes=5)
CELLS = 288

_PAGE = 500
_MAX_SCHEDULES = 20_000
_MAX_SECONDS = 2.0
_KEPT_SECONDS = 300.0
# The seconds of schedules with more ticks a day are not listed: they tick in nearly every cell anyway.
_MAX_LISTED = 300
_MICROSECOND = timedelta(microseconds=1)


class Forecast(NamedTuple):
    """Ticks by cell of five minutes from `begin`. `fullest_at`: the instant with most ticks, of schedules that tick rarely."""

    begin: datetime
    cells: list[int]
    fullest_at: datetime | None
    fullest: int
    schedules: int
    is_complete: bool


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
        begin = now.replace(minute=now.minute // 5 * 5, second=0, microsecond=0)
        calendars = {one.name: one for one in await self._store.calendar_list(tenant_id)}
        cells, instants, count = [0] * CELLS, Counter[datetime](), 0
        name: str | None = None
        deadline = time.monotonic() + _MAX_SECONDS
        active = ScheduleFilter(status=Status.ACTIVE.value)
        while time.monotonic() < deadline and count < _MAX_SCHEDULES:
            page = await self._store.schedule_list(tenant_id, active, after_name=name, limit=_PAGE)
            count += await asyncio.to_thread(self._add, page, calendars, begin, cells, instants, deadline)
            if len(page) < _PAGE:
                break
            name = page[-1].spec.name
        else:
            return _forecast(begin, cells, instants, count, is_complete=False)
        return _forecast(begin, cells, instants, count, is_complete=time.monotonic() < deadline)

    def _add(
        self,
        schedules: Sequence[Schedule],
        calendars: Mapping[str, Calendar],
        begin: datetime,
        cells: list[int],
        instants: Counter[datetime],
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
            _add_ticks(timeline, begin, cells, instants)
        return len(schedules)


def _add_ticks(timeline: Timeline, begin: datetime, cells: list[int], instants: Counter[datetime]) -> None:
    end = begin + CELL * CELLS
    if timeline.count_between(begin - _MICROSECOND, end - _MICROSECOND) > _MAX_LISTED:
        for index in range(CELLS):
            start = begin + CELL * index - _MICROSECOND
            cells[index] += timeline.count_between(start, start + CELL)
        return
    for at, skip in timeline.occurrences(begin - _MICROSECOND, end - _MICROSECOND):
        if skip is None:
            cells[(at - begin) // CELL] += 1
            instants[at] += 1


def _forecast(begin: datetime, cells: list[int], instants: Counter[datetime], count: int, *, is_complete: bool) -> Forecast:
    (fullest_at, fullest) = max(instants.items(), key=lambda one: (one[1], -one[0].timestamp()), default=(None, 0))
    return Forecast(begin, cells, fullest_at, fullest, count, is_complete)
