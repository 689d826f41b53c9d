"""tick_fire: ledger, task and position change in one transaction, and only for the owner of the partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest

from everbeat.core.schedules import DEFAULT_TENANT, Overlap, Schedule, Status
from everbeat.core.targets import WorkerTarget
from everbeat.core.tenants import TenantQuotas
from everbeat.core.ticks import Outcome, SkipReason
from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.values import Fired, FireResult, Firing, TenantWrite
from tests.factories import (
    NOW,
    OTHER_TENANT,
    claim,
    complete,
    count_rows,
    execute_raw,
    find,
    firing_of,
    insert,
    ledger,
    ledger_summary,
    make_schedule,
    minutes,
    node_heartbeat,
    open_second_store,
    own_all_partitions,
    seconds,
    skip,
)

NODE = UUID(int=1)
OTHER_NODE = UUID(int=2)


async def fire(store: Store, *firings: Firing, node: UUID = NODE, **more: Any) -> list[Fired]:
    return (await store.tick_fire(node, firings, **{"now": NOW, **more})).fired


async def insert_and_own(store: Store, *schedules: Schedule) -> None:
    await insert(store, *schedules)
    await own_all_partitions(store, NODE)


async def is_unchanged(store: Store, schedule: Schedule) -> bool:
    """Whether a firing changed nothing."""
    tasks = await count_rows(store, "tasks", schedule.id)
    return await find(store, schedule) == schedule and await ledger(store, schedule.id) == [] and tasks == 0


async def test_tick_fire_lowers_a_priority_that_the_tenant_may_not_use(store: Store) -> None:
    (tenant,) = await store.tenant_find(ids=[DEFAULT_TENANT])
    quotas = TenantQuotas(min_priority=50)
    await store.tenant_write([TenantWrite(msgspec.structs.replace(tenant, quotas=quotas), expected=tenant.revision)], now=NOW)
    schedules = [make_schedule(f"job-{priority}", priority=priority) for priority in (5, 50, 90)]
    await insert_and_own(store, *schedules, theirs := make_schedule("theirs", priority=5, tenant_id=OTHER_TENANT))
    firings = [firing_of(one) for one in (*schedules, theirs)]
    result = await store.tick_fire(NODE, firings, now=NOW)
    assert sorted(change.priority or 0 for change in result.changes) == [5, 50, 50, 90]
    tasks = await store.task_find(DEFAULT_TENANT, [firing.task_id for firing in firings if firing.task_id is not None])
    assert sorted(task.priority for task in tasks) == [50, 50, 90]


async def test_tick_fire_writes_ledger_task_and_position_together(store: Store) -> None:
    schedule = make_schedule(payload=b'{"a":1}', priority=5, target=WorkerTarget(type="mail", queue="slow"))
    await insert_and_own(store, schedule)
    firing = firing_of(schedule)
    assert await fire(store, firing) == [Fired(schedule.id, Outcome.FIRED, None, NOW)]
    (tick,) = await ledger(store, schedule.id)
    assert (tick.scheduled_for, tick.outcome, tick.task_id, tick.fired_at) == (NOW, Outcome.FIRED, firing.task_id, NOW)
    assert (tick.node, tick.epoch, tick.until, tick.count) == (NODE, 1, None, 1)
    moved = await find(store, schedule)
    assert (moved.next_tick_at, moved.due_at, moved.cursor_at, moved.last_tick_at) == (*[NOW + minutes(1)] * 2, NOW, NOW)
    assert (moved.revision, moved.status) == (schedule.revision, Status.ACTIVE)
    (task,) = await claim(store, "slow")
    assert (task.id, task.type, bytes(task.payload), task.scheduled_for) == (firing.task_id, "mail", b'{"a":1}', NOW)


async def test_tick_fire_of_an_empty_batch_returns_the_time(store: Store) -> None:
    assert await store.tick_fire(NODE, [], now=NOW) == FireResult(NOW, [], frozenset(), frozenset(), [])


async def test_tick_fire_uses_the_database_clock(store: Store) -> None:
    moment = await store.clock()
    schedule = make_schedule(at=moment - seconds(1))
    await insert(store, schedule)
    await store.partition_renew(node_heartbeat(NODE, lease_seconds=60), frozenset({schedule.partition}))
    result = await store.tick_fire(NODE, [firing_of(schedule)])
    assert [one.outcome for one in result.fired] == [Outcome.FIRED]
    assert moment <= result.now <= moment + minutes(1)


async def test_tick_fire_records_no_firing_before_its_tick_when_the_clock_steps_back_meanwhile(postgres_url: str) -> None:
    """The statement began before the step, so the tick was due. `stepped.clock_timestamp` is the clock after the step."""
    moment = datetime.now(UTC)
    store, schedule = PostgresStore(postgres_url, listen=False), make_schedule(at=moment - seconds(1))
    await insert(store, schedule)
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(
        "CREATE SCHEMA stepped; CREATE FUNCTION stepped.clock_timestamp() RETURNS timestamptz LANGUAGE sql "
        "AS $$ SELECT now() - interval '1 hour' $$; "
        f"ALTER DATABASE {urlsplit(postgres_url).path.lstrip('/')} SET search_path = stepped, pg_catalog, public"
    )
    await store.close()
    store = PostgresStore(postgres_url, listen=False)
    await store.partition_renew(node_heartbeat(NODE, lease_seconds=60), frozenset({schedule.partition}))
    assert len((await store.tick_fire(NODE, [firing_of(schedule)])).fired) == 1
    await store.close()
    ((scheduled_for, fired_at),) = await connection.fetch("SELECT scheduled_for, fired_at FROM ticks")
    await connection.close()
    assert scheduled_for <= fired_at <= datetime.now(UTC)


async def test_tick_fire_skips_a_tick_that_overlaps_with_an_unfinished_task(store: Store) -> None:
    schedule = make_schedule()
    await insert_and_own(store, schedule)
    await fire(store, firing_of(schedule))
    second = await find(store, schedule)
    await own_all_partitions(store, NODE, now=NOW + minutes(1))
    fired = await fire(store, firing_of(second), now=NOW + minutes(1))
    assert fired == [Fired(schedule.id, Outcome.SKIPPED, SkipReason.OVERLAP, NOW + minutes(1))]
    assert ledger_summary(await ledger(store, schedule.id)) == [(0, "fired", 1), (60, "overlap", 1)]
    assert await count_rows(store, "tasks") == 1


async def test_tick_fire_continues_when_the_previous_task_has_finished(store: Store) -> None:
    schedule = make_schedule()
    await insert_and_own(store, schedule)
    await fire(store, firing_of(schedule))
    await complete(store, *await claim(store))
    await own_all_partitions(store, NODE, now=NOW + minutes(1))
    (fired,) = await fire(store, firing_of(await find(store, schedule)), now=NOW + minutes(1))
    assert fired.outcome is Outcome.FIRED


async def test_tick_fire_allows_unfinished_tasks_up_to_the_limit_of_the_schedule(store: Store) -> None:
    schedule = make_schedule(overlap=Overlap.ALLOW, max_concurrent=2)
    await insert_and_own(store, schedule)
    for number in range(4):
        now = NOW + minutes(number)
        await own_all_partitions(store, NODE, now=now)
        await fire(store, firing_of(await find(store, schedule)), now=now)
    outcomes = [line for _, line, _ in ledger_summary(await ledger(store, schedule.id))]
    assert outcomes == ["fired", "fired", "overlap", "overlap"]


async def test_tick_fire_records_skipped_ranges_with_the_tick(store: Store) -> None:
    schedule = make_schedule(tenant_id=OTHER_TENANT)
    await insert(store, schedule, tenant_id=OTHER_TENANT)
    await own_all_partitions(store, NODE)
    skips = (skip(NOW - minutes(9), NOW - minutes(5), 5), skip(NOW - minutes(2), reason=SkipReason.DST_GAP))
    await fire(store, firing_of(schedule, skips=skips))
    assert ledger_summary(await ledger(store, schedule.id, OTHER_TENANT)) == [
        (-540, "misfire", 5),
        (-120, "dst_gap", 1),
        (0, "fired", 1),
    ]
    first, second, _ = await ledger(store, schedule.id, OTHER_TENANT)
    assert (first.until, second.until) == (NOW - minutes(5), None)
    assert (first.node, first.epoch, first.fired_at) == (NODE, 1, NOW)
    tenants = await execute_raw(store, "SELECT DISTINCT tenant_id FROM ticks")
    assert [UUID(bytes=one) if isinstance(one, bytes) else one for (one,) in tenants] == [OTHER_TENANT]


async def test_tick_fire_can_record_skips_without_a_tick(store: Store) -> None:
    schedule = make_schedule(last_tick_at=NOW - minutes(5))
    await insert_and_own(store, schedule)
    skips = (skip(NOW - minutes(1), NOW, 2),)
    assert await fire(store, firing_of(schedule, fires=None, skips=skips)) == [Fired(schedule.id, None, None, None)]
    assert ledger_summary(await ledger(store, schedule.id)) == [(-60, "misfire", 2)]
    assert await count_rows(store, "tasks") == 0
    moved = await find(store, schedule)
    assert (moved.next_tick_at, moved.last_tick_at) == (NOW + minutes(1), NOW - minutes(5))


async def test_tick_fire_finishes_a_schedule_without_a_next_tick(store: Store) -> None:
    schedule = make_schedule()
    await insert_and_own(store, schedule)
    await fire(store, firing_of(schedule, next_tick_at=None, due_at=None))
    done = await find(store, schedule)
    assert (done.status, done.next_tick_at, done.due_at, done.last_tick_at) == (Status.FINISHED, None, None, NOW)


async def take_over(store: Store, _schedule: Schedule) -> None:
    await own_all_partitions(store, OTHER_NODE, now=NOW + seconds(11))


async def expire_lease(store: Store, _schedule: Schedule) -> None:
    await own_all_partitions(store, NODE, now=NOW - seconds(10))


async def release(store: Store, _schedule: Schedule) -> None:
    await store.partition_release(NODE)


async def pause(store: Store, schedule: Schedule) -> None:
    await execute_raw(store, "UPDATE schedules SET status = 'paused' WHERE id = ?", schedule.id)


async def delete(store: Store, schedule: Schedule) -> None:
    await store.schedule_delete(schedule.tenant_id, [schedule.id])


async def nothing(_store: Store, _schedule: Schedule) -> None:
    """Change nothing."""


REFUSALS: dict[str, tuple[Callable[[Store, Schedule], Any], dict[str, Any], dict[str, Any]]] = {
    "not due yet": (nothing, {}, {"now": NOW - seconds(1)}),
    "another revision": (nothing, {"revision": 2}, {}),
    "another position": (nothing, {"expected": NOW - minutes(1)}, {}),
    "an older epoch": (nothing, {"epoch": 0}, {}),
    "a newer epoch": (nothing, {"epoch": 2}, {}),
    "another partition's epoch": (nothing, {"partition": 300}, {}),
    "not the owner": (nothing, {}, {"node": OTHER_NODE}),
    "taken over": (take_over, {}, {"now": NOW + seconds(11)}),
    "expired lease": (nothing, {}, {"now": NOW + seconds(10)}),
    "lease ending now": (expire_lease, {}, {}),
    "released": (release, {}, {}),
}


@pytest.mark.parametrize("case", list(REFUSALS))
async def test_tick_fire_without_a_valid_partition_lease_changes_nothing(store: Store, case: str) -> None:
    before, wrong, call = REFUSALS[case]
    schedule = make_schedule()
    await insert_and_own(store, schedule)
    await before(store, schedule)
    firing = firing_of(schedule, **wrong, skips=(skip(NOW - minutes(1)),))
    assert await fire(store, firing, **call) == []
    assert await is_unchanged(store, schedule)


@pytest.mark.parametrize("before", [pause, delete])
async def test_tick_fire_of_an_inactive_or_deleted_schedule_creates_nothing(
    store: Store, before: Callable[[Store, Schedule], Any]
) -> None:
    schedule = make_schedule()
    await insert_and_own(store, schedule)
    await before(store, schedule)
    assert await fire(store, firing_of(schedule, skips=(skip(NOW - minutes(1)),))) == []
    assert await count_rows(store, "tasks") == await count_rows(store, "ticks") == 0


async def test_tick_fire_waits_for_due_at_even_when_the_tick_is_past(store: Store) -> None:
    schedule = make_schedule(due_at=NOW + seconds(2))
    await insert_and_own(store, schedule)
    assert await fire(store, firing_of(schedule), now=NOW + seconds(1)) == []
    assert len(await fire(store, firing_of(schedule), now=NOW + seconds(2))) == 1


async def test_tick_fire_of_a_batch_with_rejected_firings_fires_the_others(store: Store) -> None:
    schedules = [make_schedule(f"job-{number}") for number in range(6)]
    await insert_and_own(store, *schedules)
    wrong: list[dict[str, Any]] = [{}, {"epoch": 9}, {}, {"revision": 9}, {"expected": NOW - minutes(1)}, {}]
    batch = [firing_of(schedule, **more) for schedule, more in zip(schedules, wrong, strict=True)]
    accepted = {schedules[number].id for number in (0, 2, 5)}
    assert {one.schedule_id for one in await fire(store, *batch)} == accepted
    for schedule in schedules:
        assert await is_unchanged(store, schedule) is (schedule.id not in accepted)


@pytest.mark.parametrize("days", [-240, 400], ids=["eight months ago", "next year"])
async def test_tick_fire_creates_a_missing_month(store: Store, days: int) -> None:
    moment = NOW + minutes(60 * 24 * days)
    schedule = make_schedule(at=moment)
    await insert(store, schedule)
    await own_all_partitions(store, NODE, now=max(NOW, moment))
    skips = (skip(moment - minutes(60 * 24 * 40), moment - minutes(1), 9),)
    await fire(store, firing_of(schedule, skips=skips), now=max(NOW, moment))
    assert [tick.count for tick in await ledger(store, schedule.id)] == [9, 1]


# The three guards, each tested with the other two disabled.


async def test_the_epoch_alone_stops_a_replaced_owner(store: Store) -> None:
    schedule = make_schedule()
    await insert_and_own(store, schedule)
    later = NOW + seconds(11)
    await own_all_partitions(store, OTHER_NODE, now=later)
    # Neither the position nor the ledger contains a firing.
    assert await fire(store, firing_of(schedule, epoch=1), now=later) == []
    assert await fire(store, firing_of(schedule, epoch=2), now=later) == []
    assert await is_unchanged(store, schedule)
    assert len(await fire(store, firing_of(schedule, epoch=2), node=OTHER_NODE, now=later)) == 1


async def test_the_position_alone_stops_a_second_firing_by_the_current_owner(store: Store) -> None:
    schedule = make_schedule(overlap=Overlap.ALLOW)
    await insert_and_own(store, schedule)
    await own_all_partitions(store, NODE, lease_seconds=600)
    await fire(store, firing_of(schedule))
    await execute_raw(store, "DELETE FROM ticks")
    # Late enough that the next tick is due too: only the position distinguishes the two firings.
    assert await fire(store, firing_of(schedule), now=NOW + minutes(1)) == []
    assert (await count_rows(store, "ticks"), await count_rows(store, "tasks")) == (0, 1)


async def test_the_ledger_alone_stops_a_second_task_when_the_position_was_set_back(store: Store) -> None:
    schedule = make_schedule(overlap=Overlap.ALLOW)
    await insert_and_own(store, schedule)
    await fire(store, firing_of(schedule))
    await execute_raw(store, "UPDATE schedules SET next_tick_at = ?, due_at = ?", NOW, NOW)
    assert await fire(store, firing_of(schedule)) == [Fired(schedule.id, None, None, None)]
    assert (await count_rows(store, "ticks"), await count_rows(store, "tasks")) == (1, 1)
    assert (await find(store, schedule)).next_tick_at == NOW + minutes(1)


async def test_concurrent_firings_of_the_same_ticks_create_one_task_each(store: Store) -> None:
    second_store = open_second_store(store)
    schedule = make_schedule(overlap=Overlap.ALLOW)
    await insert_and_own(store, schedule)
    await own_all_partitions(store, NODE, lease_seconds=36_000)
    for number in range(50):
        now = NOW + minutes(number)
        current = await find(store, schedule)
        results = await _fire_concurrently(
            [(store, current), (second_store, current), (store, current), (second_store, current)], now
        )
        assert sum(len(fired) for fired in results) == 1
    await second_store.close()
    assert await count_rows(store, "tasks") == await count_rows(store, "ticks") == 50
    assert await store.tick_doubled(DEFAULT_TENANT, [schedule.id], from_=NOW, to=NOW + minutes(60)) == {}


async def test_two_concurrent_owners_create_one_task_even_if_both_leases_appear_valid(store: Store) -> None:
    """The owner of the partition changes while both nodes are about to fire."""
    second_store = open_second_store(store)
    schedules = [make_schedule(f"job-{number}") for number in range(20)]
    await insert(store, *schedules)
    await own_all_partitions(store, NODE)
    ours = [firing_of(one, epoch=1) for one in schedules]
    theirs = [firing_of(one, epoch=2) for one in reversed(schedules)]
    await execute_raw(store, "UPDATE partitions SET owner = ?, epoch = 2, lease_until = ?", OTHER_NODE, NOW + seconds(10))
    one, two = await asyncio.gather(fire(store, *ours), fire(second_store, *theirs, node=OTHER_NODE))
    await second_store.close()
    assert (len(one), len(two)) == (0, 20)
    assert await count_rows(store, "tasks") == 20


async def _fire_concurrently(attempts: list[tuple[Store, Schedule]], now: Any) -> list[list[Fired]]:
    return await asyncio.gather(
        *(fire(store, firing_of(schedule, task_id=uuid4(), due_at=now), now=now) for store, schedule in attempts)
    )
