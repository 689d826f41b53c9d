"""calendar_list, calendar_write and calendar_delete."""

from __future__ import annotations

from everbeat.core.calendars import parse_calendar
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.base import Store
from tests.factories import NOW, OTHER_TENANT

HOLIDAYS = parse_calendar(
    "holidays",
    {
        "description": "Grüße",
        "dates": ["2026-12-24"],
        "weekdays": ["SUN"],
        "yearly": ["01-01"],
        "intervals": [{"from": "2026-05-01T08:00:00", "to": "2026-05-01T09:30:00"}],
    },
)


async def test_calendar_write_returns_whether_the_calendar_is_new(store: Store) -> None:
    assert await store.calendar_write(DEFAULT_TENANT, HOLIDAYS, now=NOW)
    assert not await store.calendar_write(DEFAULT_TENANT, HOLIDAYS, now=NOW)
    assert await store.calendar_write(OTHER_TENANT, HOLIDAYS, now=NOW)


async def test_calendar_list_returns_the_written_calendars_by_name(store: Store) -> None:
    newer = parse_calendar("holidays", {"weekdays": ["MON"]}, revision=2)
    early = parse_calendar("early", {"weekdays": ["MON"]})
    await store.calendar_write(DEFAULT_TENANT, HOLIDAYS, now=NOW)
    assert await store.calendar_list(DEFAULT_TENANT) == [HOLIDAYS]
    await store.calendar_write(DEFAULT_TENANT, newer, now=NOW)
    await store.calendar_write(DEFAULT_TENANT, early, now=NOW)
    assert await store.calendar_list(DEFAULT_TENANT) == [early, newer]
    assert await store.calendar_list(OTHER_TENANT) == []


async def test_calendar_delete_removes_only_calendars_of_the_tenant(store: Store) -> None:
    await store.calendar_write(DEFAULT_TENANT, HOLIDAYS, now=NOW)
    assert await store.calendar_delete(OTHER_TENANT, "holidays") == 0
    assert await store.calendar_delete(DEFAULT_TENANT, "holidays") == 1
    assert await store.calendar_list(DEFAULT_TENANT) == []
