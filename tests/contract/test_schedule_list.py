"""schedule_list, _match_count, _search, _count, _delete, _faulty and _using_calendar."""

from __future__ import annotations

import pytest

from everbeat.core.schedules import DEFAULT_TENANT, Status
from everbeat.core.targets import HttpTarget, WorkerTarget
from everbeat.store.base import Store
from everbeat.store.values import ScheduleFilter
from tests.factories import (
    NOW,
    OTHER_TENANT,
    count_rows,
    cron,
    find,
    firing_of,
    insert,
    ledger,
    make_schedule,
    minutes,
    own_all_partitions,
)

ALL_SCHEDULES = ScheduleFilter()
HTTP = HttpTarget(url="https://example.com")


async def names(store: Store, filter_: ScheduleFilter = ALL_SCHEDULES, after: str | None = None, limit: int = 50) -> list[str]:
    found = await store.schedule_list(DEFAULT_TENANT, filter_, after_name=after, limit=limit)
    return [one.spec.name for one in found]


async def test_schedule_list_pages_by_name_in_the_same_order_on_every_database(store: Store) -> None:
    given = ["b", "a", "Z", "a-1", "a.1", "a_1", "a:1", "10", "9", "aa"]
    await insert(store, *(make_schedule(name) for name in given))
    seen: list[str] = []
    while page := await names(store, after=seen[-1] if seen else None, limit=3):
        seen += page
    assert seen == sorted(given)


@pytest.mark.parametrize(
    ("filter_", "expected"),
    [
        (ScheduleFilter(status="paused"), ["paused"]),
        (ScheduleFilter(name_prefix="re"), ["report-1", "report-2"]),
        (ScheduleFilter(name_prefix="re%"), []),
        (ScheduleFilter(queue="slow"), ["report-2"]),
        (ScheduleFilter(type="mail"), ["report-2"]),
        (ScheduleFilter(target="http"), ["hook"]),
        (ScheduleFilter(name_prefix="report", queue="default"), ["report-1"]),
    ],
)
async def test_schedule_list_filters(store: Store, filter_: ScheduleFilter, expected: list[str]) -> None:
    await insert(
        store,
        make_schedule("paused", at=None),
        make_schedule("hook", target=HTTP),
        make_schedule("report-1"),
        make_schedule("report-2", target=WorkerTarget(type="mail", queue="slow")),
    )
    assert await names(store, filter_) == expected


async def test_schedule_match_count_counts_those_that_match_up_to_its_limit(store: Store) -> None:
    await insert(store, make_schedule("paused", at=None), make_schedule("report-1"), make_schedule("report-2"))
    await insert(store, make_schedule("report-3", tenant_id=OTHER_TENANT), tenant_id=OTHER_TENANT)
    for filter_, expected in ((ALL_SCHEDULES, 3), (ScheduleFilter(name_prefix="re"), 2), (ScheduleFilter(queue="none"), 0)):
        assert await store.schedule_match_count(DEFAULT_TENANT, filter_, limit=50) == expected
        assert await store.schedule_match_count(DEFAULT_TENANT, filter_, limit=1) == min(1, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("port", ["Report-b", "export", "report-a"]),
        ("PORT-", ["Report-b", "report-a"]),
        ("re", ["Report-b", "report-a"]),
        *((text, []) for text in ("p_rt", "%", "theirs")),
    ],
)
async def test_schedule_search_finds_names_that_contain_a_text(store: Store, text: str, expected: list[str]) -> None:
    await insert(store, *(make_schedule(name) for name in ("report-a", "Report-b", "export", "mail")))
    await insert(store, make_schedule("theirs", tenant_id=OTHER_TENANT), tenant_id=OTHER_TENANT)
    assert await store.schedule_search(DEFAULT_TENANT, text, limit=10) == expected
    assert await store.schedule_search(DEFAULT_TENANT, text, limit=2) == expected[:2]


