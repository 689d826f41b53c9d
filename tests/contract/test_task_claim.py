"""task_claim and task_depths: leases and fences on tasks, most urgent first, each task claimed by one worker."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
import uuid_utils.compat

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, ClaimedTask, Origin, TaskState
from everbeat.store.base import Store
from everbeat.store.values import ClaimRequest, QueueDepth
from tests.factories import (
    NOW,
    OTHER_TENANT,
    claim,
    claim_for,
    execute_raw,
    firing_of,
    insert,
    make_schedule,
    make_task,
    minutes,
    open_second_store,
    own_all_partitions,
    seconds,
)

NODE = UUID(int=1)


def types_of(tasks: list[ClaimedTask]) -> list[str]:
    return [task.type for task in tasks]


async def test_task_claim_takes_by_priority_then_by_age(store: Store) -> None:
    for type_, priority, age in (("d", 100, 0), ("c", 100, 5), ("b", 100, 9), ("a", 1, 0)):
        await store.task_submit([make_task(type_, priority=priority, run_at=NOW - minutes(age))], now=NOW)
    assert types_of(await claim(store, limit=3)) == ["a", "b", "c"]
    assert types_of(await claim(store)) == ["d"]


async def test_task_claim_takes_tasks_of_one_instant_in_the_order_of_their_ids(store: Store) -> None:
    tasks = [make_task(str(number)) for number in range(20)]
    await store.task_submit(list(reversed(tasks)), now=NOW)
    assert types_of(await claim(store, limit=20)) == [str(number) for number in range(20)]


async def test_task_claim_takes_the_most_urgent_tasks_of_several_queues(store: Store) -> None:
    given = (("slow", 5), ("fast", 1), ("last", 9), ("hidden", 0))
    queues = {"last": "fast"}
    await store.task_submit([make_task(type_, queue=queues.get(type_, type_), priority=p) for type_, p in given], now=NOW)
    assert types_of(await claim(store, "slow", "fast", "slow", limit=2)) == ["fast", "slow"]


async def test_task_claim_returns_the_fields_that_a_worker_needs(store: Store) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    task = make_task(
        "mail", payload=b'{"a": 1}', origin=Origin.TRIGGER, schedule_id=UUID(int=9), schedule_name="nightly",
        scheduled_for=NOW - minutes(1), max_attempts=7, timeout_seconds=90.5, traceparent=trace,
    )  # fmt: skip
    await store.task_submit([task], now=NOW)
    (found,) = await claim(store, lease_seconds=20)
    assert (found.id, found.type, found.queue, bytes(found.payload)) == (task.id, "mail", "default", b'{"a": 1}')
    assert (found.attempt, found.max_attempts, found.fence) == (1, 7, 1)
    assert (found.lease_until, found.lease_seconds, found.timeout_seconds) == (NOW + seconds(20), 20, 90.5)
    assert (found.origin, found.schedule, found.schedule_id) == (Origin.TRIGGER, "nightly", UUID(int=9))
    assert (found.scheduled_for, found.traceparent) == (NOW - minutes(1), trace)
    (kept,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (kept.state, kept.attempt, kept.fence, kept.worker) == (TaskState.RUNNING, 1, 1, "worker")
    assert (kept.started_at, kept.lease_until) == (NOW, NOW + seconds(20))
    assert await claim(store) == []


async def test_task_claim_of_a_fired_task_returns_its_schedule(store: Store) -> None:
    schedule = make_schedule("nightly")
    await insert(store, schedule)
    await own_all_partitions(store, NODE)
    await store.tick_fire(NODE, [firing_of(schedule)], now=NOW)
    (task,) = await claim(store)
    assert (task.origin, task.schedule, task.schedule_id, task.scheduled_for) == (Origin.TICK, "nightly", schedule.id, NOW)


async def test_task_claim_serves_claim_requests_in_the_given_order(store: Store) -> None:
    await store.task_submit([make_task(str(number)) for number in range(6)], now=NOW)
    claim_requests = [
        ClaimRequest("a", 2, 10),
        ClaimRequest("none", 0, 10),
        ClaimRequest("b", 3, 20),
        ClaimRequest("c", 4, 30),
        ClaimRequest("d", 1, 30),
    ]
    batches = await claim_for(store, ["default"], claim_requests, now=NOW)
    assert [types_of(batch) for batch in batches] == [["0", "1"], [], ["2", "3", "4"], ["5"], []]
    assert [{task.lease_until for task in batch} for batch in batches] == [
        {NOW + seconds(10)}, set(), {NOW + seconds(20)}, {NOW + seconds(30)}, set()
    ]  # fmt: skip
    found = {task.type: task.worker for task in await store.task_find(DEFAULT_TENANT, [one.id for s in batches for one in s])}
    assert found == {"0": "a", "1": "a", "2": "b", "3": "b", "4": "b", "5": "c"}


async def test_task_claim_divides_several_queues_by_urgency(store: Store) -> None:
    await store.task_submit(
        [make_task(f"{queue}{number}", queue=queue, priority=number) for queue in "ab" for number in range(3)], now=NOW
    )
    claim_requests = [ClaimRequest("one", 2, 10), ClaimRequest("two", 3, 10)]
    batches = await claim_for(store, ["b", "a"], claim_requests, now=NOW)
    assert [types_of(batch) for batch in batches] == [["a0", "b0"], ["a1", "b1", "a2"]]
    assert await store.task_depths() == [
        QueueDepth("a", "running", 3), QueueDepth("b", "ready", 1), QueueDepth("b", "running", 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("queues", "claim_requests"), [([], [ClaimRequest("w", 1, 10)]), (["default"], []), (["other"], [ClaimRequest("w", 1, 10)])]
)
async def test_task_claim_without_queues_or_requests_or_tasks_takes_nothing(
    store: Store, queues: list[str], claim_requests: list[ClaimRequest]
) -> None:
    await store.task_submit([make_task()], now=NOW)
    assert await claim_for(store, queues, claim_requests, now=NOW) == [[] for _ in claim_requests]
    assert await store.task_depths() == [QueueDepth("default", "ready", 1)]


async def test_task_claim_of_given_types_leaves_other_types(store: Store) -> None:
    await store.task_submit([make_task(type_) for type_ in ("a", "b", "c", "b")], now=NOW)
    assert types_of(await claim(store, types=["b", "x"])) == ["b", "b"]
    assert await claim(store, types=[]) == []
    assert types_of(await claim(store)) == ["a", "c"]


async def test_task_claim_keeps_tenants_apart(store: Store) -> None:
    await store.task_submit([make_task("ours"), make_task("theirs", tenant_id=OTHER_TENANT, priority=0)], now=NOW)
    assert types_of(await claim(store)) == ["ours"]
    assert types_of(await claim(store, tenant_id=OTHER_TENANT)) == ["theirs"]


async def test_task_claim_takes_only_ready_tasks(store: Store) -> None:
    await store.task_submit([make_task(run_at=NOW + minutes(1))], now=NOW)
    assert await claim(store, now=NOW + minutes(2)) == [], "it is due, but not promoted yet"


async def test_task_claim_gives_no_lease_beyond_the_timeout(store: Store) -> None:
    await store.task_submit([make_task(timeout_seconds=12.25)], now=NOW)
    (task,) = await claim(store, lease_seconds=30)
    assert (task.lease_until, task.lease_seconds) == (NOW + seconds(12.25), 30)


async def test_task_claim_gives_no_lease_beyond_the_total_time_since_the_first_attempt(store: Store) -> None:
    await store.task_submit([make_task()], now=NOW)
    (task,) = await claim(store, lease_seconds=30, total_seconds=100)
    back = AttemptEnd(task.id, DEFAULT_TENANT, 1, AttemptOutcome.FAILED, TaskState.READY, None, None)
    await store.task_end([back], is_expired=False, now=NOW + seconds(5))
    (task,) = await claim(store, lease_seconds=30, total_seconds=100, now=NOW + seconds(80))
    assert (task.attempt, task.fence, task.lease_until) == (2, 2, NOW + seconds(100))
    _, (running,) = await store.task_expired(limit=5, now=NOW + seconds(100))
    assert (running.deadline_at, running.first_started_at) == (NOW + seconds(100), NOW)


async def test_task_claim_starts_each_attempt_without_progress(store: Store) -> None:
    await store.task_submit([make_task()], now=NOW)
    (task,) = await claim(store)
    await execute_raw(store, "UPDATE tasks SET progress_fraction = 0.5, progress_message = 'half'")
    back = AttemptEnd(task.id, DEFAULT_TENANT, 1, AttemptOutcome.LOST, TaskState.READY, None, None)
    await store.task_end([back], is_expired=True, now=NOW + minutes(1))
    await claim(store, now=NOW + minutes(1))
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.progress_fraction, found.progress_message) == (None, None)


async def test_task_claim_uses_the_database_clock(store: Store) -> None:
    await store.task_submit([make_task()])
    before = await store.clock()
    ((task,),) = await claim_for(store, ["default"], [ClaimRequest("w", 1, 30)])
    assert before + seconds(30) <= task.lease_until <= await store.clock() + seconds(30)


async def test_task_claim_under_concurrency_gives_each_task_to_one_worker(store: Store) -> None:
    tasks = [make_task(queue=queue) for queue in ("a", "b") for _ in range(100)]
    await store.task_submit(tasks, now=NOW)
    second_stores = [open_second_store(store) for _ in range(4)]

    async def work(second_store: Store, name: str) -> list[UUID]:
        taken: list[UUID] = []
        while len(taken) < 200:
            claim_requests = [ClaimRequest(f"{name}-{number}", 2, 30) for number in range(3)]
            batches = await claim_for(second_store, ["a", "b"], claim_requests, now=NOW)
            if not any(batches):
                break
            taken += [task.id for batch in batches for task in batch]
        return taken

    taken = await asyncio.gather(*(work(second_store, str(number)) for number, second_store in enumerate(second_stores)))
    for second_store in second_stores:
        await second_store.close()
    claimed = [id_ for ids in taken for id_ in ids]
    # A claim skips rows that another claim has locked, so it may return fewer tasks. No task is returned twice.
    claimed += [task.id for task in await claim(store, "a", "b", limit=200)]
    assert len(claimed) == 200
    assert set(claimed) == {task.id for task in tasks}


async def test_task_submit_with_direct_handoff_creates_a_running_task(store: Store) -> None:
    task = make_task(lease_owner="w1", lease_seconds=20.0, timeout_seconds=50.0)
    short = make_task(id=uuid_utils.compat.uuid7(), lease_owner="w1", lease_seconds=20.0, total_seconds=5.0)
    await store.task_submit([task, short, make_task("other")], now=NOW)
    assert types_of(await claim(store)) == ["other"]
    found, bounded = sorted(await store.task_find(DEFAULT_TENANT, [task.id, short.id]), key=lambda one: one.id)
    assert (found.state, found.worker, found.attempt, found.fence) == (TaskState.RUNNING, "w1", 1, 1)
    assert (found.started_at, found.lease_until, bounded.lease_until) == (NOW, NOW + seconds(20), NOW + seconds(5))
    _, (expired,) = await store.task_expired(limit=5, now=NOW + seconds(10))
    assert (expired.id, expired.deadline_at, expired.first_started_at) == (short.id, NOW + seconds(5), NOW)


async def test_task_depths_count_live_tasks_by_queue_and_state(store: Store) -> None:
    await store.task_submit([make_task() for _ in range(3)], now=NOW)
    await store.task_submit([make_task(queue="mail"), make_task(queue="mail", delay_seconds=5)], now=NOW)
    await claim(store, limit=1)
    assert await store.task_depths() == [
        QueueDepth("default", "ready", 2),
        QueueDepth("default", "running", 1),
        QueueDepth("mail", "ready", 1),
        QueueDepth("mail", "scheduled", 1),
    ]
    await store.task_submit([make_task(tenant_id=OTHER_TENANT)], now=NOW)
    assert await store.task_depths(OTHER_TENANT) == [QueueDepth("default", "ready", 1)]
    assert len(await store.task_depths(DEFAULT_TENANT)) == 4
    assert (await store.task_depths())[0].count == 3
