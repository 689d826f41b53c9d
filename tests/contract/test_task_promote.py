"""task_promote and task_reschedule: delayed tasks become ready when they are due, and not before."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, NewTask, TaskChangeKind, TaskState
from everbeat.store.base import Store
from everbeat.store.values import PromoteResult, QueueDepth
from tests.factories import NOW, OTHER_TENANT, claim, complete, execute_raw, make_task, minutes, open_second_store, seconds


async def delayed(store: Store, *delays: float, queue: str = "default") -> list[NewTask]:
    tasks = [make_task(str(delay), queue=queue, delay_seconds=delay) for delay in delays]
    await store.task_submit(tasks, now=NOW)
    return tasks


async def test_task_promote_makes_due_tasks_ready_and_returns_the_next_time(store: Store) -> None:
    await delayed(store, 10, 30, queue="a")
    await delayed(store, 20, 40, queue="b")
    await delayed(store, 60, queue="c")
    assert await store.task_promote(limit=10, now=NOW) == PromoteResult(NOW, frozenset(), 0, NOW + seconds(10), [])
    at = NOW + seconds(20)
    assert (await store.task_promote(limit=10, now=at))[:4] == (at, frozenset({"a", "b"}), 2, NOW + seconds(30))
    assert [task.type for task in await claim(store, "a", "b", "c", now=at)] == ["10", "20"]
    at = NOW + seconds(60)
    assert (await store.task_promote(limit=10, now=at))[:4] == (at, frozenset({"a", "b", "c"}), 3, None)
    assert await store.task_promote(limit=10, now=at) == PromoteResult(at, frozenset(), 0, None, [])


async def test_task_promote_is_exact_to_the_microsecond(store: Store) -> None:
    await delayed(store, 0.5)
    assert (await store.task_promote(limit=10, now=NOW + seconds(0.499999))).count == 0
    assert (await store.task_promote(limit=10, now=NOW + seconds(0.5))).count == 1


async def test_task_promote_works_in_batches_oldest_first(store: Store) -> None:
    await delayed(store, 5, 4, 3, 2, 1)
    at = NOW + minutes(1)
    counts = []
    for _ in range(3):
        promoted = await store.task_promote(limit=2, now=at)
        counts.append(promoted.count)
        assert promoted.next_at is None, "overdue tasks do not count as the next tasks"
    assert counts == [2, 2, 1]
    assert await store.task_depths() == [QueueDepth("default", "ready", 5)]


async def test_task_promote_in_batches_begins_with_the_oldest(store: Store) -> None:
    await delayed(store, 3, 1, 2)
    await store.task_promote(limit=2, now=NOW + minutes(1))
    assert {task.type for task in await claim(store, now=NOW + minutes(1))} == {"1", "2"}


async def test_task_promote_covers_every_tenant(store: Store) -> None:
    await store.task_submit([make_task(tenant_id=OTHER_TENANT, delay_seconds=1)], now=NOW)
    assert (await store.task_promote(limit=10, now=NOW + seconds(1))).count == 1


async def test_task_promote_does_not_change_held_and_running_tasks(store: Store) -> None:
    await store.task_submit([make_task(), make_task(schedule_id=UUID(int=9))], now=NOW - minutes(1))
    await execute_raw(store, "UPDATE tasks SET state = 'held' WHERE schedule_id = ?", UUID(int=9))
    await claim(store)
    assert await store.task_promote(limit=10, now=NOW) == PromoteResult(NOW, frozenset(), 0, None, [])


async def test_task_promote_makes_a_failed_task_ready_for_its_retry(store: Store) -> None:
    await store.task_submit([make_task()], now=NOW)
    (task,) = await claim(store)
    later = AttemptEnd(task.id, DEFAULT_TENANT, 1, AttemptOutcome.FAILED, TaskState.SCHEDULED, NOW + seconds(8), None)
    await store.task_end([later], is_expired=False, now=NOW)
    assert (await store.task_promote(limit=10, now=NOW + seconds(7))).next_at == NOW + seconds(8)
    assert (await store.task_promote(limit=10, now=NOW + seconds(8))).queues == {"default"}
    (again,) = await claim(store, now=NOW + seconds(8))
    assert (again.attempt, again.fence) == (2, 2)


async def test_task_promote_under_concurrency_promotes_each_task_once(store: Store) -> None:
    await delayed(store, *(number / 1000 for number in range(1, 201)))
    stores = [store, *(open_second_store(store) for _ in range(3))]
    at = NOW + minutes(1)

    async def work(one: Store) -> int:
        total = 0
        for _ in range(20):
            total += (await one.task_promote(limit=7, now=at)).count
        return total

    counts = await asyncio.gather(*(work(one) for one in stores))
    for second_store in stores[1:]:
        await second_store.close()
    left = 0
    while (count := (await store.task_promote(limit=100, now=at)).count) > 0:
        left += count
    assert sum(counts) + left == 200
    assert await store.task_depths() == [QueueDepth("default", "ready", 200)]


async def test_task_reschedule_moves_a_task_that_has_not_started(store: Store) -> None:
    (task,) = await delayed(store, 60)
    states = []
    for at in (NOW + minutes(5), NOW, NOW - minutes(5), NOW + seconds(0.000001)):
        (change,) = await store.task_reschedule(DEFAULT_TENANT, task.id, at, now=NOW)
        assert (change.id, change.kind) == (task.id, TaskChangeKind.RESCHEDULED)
        (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
        assert found.run_at == at
        states.append(found.state.value)
    assert states == ["scheduled", "ready", "ready", "scheduled"]


@pytest.mark.parametrize("state", ["held", "running", "completed", "cancelled", "other tenant", "unknown"])
async def test_task_reschedule_does_not_change_other_tasks(store: Store, state: str) -> None:
    task = make_task(schedule_id=UUID(int=9))
    await store.task_submit([task], now=NOW)
    if state == "held":
        await execute_raw(store, "UPDATE tasks SET state = 'held'")
    elif state == "cancelled":
        await store.task_cancel(DEFAULT_TENANT, [task.id], now=NOW)
    elif state in ("running", "completed"):
        (claimed,) = await claim(store)
        if state == "completed":
            await complete(store, claimed)
    tenant_id = OTHER_TENANT if state == "other tenant" else DEFAULT_TENANT
    id_ = UUID(int=5) if state == "unknown" else task.id
    before = await store.task_find(DEFAULT_TENANT, [task.id])
    assert await store.task_reschedule(tenant_id, id_, NOW + minutes(5), now=NOW) == []
    assert await store.task_find(DEFAULT_TENANT, [task.id]) == before
