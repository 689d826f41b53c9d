"""schedule_find: by name and id, within one tenant, with the database's time and the response stored under a key."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from everbeat.core.rules import DstFold, DstGap, Rule, TriggerKind
from everbeat.core.schedules import DEFAULT_TENANT, CatchUp, Overlap, Retry, RetryKind, Status
from everbeat.core.targets import HttpTarget
from everbeat.store.base import Store
from tests.factories import NOW, OTHER_TENANT, every, insert, make_schedule, minutes

FULL = make_schedule(
    "full",
    tenant_id=DEFAULT_TENANT,
    rule=Rule(
        kind=TriggerKind.CRON,
        expression="0 9 * * MON",
        timezone="Europe/Berlin",
        gap=DstGap.SKIP,
        fold=DstFold.BOTH,
        exclude=("holidays",),
        only=("office", "trade-days"),
        starts_at=NOW,
        ends_at=datetime(2030, 1, 1, 0, 0, 0, 123456, tzinfo=UTC),
    ),
    target=HttpTarget(url="https://example.com/ü", headers={"x": '"quoted"'}),
    payload='{"emoji":"🎈","nul":"\\u0000","n":[1,2.5,null]}'.encode(),
    description="line one\nline two 'quoted' \\ done",
    overlap=Overlap.ALLOW,
    max_concurrent=3,
    catch_up=CatchUp.ALL,
    misfire_grace_seconds=1.5,
    jitter_seconds=0.25,
    priority=7,
    max_attempts=9,
    retry=Retry(kind=RetryKind.LINEAR, base_seconds=2.5, factor=1, max_seconds=10, jitter=False),
    timeout_seconds=12.5,
    labels={"team": "ops", "note": "Grüße"},
    due_at=NOW + minutes(0.5),
    last_tick_at=NOW - minutes(3),
    note="a note",
)


async def test_schedule_find_returns_every_field_as_written(store: Store) -> None:
    anchored = make_schedule("anchored", rule=every(90, anchor=NOW.replace(microsecond=1)))
    await insert(store, FULL, anchored)
    found = await store.schedule_find(DEFAULT_TENANT, names=["full", "anchored"])
    assert sorted(found.schedules, key=lambda one: one.spec.name) == [anchored, FULL]


async def test_schedule_find_by_name_and_id_returns_each_schedule_once(store: Store) -> None:
    schedule = make_schedule()
    await insert(store, schedule)
    found = await store.schedule_find(DEFAULT_TENANT, names=["job", "other"], ids=[schedule.id, uuid4()])
    assert found.schedules == [schedule]


async def test_schedule_find_never_finds_another_tenants_name_or_id(store: Store) -> None:
    theirs = make_schedule(tenant_id=OTHER_TENANT)
    await insert(store, theirs, tenant_id=OTHER_TENANT)
    assert (await store.schedule_find(DEFAULT_TENANT, names=["job"], ids=[theirs.id])).schedules == []
    assert (await store.schedule_find(OTHER_TENANT, names=["job"])).schedules == [theirs]


async def test_schedule_find_returns_the_clock(store: Store) -> None:
    assert (await store.schedule_find(DEFAULT_TENANT, names=["job"], now=NOW)).now == NOW
    assert abs((await store.schedule_find(DEFAULT_TENANT)).now - datetime.now(UTC)) < minutes(1)


@pytest.mark.parametrize("status", list(Status))
async def test_schedule_find_returns_each_status(store: Store, status: Status) -> None:
    schedule = make_schedule(at=NOW if status is Status.ACTIVE else None, status=status, fault="broken")
    await insert(store, schedule)
    assert (await store.schedule_find(DEFAULT_TENANT, names=["job"])).schedules == [schedule]


async def test_clock_is_the_database_clock_unless_a_test_sets_it(store: Store) -> None:
    assert await store.clock(now=NOW) == NOW
    assert abs(await store.clock() - datetime.now(UTC)) < minutes(1)
