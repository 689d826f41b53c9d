"""Operations on calendars, and how a change of a calendar affects the schedules that use it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from everbeat.core.errors import Conflict, InvalidInput, NotFound
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.calendars import CalendarService
from everbeat.store.base import Store
from everbeat.store.values import Notice
from tests.factories import NOW, OTHER_TENANT, SteppedNode, ledger, minutes

WEEKEND = {"weekdays": ["SAT", "SUN"]}
MONDAYS = {"weekdays": ["MON"]}
NOON = "0 12 * * *"
DAY = timedelta(days=1)


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


@pytest.fixture
def service(node: SteppedNode) -> CalendarService:
    return CalendarService(node.store, node.schedules)


async def test_put_creates_replaces_and_counts_revisions(service: CalendarService) -> None:
    first, is_new = await service.put(DEFAULT_TENANT, "closed", WEEKEND, now=NOW)
    assert (first.revision, is_new) == (1, True)
    again, is_new = await service.put(DEFAULT_TENANT, "closed", WEEKEND, now=NOW)
    assert (again, is_new) == (first, False)
    second, is_new = await service.put(DEFAULT_TENANT, "closed", MONDAYS, now=NOW)
    assert (second.revision, is_new) == (2, False)
    assert await service.get(DEFAULT_TENANT, "closed") == second


async def test_a_change_moves_the_next_ticks_of_the_schedules_that_use_it(node: SteppedNode, service: CalendarService) -> None:
    await service.put(DEFAULT_TENANT, "closed", WEEKEND, now=NOW)
    await node.put("user", cron=NOON, calendars={"exclude": ["closed"]})
    await node.put("other", cron=NOON)
    notices: list[Notice] = []
    node.store.subscribe(notices.append)
    await service.put(DEFAULT_TENANT, "closed", {"weekdays": ["TUE", "WED"]}, now=NOW)
    user, other = await node.schedules.get(DEFAULT_TENANT, "user"), await node.schedules.get(DEFAULT_TENANT, "other")
    assert (user.next_tick_at, user.revision) == (NOW + 3 * DAY, 2)
    assert (other.next_tick_at, other.revision) == (NOW + DAY, 1)
    assert Notice.CALENDARS in notices


async def test_a_change_applies_from_now_on_and_excluded_days_are_recorded(node: SteppedNode, service: CalendarService) -> None:
    await service.put(DEFAULT_TENANT, "closed", WEEKEND, now=NOW)
    job = await node.put("user", cron=NOON, calendars={"exclude": ["closed"]}, overlap="allow")
    for day in range(1, 9):
        await node.step(NOW + day * DAY)
    reasons = [(str(tick.reason or tick.outcome), tick.count) for tick in await ledger(node.store, job.id)]
    assert reasons == [("fired", 1)] * 4 + [("calendar", 2)] + [("fired", 1)] * 2
    count = await node.count(from_=NOW)
    assert (count.expected, count.missing) == (8, 0)


async def test_a_change_does_not_move_a_paused_schedule(node: SteppedNode, service: CalendarService) -> None:
    await service.put(DEFAULT_TENANT, "closed", WEEKEND, now=NOW)
    await node.put("user", cron=NOON, calendars={"only": ["closed"]})
    paused = await node.schedules.pause(DEFAULT_TENANT, "user", note=None, now=NOW)
    await service.put(DEFAULT_TENANT, "closed", MONDAYS, now=NOW)
    assert await node.schedules.get(DEFAULT_TENANT, "user") == paused


async def test_a_calendar_in_use_cannot_be_deleted(node: SteppedNode, service: CalendarService) -> None:
    await service.put(DEFAULT_TENANT, "closed", WEEKEND, now=NOW)
    await node.put("user", cron=NOON, calendars={"exclude": ["closed"]})
    with pytest.raises(Conflict, match="the calendar is used by 1 schedule"):
        await service.delete(DEFAULT_TENANT, "closed")
    await node.schedules.delete(DEFAULT_TENANT, "user")
    await service.delete(DEFAULT_TENANT, "closed")
    with pytest.raises(NotFound):
        await service.get(DEFAULT_TENANT, "closed")


async def test_another_tenants_calendar_is_not_found(node: SteppedNode, service: CalendarService) -> None:
    await service.put(DEFAULT_TENANT, "closed", WEEKEND, now=NOW)
    with pytest.raises(NotFound):
        await service.get(OTHER_TENANT, "closed")
    with pytest.raises(NotFound):
        await service.delete(OTHER_TENANT, "closed")
    assert await service.page(OTHER_TENANT, after_name=None, limit=10) == []


async def test_pages_are_ordered_by_name(service: CalendarService) -> None:
    for name in ("b", "a", "c"):
        await service.put(DEFAULT_TENANT, name, WEEKEND, now=NOW)
    assert [one.name for one in await service.page(DEFAULT_TENANT, after_name=None, limit=2)] == ["a", "b"]
    assert [one.name for one in await service.page(DEFAULT_TENANT, after_name="b", limit=2)] == ["c"]


@pytest.mark.parametrize(("name", "definition"), [("bad name", WEEKEND), ("closed", ["SAT"]), ("closed", {"weekdays": ["X"]})])
async def test_an_invalid_calendar_is_refused(service: CalendarService, name: str, definition: object) -> None:
    with pytest.raises(InvalidInput):
        await service.put(DEFAULT_TENANT, name, definition, now=NOW)


async def test_a_missing_calendar_makes_only_its_schedule_faulty(node: SteppedNode, service: CalendarService) -> None:
    await service.put(DEFAULT_TENANT, "closed", WEEKEND, now=NOW)
    await node.put("user", calendars={"exclude": ["closed"]})
    await node.put("other")
    await node.store.calendar_delete(DEFAULT_TENANT, "closed")
    await node.step(NOW + minutes(1))
    (faulty,) = await node.store.schedule_faulty(None, limit=10)
    assert faulty.spec.name == "user"
    assert "closed" in str(faulty.fault)
    other = await node.schedules.get(DEFAULT_TENANT, "other")
    assert len(await ledger(node.store, other.id)) == 1
