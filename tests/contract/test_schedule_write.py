"""schedule_write: atomic, and only if the revision, position and status are those that the writer has read."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from everbeat.core.changes import ScheduleWrite
from everbeat.core.schedules import DEFAULT_TENANT, PastRule, Schedule, Status
from everbeat.core.ticks import SkipReason
from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.values import IdempotentResponse
from tests.factories import (
    NOW,
    OTHER_TENANT,
    changed,
    cron,
    find,
    insert,
    ledger,
    ledger_summary,
    make_schedule,
    minutes,
    open_second_store,
    seconds,
    skip,
)


async def test_schedule_write_inserts_a_batch(store: Store) -> None:
    batch = [make_schedule(f"job-{number:03}") for number in range(300)]
    await insert(store, *batch)
    found = await store.schedule_find(DEFAULT_TENANT, names=[one.spec.name for one in batch])
    assert sorted(found.schedules, key=lambda one: one.spec.name) == batch


async def test_schedule_write_with_a_taken_name_writes_nothing_of_the_batch(store: Store) -> None:
    await insert(store, make_schedule("taken"))
    batch = [ScheduleWrite(make_schedule("free")), ScheduleWrite(make_schedule("taken"))]
    assert not await store.schedule_write(DEFAULT_TENANT, batch, now=NOW)
    assert (await store.schedule_find(DEFAULT_TENANT, names=["free"])).schedules == []


async def test_schedule_write_allows_two_tenants_to_use_one_name(store: Store) -> None:
    await insert(store, make_schedule("same"))
    await insert(store, make_schedule("same", tenant_id=OTHER_TENANT), tenant_id=OTHER_TENANT)
    assert await store.schedule_count(DEFAULT_TENANT) == await store.schedule_count(OTHER_TENANT) == {"active": 1}


async def test_schedule_write_replaces_the_expected_revision(store: Store) -> None:
    schedule = make_schedule()
    await insert(store, schedule)
    newer = changed(schedule, priority=1, next_tick_at=NOW + minutes(5), due_at=NOW + minutes(5), updated_at=NOW)
    assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(newer, expected=schedule)], now=NOW)
    assert await find(store, schedule) == newer


@pytest.mark.parametrize(
    "seen",
    [
        lambda one: msgspec.structs.replace(one, revision=2),
        lambda one: msgspec.structs.replace(one, next_tick_at=NOW + seconds(1)),
        lambda one: msgspec.structs.replace(one, next_tick_at=None),
        lambda one: msgspec.structs.replace(one, status=Status.PAUSED),
    ],
    ids=["revision", "position", "no-position", "status"],
)
async def test_schedule_write_with_another_expectation_changes_nothing(
    store: Store, seen: Callable[[Schedule], Schedule]
) -> None:
    schedule, unrelated = make_schedule(), make_schedule("unrelated")
    await insert(store, schedule, unrelated)
    writes = [
        ScheduleWrite(changed(unrelated, priority=1), expected=unrelated, skips=(skip(NOW - seconds(5)),)),
        ScheduleWrite(changed(schedule, priority=1), expected=seen(schedule), skips=(skip(NOW - seconds(5)),)),
    ]
    assert not await store.schedule_write(DEFAULT_TENANT, writes, now=NOW)
    assert [await find(store, schedule), await find(store, unrelated)] == [schedule, unrelated]
    assert await ledger(store, schedule.id) == await ledger(store, unrelated.id) == []


async def test_schedule_write_compares_a_missing_position(store: Store) -> None:
    inactive = make_schedule(at=None)
    await insert(store, inactive)
    newer = changed(inactive, status=Status.ACTIVE, next_tick_at=NOW, due_at=NOW)
    assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(newer, expected=inactive)], now=NOW)
    assert await find(store, inactive) == newer


async def test_schedule_write_never_replaces_another_tenants_row(store: Store) -> None:
    theirs = make_schedule(tenant_id=OTHER_TENANT)
    await insert(store, theirs, tenant_id=OTHER_TENANT)
    copied = changed(theirs, tenant_id=DEFAULT_TENANT)
    assert not await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(copied, expected=copied)], now=NOW)
    assert await find(store, theirs) == theirs


async def test_schedule_write_rename_to_a_taken_name_is_reported_and_changes_nothing(store: Store) -> None:
    one, two = make_schedule("one"), make_schedule("two")
    await insert(store, one, two)
    assert not await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(changed(one, name="two"), expected=one)], now=NOW)
    assert await find(store, one) == one


async def test_schedule_write_records_skips_and_the_past_rule(store: Store) -> None:
    schedule = make_schedule()
    await insert(store, schedule)
    past = PastRule(schedule_id=schedule.id, rule=schedule.spec.rule, since=schedule.rule_at, until=NOW)
    newer = changed(schedule, rule=cron("0 0 * * *"), rule_at=NOW)
    skips = (skip(NOW - seconds(40), NOW - seconds(20), 3, SkipReason.PAUSED), skip(NOW, reason=SkipReason.CALENDAR))
    write = ScheduleWrite(newer, expected=schedule, skips=skips, past_rule=past)
    assert await store.schedule_write(DEFAULT_TENANT, [write], now=NOW)
    assert ledger_summary(await ledger(store, schedule.id)) == [(-40, "paused", 3), (0, "calendar", 1)]
    first, second = await ledger(store, schedule.id)
    assert (first.until, first.task_id, first.node, first.epoch, first.fired_at) == (NOW - seconds(20), None, None, None, NOW)
    assert second.until is None
    assert await store.schedule_past_rules(DEFAULT_TENANT, [schedule.id]) == [past]


async def test_schedule_past_rules_are_returned_oldest_first_for_each_schedule(store: Store) -> None:
    one, two = sorted([make_schedule("one"), make_schedule("two")], key=lambda schedule: schedule.id)
    await insert(store, one, two)
    kept = []
    for schedule in (one, two):
        for number in (1, 2):
            since, until = NOW + minutes(number - 1), NOW + minutes(number)
            past = PastRule(schedule_id=schedule.id, rule=cron(f"{number} * * * *"), since=since, until=until)
            newer = changed(await find(store, schedule))
            write = ScheduleWrite(newer, expected=await find(store, schedule), past_rule=past)
            assert await store.schedule_write(DEFAULT_TENANT, [write], now=NOW)
            kept.append(past)
    assert await store.schedule_past_rules(DEFAULT_TENANT, [two.id, one.id]) == kept
    assert await store.schedule_past_rules(DEFAULT_TENANT, [two.id]) == kept[2:]


async def test_schedule_write_creates_the_partition_for_skips_of_a_past_month(store: Store) -> None:
    schedule = make_schedule()
    skips = (skip(NOW - minutes(60 * 24 * 250), NOW, 6000, SkipReason.PAUSED),)
    assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(schedule, skips=skips)], now=NOW)
    assert [tick.count for tick in await ledger(store, schedule.id)] == [6000]


async def test_schedule_write_creates_a_month_that_another_node_removed(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, listen=False)
    second_store = open_second_store(store)
    schedule, old = make_schedule(), NOW - minutes(60 * 24 * 250)
    await store.month_ensure([old])
    await second_store.month_prune(before=NOW, limit=100)
    assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(schedule, skips=(skip(old),))], now=NOW)
    assert len(await ledger(store, schedule.id)) == 1
    await store.close()
    await second_store.close()


RESPONSE = IdempotentResponse(key="key-1", fingerprint=b"\x00\xff", status=201, body=b'{"id": 1}')


async def test_a_response_is_found_by_its_key_for_a_day(store: Store) -> None:
    assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(make_schedule())], response=RESPONSE, now=NOW)
    before, after = NOW + minutes(60 * 24) - seconds(1), NOW + minutes(60 * 24)
    assert (await store.schedule_find(DEFAULT_TENANT, key="key-1", now=before)).response == RESPONSE
    assert (await store.schedule_find(DEFAULT_TENANT, key="key-1", now=after)).response is None
    assert (await store.schedule_find(DEFAULT_TENANT, key="key-2", now=NOW)).response is None
    assert (await store.schedule_find(DEFAULT_TENANT, now=NOW)).response is None


async def test_a_response_of_another_tenant_is_not_found(store: Store) -> None:
    assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(make_schedule())], response=RESPONSE, now=NOW)
    assert (await store.schedule_find(OTHER_TENANT, key="key-1", now=NOW)).response is None


async def test_a_response_with_a_used_key_rolls_back_the_whole_write(store: Store) -> None:
    assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(make_schedule("first"))], response=RESPONSE, now=NOW)
    second = msgspec.structs.replace(RESPONSE, body=b"second")
    assert not await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(make_schedule("second"))], response=second, now=NOW)
    found = await store.schedule_find(DEFAULT_TENANT, names=["second"], key="key-1", now=NOW)
    assert (found.schedules, found.response) == ([], RESPONSE)


async def test_an_expired_response_is_replaced(store: Store) -> None:
    assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(make_schedule("first"))], response=RESPONSE, now=NOW)
    later, second = NOW + minutes(60 * 24), msgspec.structs.replace(RESPONSE, body=b"second")
    assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(make_schedule("second"))], response=second, now=later)
    assert (await store.schedule_find(DEFAULT_TENANT, key="key-1", now=later)).response == second


async def test_idempotent_response_keep_keeps_the_first_response_of_a_key_for_a_day(store: Store) -> None:
    other = msgspec.structs.replace(RESPONSE, body=b"other")
    assert await store.idempotent_response_keep(DEFAULT_TENANT, RESPONSE, now=NOW)
    assert not await store.idempotent_response_keep(DEFAULT_TENANT, other, now=NOW + minutes(60 * 24) - seconds(1))
    assert await store.idempotent_response_find(DEFAULT_TENANT, RESPONSE.key, now=NOW) == RESPONSE
    assert await store.idempotent_response_find(OTHER_TENANT, RESPONSE.key, now=NOW) is None
    assert await store.idempotent_response_keep(DEFAULT_TENANT, other, now=NOW + minutes(60 * 24))
    assert await store.idempotent_response_find(DEFAULT_TENANT, RESPONSE.key, now=NOW + minutes(60 * 24)) == other


async def test_idempotent_response_prune_deletes_expired_responses_in_batches(store: Store) -> None:
    for number in range(5):
        response = msgspec.structs.replace(RESPONSE, key=f"key-{number}")
        write = [ScheduleWrite(make_schedule(f"job-{number}"))]
        assert await store.schedule_write(DEFAULT_TENANT, write, response=response, now=NOW + seconds(number))
    later = NOW + minutes(60 * 24) + seconds(3.5)
    assert [await store.idempotent_response_prune(limit=3, now=later) for _ in range(3)] == [3, 1, 0]
    assert (await store.schedule_find(DEFAULT_TENANT, key="key-4", now=NOW)).response is not None
