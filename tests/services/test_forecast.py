"""The forecast of ticks and the shared audit, which the overview of the dashboard loads after the page."""

from __future__ import annotations

import asyncio

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.timeline import TimelineCache
from everbeat.services.audit import AuditService
from everbeat.services.forecast import CELLS, ForecastService
from everbeat.services.publisher import ChangePublisher
from everbeat.services.schedules import ScheduleService
from everbeat.store.base import Store
from tests.factories import NOW, OTHER_TENANT

TARGET = {"kind": "worker", "type": "work"}


async def test_it_counts_the_ticks_of_the_next_day_by_minute(store: Store) -> None:
    timelines = TimelineCache()
    schedules = ScheduleService(store, timelines, ChangePublisher(store))
    for name, cron in (("one", "7 3 * * *"), ("two", "7 3 * * *"), ("often", "* * * * * *"), ("paused", "* * * * * *")):
        await schedules.put(DEFAULT_TENANT, name, {"cron": cron, "target": TARGET}, now=NOW)
    await schedules.pause(DEFAULT_TENANT, "paused", note=None, now=NOW)
    service = ForecastService(store, timelines)
    found = await service.next_day(DEFAULT_TENANT, now=NOW)
    assert (found.schedules, found.is_complete, len(found.cells)) == (3, True, CELLS)
    assert sorted(set(found.cells)) == [60, 62]
    assert sum(found.cells) == 86_400 + 2
    assert found.fullest_at is not None
    assert (found.fullest_at.hour, found.fullest_at.minute, found.fullest) == (3, 7, 3)
    assert found.fullest_names == ["often", "one", "two"]
    assert (await service.next_day(OTHER_TENANT, now=NOW)).cells == [0] * CELLS
    assert await service.next_day(DEFAULT_TENANT, now=NOW) is found


async def test_many_dashboards_share_the_audit_of_the_last_day(store: Store) -> None:
    timelines = TimelineCache()
    schedules = ScheduleService(store, timelines, ChangePublisher(store))
    await schedules.put(DEFAULT_TENANT, "one", {"cron": "7 3 * * *", "target": TARGET}, now=NOW)
    audit = AuditService(store, timelines, late_seconds=5, retention_days=90)
    first, second = await asyncio.gather(*(audit.last_day(DEFAULT_TENANT, now=NOW) for _ in range(2)))
    assert first is second
    assert first.schedules == []
    assert await audit.last_day(OTHER_TENANT, now=NOW) is not first


async def test_schedules_that_tick_often_have_a_fullest_second_too(store: Store) -> None:
    timelines = TimelineCache()
    schedules = ScheduleService(store, timelines, ChangePublisher(store))
    for name, every in (("a", 5), ("b", 10), ("c", 30)):
        fields = {"every_seconds": every, "anchor": "2026-01-01T00:00:00Z", "target": TARGET}
        await schedules.put(DEFAULT_TENANT, name, fields, now=NOW)
    found = await ForecastService(store, timelines).next_day(DEFAULT_TENANT, now=NOW)
    assert found.fullest_at is not None
    assert found.fullest_at.second % 30 == 0
    assert (found.fullest, found.fullest_names) == (3, ["a", "b", "c"])


async def test_the_fullest_second_is_not_in_the_past(store: Store) -> None:
    now = NOW.replace(second=52)
    timelines = TimelineCache()
    schedules = ScheduleService(store, timelines, ChangePublisher(store))
    for name, cron in (("listed", "*/5 * * * *"), ("often", "*/10 * * * * *")):
        await schedules.put(DEFAULT_TENANT, name, {"cron": cron, "target": TARGET}, now=now)
    found = await ForecastService(store, timelines).next_day(DEFAULT_TENANT, now=now)
    assert found.fullest_at is not None
    assert found.fullest_at >= now
    assert (found.fullest, found.fullest_names) == (2, ["listed", "often"])