async def test_schedule_list_returns_only_schedules_of_the_tenant(store: Store) -> None:
    await insert(store, make_schedule("theirs", tenant_id=OTHER_TENANT), tenant_id=OTHER_TENANT)
    assert await names(store) == []


async def test_schedule_count_counts_the_tenants_schedules_by_status(store: Store) -> None:
    await insert(store, make_schedule("a"), make_schedule("b"), make_schedule("c", at=None))
    await insert(store, make_schedule("d", at=None, status=Status.FINISHED))
    await insert(store, make_schedule("theirs", tenant_id=OTHER_TENANT), tenant_id=OTHER_TENANT)
    assert await store.schedule_count(DEFAULT_TENANT) == {"active": 2, "paused": 1, "finished": 1}


async def test_schedule_delete_keeps_the_ledger_and_the_tasks(store: Store) -> None:
    schedule = make_schedule()
    await insert(store, schedule)
    node = schedule.id
    await own_all_partitions(store, node)
    await store.tick_fire(node, [firing_of(schedule)], now=NOW)
    assert await store.schedule_delete(DEFAULT_TENANT, [schedule.id]) == 1
    assert await names(store) == []
    assert len(await ledger(store, schedule.id)) == await count_rows(store, "tasks", schedule.id) == 1


async def test_schedule_delete_of_another_tenants_schedule_deletes_nothing(store: Store) -> None:
    theirs = make_schedule(tenant_id=OTHER_TENANT)
    await insert(store, theirs, tenant_id=OTHER_TENANT)
    assert await store.schedule_delete(DEFAULT_TENANT, [theirs.id]) == 0
    assert await find(store, theirs) == theirs


async def test_schedule_faulty_lists_faulty_schedules(store: Store) -> None:
    mine = make_schedule("mine", at=None, fault="unknown zone")
    theirs = make_schedule("theirs", at=None, fault="unknown zone", tenant_id=OTHER_TENANT)
    await insert(store, mine, make_schedule("fine"))
    await insert(store, theirs, tenant_id=OTHER_TENANT)
    assert await store.schedule_faulty(DEFAULT_TENANT, limit=10) == [mine]
    assert await store.schedule_faulty(None, limit=10) == sorted([mine, theirs], key=lambda one: one.id)
    assert len(await store.schedule_faulty(None, limit=1)) == 1


async def test_schedule_using_calendar_returns_the_tenants_schedules_that_use_it(store: Store) -> None:
    excluding = make_schedule("excluding", rule=cron("* * * * *", exclude=("holidays",)))
    keeping = make_schedule("keeping", rule=cron("* * * * *", only=("office", "holidays")))
    other = make_schedule("other", rule=cron("* * * * *", exclude=("bank-holidays", "holidays-2")))
    theirs = make_schedule("theirs", rule=excluding.spec.rule, tenant_id=OTHER_TENANT)
    await insert(store, excluding, keeping, other, make_schedule("none"))
    await insert(store, theirs, tenant_id=OTHER_TENANT)
    found = await store.schedule_using_calendar(DEFAULT_TENANT, "holidays")
    assert sorted(one.spec.name for one in found) == ["excluding", "keeping"]


async def test_schedule_overdue_lists_overdue_active_schedules_most_overdue_first(store: Store) -> None:
    late, later = make_schedule("late", at=NOW - minutes(2)), make_schedule("later", at=NOW - minutes(9))
    waiting = make_schedule("waiting", at=NOW - minutes(9), due_at=NOW + minutes(1))
    await insert(store, late, later, waiting, make_schedule("soon"), make_schedule("paused", at=None))
    assert await store.schedule_overdue(late_seconds=60, limit=10, now=NOW) == [later, late]
    assert await store.schedule_overdue(late_seconds=60, limit=1, now=NOW) == [later]
    assert await store.schedule_overdue(late_seconds=600, limit=10, now=NOW) == []
