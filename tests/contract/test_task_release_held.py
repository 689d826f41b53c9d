"""task_release_held: held tasks are released in the order of their ticks, up to their schedule's limit. Pauses hold tasks."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.changes import ScheduleWrite
from everbeat.core.schedules import DEFAULT_TENANT, Overlap, Schedule, Status
from everbeat.core.targets import WorkerTarget
from everbeat.core.tasks import NewTask, Origin, TaskRecord, TaskState
from everbeat.store.base import Store
from everbeat.store.values import FireResult, HeldReleaseResult, TaskFilter
from tests.factories import (
    NOW,
    OTHER_TENANT,
    changed,
    claim,
    complete,
    execute_raw,
    find,
    firing_of,
    insert,
    make_schedule,
    make_task,
    minutes,
    open_second_store,
    own_all_partitions,
)

NODE = UUID(int=1)


async def make(store: Store, overlap: Overlap = Overlap.QUEUE, **more: Any) -> Schedule:
    schedule = make_schedule(more.pop("name", "job"), overlap=overlap, **more)
    await insert(store, schedule, tenant_id=schedule.tenant_id)
    return schedule


async def fire(store: Store, *schedules: Schedule, times: int = 1) -> FireResult:
    """Fire the next ticks of each schedule, each at its own time."""
    for _ in range(times):
        firings = [firing_of(await find(store, schedule)) for schedule in schedules]
        now = max(firing.expected for firing in firings)
        epochs = await own_all_partitions(store, NODE, now=now)
        result = await store.tick_fire(NODE, [one._replace(epoch=epochs[one.partition]) for one in firings], now=now)
    return result


async def tasks_of(store: Store, schedule: Schedule, *, live: bool = True) -> list[TaskRecord]:
    """Return the tasks of the schedule in the order of their ticks."""
    filter_ = TaskFilter(schedule_id=schedule.id)
    scan = await store.task_list(schedule.tenant_id, filter_, before=None, limit=2000, live=live)
    return sorted(scan.tasks, key=lambda task: task.scheduled_for or NOW)


async def states_of(store: Store, schedule: Schedule) -> list[str]:
    return [task.state.value for task in await tasks_of(store, schedule)]


async def release_held(store: Store, *schedules: Schedule, limit: int = 100) -> frozenset[str]:
    wanted = [one.id for one in schedules] or None
    return (await store.task_release_held(wanted, limit=limit, now=NOW + minutes(60))).queues


def of_schedule(schedule: Schedule, origin: Origin, **more: Any) -> NewTask:
    return make_task(schedule_id=schedule.id, origin=origin, scheduled_for=NOW - minutes(99), **more)


# Firing holds tasks


async def test_tick_fire_holds_a_task_that_must_wait_for_another(store: Store) -> None:
    schedule = await make(store, target=WorkerTarget(type="work", queue="slow"))
    first = await fire(store, schedule)
    assert (first.queues, first.held_schedule_ids) == (frozenset({"slow"}), frozenset())
    second = await fire(store, schedule)
    assert (second.queues, second.held_schedule_ids) == (frozenset(), frozenset({schedule.id}))
    assert [one.outcome for one in second.fired] == ["fired"]
    assert await states_of(store, schedule) == ["ready", "held"]


async def test_tick_fire_of_a_batch_holds_tasks_by_the_policy_of_each_schedule(store: Store) -> None:
    policies = [Overlap.QUEUE, Overlap.CANCEL_PREVIOUS, Overlap.SKIP, Overlap.ALLOW]
    schedules = [
        await make(store, policy, name=policy.value, target=WorkerTarget(type="work", queue=policy.value))
        for policy in policies
    ]
    first = await fire(store, *schedules)
    assert (first.queues, first.held_schedule_ids) == (frozenset(policy.value for policy in policies), frozenset())
    second = await fire(store, *schedules)
    assert (second.queues, second.held_schedule_ids) == (frozenset({"allow"}), frozenset(one.id for one in schedules[:2]))
    assert {one.schedule_id: one.reason for one in second.fired} == {
        schedules[0].id: None, schedules[1].id: None, schedules[2].id: "overlap", schedules[3].id: None
    }  # fmt: skip


async def test_tick_fire_does_not_count_backfilled_tasks(store: Store) -> None:
    schedules = [await make(store, policy, name=policy.value) for policy in (Overlap.SKIP, Overlap.QUEUE)]
    await store.task_submit([of_schedule(one, Origin.BACKFILL) for one in schedules for _ in range(5)], now=NOW)
    result = await fire(store, *schedules)
    assert [one.outcome for one in result.fired] == ["fired", "fired"]
    assert result.held_schedule_ids == frozenset()


@pytest.mark.parametrize("origin", [Origin.TRIGGER, Origin.TICK, Origin.REPLAY])
async def test_tick_fire_counts_every_other_task_of_the_schedule(store: Store, origin: Origin) -> None:
    skipping, queueing = await make(store, Overlap.SKIP, name="skip"), await make(store, name="queue")
    await store.task_submit([of_schedule(one, origin) for one in (skipping, queueing)], now=NOW)
    result = await fire(store, skipping, queueing)
    assert {one.schedule_id: one.reason for one in result.fired} == {skipping.id: "overlap", queueing.id: None}
    assert result.held_schedule_ids == {queueing.id}


@pytest.mark.parametrize("overlap", [Overlap.QUEUE, Overlap.CANCEL_PREVIOUS])
async def test_tick_fire_holds_at_most_a_thousand_tasks(store: Store, overlap: Overlap) -> None:
    schedule = await make(store, overlap, max_concurrent=2)
    await store.task_submit([of_schedule(schedule, Origin.TICK) for _ in range(1001)], now=NOW)
    assert (await fire(store, schedule)).held_schedule_ids == {schedule.id}
    full = await fire(store, schedule)
    assert ([one.reason for one in full.fired], full.held_schedule_ids) == (["overlap"], frozenset())


# Releasing held tasks


async def test_task_release_held_releases_in_the_order_of_the_ticks(store: Store) -> None:
    schedule = await make(store, target=WorkerTarget(type="work", queue="slow"))
    await fire(store, schedule, times=4)
    ticks = []
    while tasks := await claim(store, "slow", now=NOW):
        assert len(tasks) == 1
        ticks += [task.scheduled_for for task in tasks]
        assert await release_held(store, schedule) == frozenset(), "the limit of the schedule is reached"
        assert {one.schedule_id for one in (await complete(store, *tasks)).changes} == {schedule.id}
        assert await release_held(store, schedule) == ({"slow"} if len(ticks) < 4 else frozenset())
    assert ticks == [NOW + minutes(number) for number in range(4)]


async def test_task_release_held_releases_up_to_the_limit(store: Store) -> None:
    schedule = await make(store, max_concurrent=3)
    await fire(store, schedule, times=9)
    assert await states_of(store, schedule) == ["ready"] * 3 + ["held"] * 6
    await complete(store, *await claim(store, limit=2))
    assert await release_held(store, schedule) == {"default"}
    assert await states_of(store, schedule) == ["ready"] * 3 + ["held"] * 4


async def test_task_release_held_counts_tasks_waiting_for_a_retry(store: Store) -> None:
    schedule = await make(store)
    await fire(store, schedule, times=2)
    await execute_raw(store, "UPDATE tasks SET state = 'scheduled' WHERE state = 'ready'")
    assert await release_held(store, schedule) == frozenset()


async def test_task_release_held_does_not_count_backfilled_tasks(store: Store) -> None:
    schedule = await make(store)
    await fire(store, schedule, times=2)
    await store.task_submit([of_schedule(schedule, Origin.BACKFILL, queue="slow") for _ in range(3)], now=NOW)
    await complete(store, *await claim(store))
    assert await release_held(store, schedule) == {"default"}


async def test_task_release_held_of_a_delayed_task_makes_it_scheduled(store: Store) -> None:
    schedule = await make(store)
    await fire(store, schedule, times=2)
    await execute_raw(store, "UPDATE tasks SET run_at = ? WHERE state = 'held'", NOW + minutes(61))
    await complete(store, *await claim(store))
    await release_held(store, schedule)
    assert await states_of(store, schedule) == ["scheduled"]


@pytest.mark.parametrize("for_all_schedules", [True, False])
async def test_task_release_held_does_not_release_tasks_of_a_paused_schedule(store: Store, for_all_schedules: bool) -> None:
    schedule = await make(store)
    await fire(store, schedule, times=2)
    await complete(store, *await claim(store))
    await execute_raw(store, "UPDATE schedules SET status = 'paused'")
    given = () if for_all_schedules else (schedule,)
    assert await release_held(store, *given) == frozenset()
    await execute_raw(store, "UPDATE schedules SET status = 'active'")
    assert await release_held(store, *given) == {"default"}


@pytest.mark.parametrize("for_all_schedules", [True, False])
async def test_task_release_held_releases_tasks_of_a_deleted_schedule_one_by_one(store: Store, for_all_schedules: bool) -> None:
    schedule = await make(store, max_concurrent=2)
    await fire(store, schedule, times=5)
    await store.schedule_delete(DEFAULT_TENANT, [schedule.id])
    given = () if for_all_schedules else (schedule,)
    done = 0
    while tasks := await claim(store):
        done += len(tasks)
        await complete(store, *tasks)
        await release_held(store, *given)
        assert (await states_of(store, schedule)).count("ready") <= 1
    assert done == 5


async def test_task_release_held_releases_tasks_of_a_finished_schedule(store: Store) -> None:
    schedule = await make(store)
    await fire(store, schedule, times=2)
    await execute_raw(store, "UPDATE schedules SET status = 'finished', next_tick_at = NULL, due_at = NULL")
    await complete(store, *await claim(store))
    assert await release_held(store, schedule) == {"default"}


async def test_task_release_held_releases_only_tasks_of_the_given_schedules(store: Store) -> None:
    one, two = [await make(store, name=name) for name in "ab"]
    await fire(store, one, two, times=2)
    await complete(store, *await claim(store))
    await release_held(store, one)
    assert (await states_of(store, one), await states_of(store, two)) == (["ready"], ["held"])
    assert await store.task_release_held([], limit=10, now=NOW) == HeldReleaseResult(frozenset(), [])
    assert await store.task_release_held([UUID(int=5)], limit=10, now=NOW) == HeldReleaseResult(frozenset(), [])
    await release_held(store)
    assert await states_of(store, two) == ["ready"]


async def test_task_release_held_of_all_schedules_works_in_batches(store: Store) -> None:
    schedules = [await make(store, name=str(number)) for number in range(5)]
    await fire(store, *schedules, times=2)
    await complete(store, *await claim(store))
    for _ in range(3):
        await release_held(store, limit=2)
    assert [await states_of(store, one) for one in schedules] == [["ready"]] * 5


async def test_task_release_held_of_all_schedules_is_not_blocked_by_tasks_that_must_wait(store: Store) -> None:
    names = ("full", "paused", "deleted", "requested", "free")
    full, paused, deleted, requested, free = schedules = [
        await make(store, Overlap.CANCEL_PREVIOUS if name == "requested" else Overlap.QUEUE, name=name, id=UUID(int=number))
        for number, name in enumerate(names, start=1)
    ]
    await fire(store, *schedules, times=2)
    running = await claim(store)
    await release_held(store, requested)
    await complete(store, *(task for task in running if task.schedule_id in (paused.id, free.id)))
    await execute_raw(store, "UPDATE schedules SET status = 'paused' WHERE id = ?", paused.id)
    await store.schedule_delete(DEFAULT_TENANT, [deleted.id])
    assert await release_held(store, limit=1) == {"default"}
    assert await states_of(store, free) == ["ready"]
    assert await states_of(store, paused) == ["held"]
    for other in (full, deleted, requested):
        assert await states_of(store, other) == ["running", "held"]


async def test_task_release_held_covers_every_tenant(store: Store) -> None:
    schedule = await make(store, tenant_id=OTHER_TENANT)
    await fire(store, schedule, times=2)
    await execute_raw(store, "DELETE FROM tasks WHERE state = 'ready'")
    assert await release_held(store) == {"default"}


# Replacing the earlier task


async def test_task_release_held_replaces_tasks_that_have_not_started(store: Store) -> None:
    schedule = await make(store, Overlap.CANCEL_PREVIOUS)
    await fire(store, schedule, times=3)
    assert await release_held(store, schedule) == {"default"}
    (left,) = await tasks_of(store, schedule)
    assert (left.state, left.scheduled_for) == (TaskState.READY, NOW + minutes(2))
    replaced = await tasks_of(store, schedule, live=False)
    assert [(task.state.value, task.reason) for task in replaced] == [
        ("cancelled", "replaced by a newer tick of its schedule")
    ] * 2  # fmt: skip


@pytest.mark.parametrize("for_all_schedules", [True, False])
async def test_task_release_held_requests_the_running_task_to_stop_and_keeps_the_newest_waiting(
    store: Store, for_all_schedules: bool
) -> None:
    schedule = await make(store, Overlap.CANCEL_PREVIOUS)
    await fire(store, schedule)
    running = await claim(store)
    await fire(store, schedule, times=2)
    given = () if for_all_schedules else (schedule,)
    assert await release_held(store, *given) == frozenset()
    first, last = await tasks_of(store, schedule)
    assert (first.state, first.cancel_requested) == (TaskState.RUNNING, True)
    assert (last.state, last.scheduled_for) == (TaskState.HELD, NOW + minutes(2))
    await complete(store, *running)
    assert await release_held(store, *given) == {"default"}
    assert await states_of(store, schedule) == ["ready"]


async def test_task_release_held_does_not_replace_triggered_or_backfilled_tasks(store: Store) -> None:
    schedule = await make(store, Overlap.CANCEL_PREVIOUS)
    await store.task_submit([of_schedule(schedule, origin) for origin in (Origin.TRIGGER, Origin.BACKFILL)], now=NOW)
    await fire(store, schedule, times=2)
    await release_held(store, schedule)
    assert sorted((task.origin.value, task.state.value) for task in await tasks_of(store, schedule)) == [
        ("backfill", "ready"), ("tick", "held"), ("trigger", "ready")
    ]  # fmt: skip


async def test_task_release_held_does_not_replace_with_the_queue_policy(store: Store) -> None:
    schedule = await make(store, Overlap.QUEUE)
    await fire(store, schedule, times=3)
    await release_held(store, schedule)
    assert await states_of(store, schedule) == ["ready", "held", "held"]


# Concurrency


async def test_task_release_held_under_concurrency_keeps_the_limit(store: Store) -> None:
    schedules = [await make(store, name=str(number), max_concurrent=2) for number in range(4)]
    await fire(store, *schedules, times=12)
    stores = [store, *(open_second_store(store) for _ in range(3))]
    while tasks := await claim(store, limit=5):
        await complete(store, *tasks)
        ids = [one.id for one in schedules]
        given = [None, ids, ids[::-1], None]
        await asyncio.gather(
            *(
                one.task_release_held(wanted, limit=100, now=NOW + minutes(60))
                for one, wanted in zip(stores, given, strict=True)
            )
        )
        for schedule in schedules:
            states = await states_of(store, schedule)
            assert states.count("ready") == min(2, len(states))
            assert states == sorted(states, reverse=True), "the oldest are released first"
    for second_store in stores[1:]:
        await second_store.close()


async def test_task_release_held_and_concurrent_tick_fire_keep_the_limit(store: Store) -> None:
    second_store = open_second_store(store)
    schedule = await make(store)
    await fire(store, schedule)
    for _ in range(15):
        await asyncio.gather(fire(second_store, schedule), release_held(store, schedule), release_held(store))
        assert (await states_of(store, schedule)).count("ready") <= 1
        await complete(store, *await claim(store))
        await asyncio.gather(fire(second_store, schedule), release_held(store, schedule))
        states = await states_of(store, schedule)
        assert states.count("ready") <= 1
        await release_held(store, schedule)
        assert (await states_of(store, schedule)).count("ready") == 1
    await second_store.close()


# Pauses


async def pause(store: Store, schedule: Schedule) -> Schedule:
    known = await find(store, schedule)
    paused = changed(known, status=Status.PAUSED, next_tick_at=None, due_at=None)
    assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(paused, known)], now=NOW)
    return paused


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.ALLOW, Overlap.QUEUE])
async def test_schedule_write_of_a_pause_holds_tasks_that_have_not_started(store: Store, overlap: Overlap) -> None:
    schedule, other = await make(store, overlap, max_concurrent=3), await make(store, name="other")
    await fire(store, schedule, times=3)
    await claim(store, limit=1)
    await execute_raw(store, "UPDATE tasks SET state = 'scheduled' WHERE scheduled_for = ?", NOW + minutes(1))
    await fire(store, other)
    others = [of_schedule(schedule, origin, queue="slow") for origin in (Origin.TRIGGER, Origin.BACKFILL)]
    await store.task_submit(others, now=NOW)
    paused = await pause(store, schedule)
    found = [(task.origin.value, task.state.value) for task in await tasks_of(store, schedule)]
    assert sorted(found[:2]) == [("backfill", "ready"), ("trigger", "ready")]
    assert found[2:] == [("tick", "running"), ("tick", "held"), ("tick", "held")]
    assert await states_of(store, other) == ["ready"]
    assert await release_held(store, schedule) == await release_held(store) == frozenset()
    resumed = changed(paused, status=Status.ACTIVE, next_tick_at=NOW + minutes(9), due_at=NOW + minutes(9))
    assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(resumed, paused)], now=NOW)
    assert await release_held(store, schedule) == {"default"}
    # The triggered task and the running task count as two of the three concurrent tasks that the schedule may have.
    assert [task.state.value for task in await tasks_of(store, schedule)][2:] == ["running", "ready", "held"]


async def test_schedule_write_that_is_rejected_holds_nothing(store: Store) -> None:
    schedule = await make(store)
    await fire(store, schedule)
    wrong = changed(schedule, status=Status.PAUSED, next_tick_at=None, due_at=None)
    assert not await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(wrong, schedule)], now=NOW)
    assert await states_of(store, schedule) == ["ready"]
