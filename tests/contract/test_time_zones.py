"""schedule_page_end, schedule_zones, schedule_in_zones, zone_list, zone_write: zones of schedules, and versions of zones."""

from __future__ import annotations

from uuid import UUID

from everbeat.core.changes import ScheduleWrite
from everbeat.core.rules import DstGap, Rule, TriggerKind
from everbeat.core.schedules import DEFAULT_TENANT, Status
from everbeat.core.ticks import Skip, SkipReason
from everbeat.store.base import Store
from everbeat.store.values import ZoneInUse, ZoneVersion
from tests.factories import NOW, OTHER_TENANT, every, find, insert, ledger, make_schedule, minutes

LAST_ID = UUID(int=2**128 - 1)
PREFIXED = "CRON_TZ=Asia/Tokyo 0 9 * * *"


def cron(expression: str, timezone: str) -> Rule:
    return Rule(kind=TriggerKind.CRON, expression=expression, timezone=timezone)


async def insert_some(store: Store) -> dict[str, object]:
    plain = make_schedule("plain", rule=cron("0 9 * * *", "Europe/Berlin"))
    same = make_schedule("same", rule=cron("0 10 * * *", "Europe/Berlin"))
    prefixed = make_schedule("prefixed", rule=cron(PREFIXED, "UTC"))
    interval = make_schedule("interval", rule=every(60))
    paused = make_schedule("paused", rule=cron("0 9 * * *", "Asia/Kolkata"), status=Status.PAUSED)
    await insert(store, plain, same, prefixed, interval, paused)
    foreign = make_schedule("foreign", tenant_id=OTHER_TENANT, rule=cron("0 9 * * *", "Europe/Berlin"))
    await insert(store, foreign, tenant_id=OTHER_TENANT)
    return {"Europe/Berlin": {plain.id, same.id, foreign.id, prefixed.id}, "Asia/Tokyo": {prefixed.id}}


async def test_schedule_zones_are_those_of_active_schedules_of_all_tenants(store: Store) -> None:
    await insert_some(store)
    assert set(await store.schedule_zones(after=None, until=LAST_ID)) == {
        ZoneInUse("Europe/Berlin", TriggerKind.CRON, None),
        ZoneInUse("UTC", TriggerKind.CRON, PREFIXED),
    }


async def test_schedule_page_end_walks_over_all_schedules(store: Store) -> None:
    await insert_some(store)
    first = await store.schedule_page_end(after=None, limit=4)
    last = await store.schedule_page_end(after=first, limit=4)
    assert first is not None
    assert last is not None
    assert first < last
    assert await store.schedule_page_end(after=last, limit=4) is None
    pages = [await store.schedule_zones(after=None, until=first), await store.schedule_zones(after=first, until=last)]
    assert {*pages[0], *pages[1]} == set(await store.schedule_zones(after=None, until=LAST_ID))


async def test_schedule_in_zones_returns_the_candidates_of_a_range(store: Store) -> None:
    expected = await insert_some(store)
    for zone, ids in expected.items():
        found = await store.schedule_in_zones([zone], after=None, until=LAST_ID)
        assert {one.id for one in found} == ids
    middle = await store.schedule_page_end(after=None, limit=3)
    assert middle is not None
    page = await store.schedule_in_zones(["Europe/Berlin"], after=None, until=middle)
    rest = await store.schedule_in_zones(["Europe/Berlin"], after=middle, until=LAST_ID)
    assert 0 < len(page) <= 3
    assert [one.id for one in (*page, *rest)] == sorted(expected["Europe/Berlin"])  # type: ignore[call-overload]


async def test_zone_write_stores_each_version_once(store: Store) -> None:
    assert await store.zone_write({"Europe/Berlin": "a", "Asia/Tokyo": "x"}, now=NOW) == 2
    assert await store.zone_write({"Europe/Berlin": "b", "Asia/Tokyo": "x"}, now=NOW + minutes(1)) == 1
    assert await store.zone_write({"Europe/Berlin": "a"}, now=NOW + minutes(2)) == 0


async def test_zone_list_returns_the_versions_of_a_zone_oldest_first(store: Store) -> None:
    await store.zone_write({"Europe/Berlin": "b", "Asia/Tokyo": "x"}, now=NOW)
    await store.zone_write({"Europe/Berlin": "a"}, now=NOW + minutes(1))
    assert await store.zone_list(["Europe/Berlin", "Europe/Paris"]) == [
        ZoneVersion("Europe/Berlin", "b", NOW),
        ZoneVersion("Europe/Berlin", "a", NOW + minutes(1)),
    ]
    assert await store.zone_list([]) == []


async def test_schedule_write_keeps_a_moved_tick_and_its_reason_is_allowed_in_the_ledger(store: Store) -> None:
    rule = Rule(kind=TriggerKind.RRULE, expression="FREQ=DAILY", anchor=NOW, gap=DstGap.SHIFT)
    schedule = make_schedule("moved", rule=rule, moved_tick_at=NOW + minutes(3))
    skip = Skip(NOW, NOW, 1, SkipReason.ZONE_CHANGED)
    assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(schedule, skips=(skip,))], now=NOW)
    found = await find(store, schedule)
    assert (found.moved_tick_at, found.spec.rule.gap) == (NOW + minutes(3), DstGap.SHIFT)
    assert [tick.reason for tick in await ledger(store, schedule.id)] == [SkipReason.ZONE_CHANGED]
