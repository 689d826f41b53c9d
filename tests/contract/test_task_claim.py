"""task_claim, task_complete, task_reap and task_depths: leases and fences on the tasks that firing makes."""

from __future__ import annotations

import asyncio
from datetime import datetime
from uuid import UUID

from everbeat.core.tasks import ClaimedTask
from everbeat.store.base import QueueDepth, Store
from tests.factories import (
    NOW,
    count_rows,
    execute_raw,
    firing_of,
    insert,
    make_schedule,
    minutes,
    open_twin,
    seconds,
    take_all,
)

NODE = UUID(int=1)


async def queue_task(store: Store, name: str, *, at: datetime = NOW, queue: str = "default", priority: int = 100) -> UUID:
    schedule = make_schedule(name, at=at, priority=priority, target={"kind": "worker", "type": name, "queue": queue})
    await insert(store, schedule)
    await take_all(store, NODE)
    firing = firing_of(schedule)
    assert (await store.tick_fire(NODE, [firing], now=NOW)).fired
    return firing.task_id


async def claim(store: Store, *queues: str, limit: int = 10, at: float = 0, worker: str = "worker") -> list[ClaimedTask]:
    return await store.task_claim(worker, queues or ["default"], limit=limit, lease_seconds=30, now=NOW + seconds(at))


async def test_task_claim_takes_by_priority_then_by_age(store: Store) -> None:
    for name, priority, age in (("d", 100, 0), ("c", 100, 5), ("b", 100, 9), ("a", 1, 0)):
        await queue_task(store, name, priority=priority, at=NOW - minutes(age))
    taken = []
    while tasks := await claim(store, limit=1):
        taken += [task.type for task in tasks]
    assert taken == ["a", "b", "c", "d"]


async def test_task_claim_takes_the_most_urgent_of_several_queues(store: Store) -> None:
    await queue_task(store, "slow", queue="slow", priority=5)
    await queue_task(store, "fast", queue="fast", priority=1)
    await queue_task(store, "last", queue="fast", priority=9)
    await queue_task(store, "hidden", queue="hidden", priority=0)
    assert {task.type for task in await claim(store, "slow", "fast", limit=2)} == {"slow", "fast"}


async def test_task_claim_gives_a_lease_a_fence_and_counts_the_attempt(store: Store) -> None:
    id_ = await queue_task(store, "work")
    (task,) = await claim(store)
    assert (task.id, task.attempt, task.fence, task.lease_until) == (id_, 1, 1, NOW + seconds(30))
    assert await claim(store) == []


async def test_task_claim_by_many_at_once_gives_each_task_to_one(store: Store) -> None:
    ids = {await queue_task(store, f"work-{number}") for number in range(12)}
    twins = [open_twin(store) for _ in range(3)]
    taken = await asyncio.gather(*(claim(twin, limit=4) for twin in twins))
    for twin in twins:
        await twin.close()
    claimed = [task.id for tasks in taken for task in tasks]
    # Rows that another claimer has locked are passed over, so a claim may come back with less; nothing comes twice.
    claimed += [task.id for task in await claim(store, limit=12)]
    assert len(claimed) == 12
    assert set(claimed) == ids


async def test_task_complete_moves_the_task_to_history(store: Store) -> None:
    id_ = await queue_task(store, "work")
    (task,) = await claim(store, worker="w1")
    assert await store.task_complete([(task.id, task.fence)], now=NOW + seconds(5)) == [id_]
    assert await count_rows(store, "tasks") == 0
    ((state, worker, attempt),) = await execute_raw(store, "SELECT state, worker, attempt FROM task_history WHERE id = ?", id_)
    assert (state, worker, attempt) == ("completed", "w1", 1)


async def test_task_complete_a_second_time_changes_nothing(store: Store) -> None:
    await queue_task(store, "work")
    (task,) = await claim(store)
    await store.task_complete([(task.id, task.fence)], now=NOW)
    assert await store.task_complete([(task.id, task.fence)], now=NOW + seconds(1)) == []
    assert await count_rows(store, "task_history") == 1


async def test_task_complete_with_a_stale_fence_changes_nothing(store: Store) -> None:
    await queue_task(store, "work")
    (old,) = await claim(store, worker="slow")
    assert await store.task_reap(limit=10, now=NOW + seconds(31)) == 1
    (new,) = await claim(store, worker="fresh", at=31)
    assert (new.fence, new.attempt) == (2, 2)
    assert await store.task_complete([(old.id, old.fence)], now=NOW + seconds(32)) == []
    assert await count_rows(store, "task_history") == 0
    assert await store.task_complete([(new.id, new.fence)], now=NOW + seconds(32)) == [new.id]


async def test_task_complete_of_a_reaped_task_changes_nothing(store: Store) -> None:
    await queue_task(store, "work")
    (task,) = await claim(store)
    await store.task_reap(limit=10, now=NOW + seconds(31))
    assert await store.task_complete([(task.id, task.fence)], now=NOW + seconds(31)) == []
    assert await store.task_depths() == [QueueDepth("default", "ready", 1)]


async def test_task_complete_of_a_batch_finishes_those_it_may(store: Store) -> None:
    await queue_task(store, "one")
    await queue_task(store, "two")
    one, two = await claim(store)
    done = await store.task_complete([(one.id, one.fence), (two.id, two.fence + 1), (NODE, 1)], now=NOW)
    assert done == [one.id]


async def test_task_reap_leaves_live_leases_alone_and_works_in_pieces(store: Store) -> None:
    for number in range(3):
        await queue_task(store, f"work-{number}")
    await claim(store)
    assert await store.task_reap(limit=10, now=NOW + seconds(30)) == 0
    assert [await store.task_reap(limit=2, now=NOW + seconds(31)) for _ in range(3)] == [2, 1, 0]


async def test_task_depths_count_live_tasks_by_queue_and_state(store: Store) -> None:
    for number in range(3):
        await queue_task(store, f"work-{number}")
    await queue_task(store, "mail", queue="mail")
    await claim(store, limit=1)
    expected = [QueueDepth("default", "ready", 2), QueueDepth("default", "running", 1), QueueDepth("mail", "ready", 1)]
    assert await store.task_depths() == expected
