"""Overlap release: held tasks become ready in order, up to the limit of their schedule, and none is left held."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.errors import StoreUnavailable
from everbeat.core.schedules import DEFAULT_TENANT, Schedule
from everbeat.core.tasks import ClaimedTask, TaskRecord, TaskState
from everbeat.services.overlap import OverlapReleaser
from everbeat.store.base import Store
from everbeat.store.values import HeldReleaseResult, TaskFilter
from tests.factories import NOW, SteppedNode, StoreOverride, count_rows, execute_raw, minutes, open_second_store, seconds
from tests.services.workers import Worker, get, outcomes_of, submit


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


@pytest.fixture
def worker(node: SteppedNode) -> Worker:
    return Worker(node)


async def fire(node: SteppedNode, ticks: int, **more: Any) -> Schedule:
    """Create a schedule that ticks every minute, and fire the given number of ticks."""
    job = await node.put(**more)
    await node.run(node.now + minutes(ticks), by_seconds=60)
    return job


async def tasks_of(node: SteppedNode, job: Schedule) -> list[TaskRecord]:
    """Return live and finished tasks in the order of their ticks."""
    page = await node.tasks.page(DEFAULT_TENANT, TaskFilter(schedule_id=job.id), before=None, limit=1000)
    return sorted(page.tasks, key=lambda task: task.scheduled_for or NOW)


async def states(node: SteppedNode, job: Schedule) -> list[str]:
    return [task.state.value for task in await tasks_of(node, job)]


def tick_of(task: ClaimedTask | TaskRecord) -> float:
    assert task.scheduled_for is not None
    return (task.scheduled_for - NOW).total_seconds() / 60


# Queue


async def test_overlapping_ticks_are_held_and_released_one_by_one_in_order(node: SteppedNode, worker: Worker) -> None:
    job = await fire(node, 4, overlap="queue")
    assert await states(node, job) == ["ready", "held", "held", "held"]
    order = []
    for _ in range(4):
        claimed = await worker.claim_one()
        assert await worker.claim() == [], "one at a time"
        await node.release_held()
        assert await worker.claim() == [], "also after the overlap releaser has run"
        order.append(tick_of(claimed))
        assert await worker.complete(claimed) == ["ok"]
        await node.overlap.run_once(node.now)
    assert order == [1, 2, 3, 4]
    assert await states(node, job) == ["completed"] * 4


async def test_as_many_tasks_run_concurrently_as_the_schedule_allows(node: SteppedNode, worker: Worker) -> None:
    job = await fire(node, 6, overlap="queue", max_concurrent=2)
    assert await states(node, job) == ["ready", "ready", "held", "held", "held", "held"]
    first = await worker.claim(10)
    assert [tick_of(task) for task in first] == [1, 2]
    await worker.complete(first[1])
    await node.release_held()
    second = await worker.claim(10)
    assert [tick_of(task) for task in second] == [3]
    await worker.complete(first[0], second[0])
    await node.release_held()
    assert [tick_of(task) for task in await worker.claim(10)] == [4, 5]


@pytest.mark.parametrize("ending", ["complete", "dead", "cancel", "lost"])
async def test_the_next_task_is_released_however_a_task_ends(node: SteppedNode, worker: Worker, ending: str) -> None:
    job = await fire(node, 2, overlap="queue", max_attempts=1)
    claimed = await worker.claim_one()
    match ending:
        case "complete":
            await worker.complete(claimed)
        case "dead":
            await worker.fail(claimed)
        case "cancel":
            await node.tasks.cancel(DEFAULT_TENANT, claimed.id, now=node.now)
            await worker.fail(claimed, kind="cancelled")
        case _:
            node.move_to(node.now + seconds(31))
            await node.reaper.run_once(node.now)
    await node.overlap.run_once(node.now)
    assert tick_of(await worker.claim_one()) == 2
    assert len(await tasks_of(node, job)) == 2


async def test_a_retried_task_runs_before_the_next_one(node: SteppedNode, worker: Worker) -> None:
    await fire(node, 2, overlap="queue")
    await worker.fail(await worker.claim_one(), retry_in_seconds=5)
    await node.release_held()
    assert await worker.claim() == []
    await node.promote(node.now + seconds(5))
    await node.release_held()
    assert [tick_of(task) for task in await worker.claim(10)] == [1]


async def test_a_cancelled_task_that_had_not_started_allows_another(node: SteppedNode, worker: Worker) -> None:
    job = await fire(node, 3, overlap="queue")
    ready, held, _ = await tasks_of(node, job)
    await node.tasks.cancel(DEFAULT_TENANT, held.id, now=node.now)
    await node.tasks.cancel(DEFAULT_TENANT, ready.id, now=node.now)
    await node.overlap.run_once(node.now)
    assert [tick_of(task) for task in await worker.claim(10)] == [3]


async def test_submitted_tasks_and_tasks_of_other_schedules_do_not_count(node: SteppedNode, worker: Worker) -> None:
    job = await node.put("one", overlap="queue")
    other = await node.put("two", overlap="queue")
    await node.run(NOW + minutes(2), by_seconds=60)
    await submit(node)
    assert len(await worker.claim(10)) == 3
    assert [await states(node, one) for one in (job, other)] == [["running", "held"]] * 2


# Cancel the previous


async def test_a_newer_tick_replaces_a_task_that_has_not_started(node: SteppedNode, worker: Worker) -> None:
    job = await fire(node, 1, overlap="cancel_previous")
    await node.run(NOW + minutes(2), by_seconds=60)
    await node.overlap.run_once(node.now)
    assert await states(node, job) == ["cancelled", "ready"]
    assert "newer tick" in ((await tasks_of(node, job))[0].reason or "")
    assert [tick_of(task) for task in await worker.claim(10)] == [2]


async def test_a_newer_tick_cancels_the_running_task_and_waits_for_it(node: SteppedNode, worker: Worker) -> None:
    job = await fire(node, 1, overlap="cancel_previous")
    old = await worker.claim_one(lease_seconds=300)
    await node.run(NOW + minutes(2), by_seconds=60)
    await node.release_held()
    assert await states(node, job) == ["running", "held"]
    assert (await worker.heartbeat(old)).status == "cancel"
    await worker.fail(old, "stopped", kind="cancelled")
    await node.overlap.run_once(node.now)
    assert await states(node, job) == ["cancelled", "ready"]
    assert tick_of(await worker.claim_one()) == 2


async def test_a_running_task_that_does_not_stop_is_fenced_before_the_newer_one_runs(node: SteppedNode, worker: Worker) -> None:
    job = await fire(node, 1, overlap="cancel_previous")
    old = await worker.claim_one(lease_seconds=90)
    await node.run(NOW + minutes(2), by_seconds=60)
    await node.release_held()
    assert (await worker.heartbeat(old)).status == "cancel"
    await node.reap(NOW + minutes(1) + seconds(89))
    assert await worker.claim() == []
    await node.reap(NOW + minutes(1) + seconds(90))
    assert await worker.complete(old) == ["stale"]
    assert await states(node, job) == ["cancelled", "ready"]
    assert await outcomes_of(node, (await tasks_of(node, job))[0]) == [(1, "cancelled")]
    assert tick_of(await worker.claim_one()) == 2


async def test_of_many_newer_ticks_only_the_newest_runs(node: SteppedNode, worker: Worker) -> None:
    job = await fire(node, 1, overlap="cancel_previous")
    old = await worker.claim_one(lease_seconds=3600)
    for number in range(2, 6):
        await node.run(NOW + minutes(number), by_seconds=60)
        await node.release_held()
    await worker.fail(old, "stopped", kind="cancelled")
    await node.release_held()
    assert await states(node, job) == ["cancelled"] * 4 + ["ready"]


# Pausing


async def test_a_pause_holds_ready_tasks_and_a_resume_releases_them(node: SteppedNode, worker: Worker) -> None:
    job = await fire(node, 3, overlap="allow")
    running = await worker.claim_one()
    await node.schedules.pause(DEFAULT_TENANT, "job", note=None, now=node.now)
    assert await states(node, job) == ["running", "held", "held"]
    await node.release_held()
    assert await worker.claim() == [], "no task starts after an acknowledged pause"
    assert await worker.complete(running) == ["ok"], "running tasks can finish"
    await node.release_held()
    assert await worker.claim() == []
    await node.schedules.resume(DEFAULT_TENANT, "job", now=node.now)
    await node.release_held()
    assert [tick_of(task) for task in await worker.claim(10)] == [2, 3]


async def test_a_pause_holds_delayed_retries_too(node: SteppedNode, worker: Worker) -> None:
    job = await fire(node, 1)
    await worker.fail(await worker.claim_one(), retry_in_seconds=30)
    await node.schedules.pause(DEFAULT_TENANT, "job", note=None, now=node.now)
    await node.promote(node.now + minutes(5))
    await node.release_held()
    assert await states(node, job) == ["held"]
    await node.schedules.resume(DEFAULT_TENANT, "job", now=node.now)
    await node.release_held()
    claimed = await worker.claim_one()
    assert (tick_of(claimed), claimed.attempt) == (1, 2)


async def test_a_resumed_schedule_releases_tasks_up_to_its_limit(node: SteppedNode, worker: Worker) -> None:
    job = await fire(node, 4, overlap="queue", max_concurrent=2)
    await node.schedules.pause(DEFAULT_TENANT, "job", note=None, now=node.now)
    assert await states(node, job) == ["held"] * 4
    await node.schedules.resume(DEFAULT_TENANT, "job", now=node.now)
    await node.release_held()
    assert await states(node, job) == ["ready", "ready", "held", "held"]


# No task stays held


async def test_held_tasks_of_a_deleted_schedule_are_released(node: SteppedNode, worker: Worker) -> None:
    job = await fire(node, 4, overlap="queue")
    await node.schedules.delete(DEFAULT_TENANT, "job")
    order = []
    for _ in range(4):
        claimed = await worker.claim_one()
        assert await worker.claim() == []
        order.append(tick_of(claimed))
        await worker.complete(claimed)
        await node.release_held()
    assert order == [1, 2, 3, 4]
    assert await states(node, job) == ["completed"] * 4


async def test_held_tasks_of_a_schedule_deleted_while_paused_are_released(node: SteppedNode, worker: Worker) -> None:
    await fire(node, 1)
    await node.schedules.pause(DEFAULT_TENANT, "job", note=None, now=node.now)
    await node.schedules.delete(DEFAULT_TENANT, "job")
    await node.release_held()
    assert tick_of(await worker.claim_one()) == 1


async def test_tasks_finished_on_another_node_are_found_by_the_periodic_query(store: Store) -> None:
    node, other = SteppedNode(store), SteppedNode(store)
    await fire(node, 2, overlap="queue")
    await node.release_held()
    other.move_to(node.now)
    worker = Worker(other)
    await worker.complete(await worker.claim_one())
    assert await worker.claim() == []
    await node.overlap.run_once(node.now)
    assert tick_of(await worker.claim_one()) == 2


async def held_jobs(node: SteppedNode, count: int) -> list[Schedule]:
    """Create schedules with one running and one held task, and then finish the running tasks on another node."""
    jobs = [await node.put(f"job-{number}", overlap="queue") for number in range(count)]
    await node.run(node.now + minutes(2), by_seconds=60)
    await node.release_held()
    running = await Worker(node).claim(count)
    assert len(running) == count
    other = SteppedNode(node.store, now=node.now)
    assert set(await Worker(other).complete(*running)) == {"ok"}
    return jobs


async def test_more_schedules_than_one_batch_are_all_released(node: SteppedNode) -> None:
    overlap = OverlapReleaser(
        node.store, node.engine.publisher, batch_size=2, poll_interval_seconds=1e9, monotonic=lambda: node.monotonic
    )
    await overlap.run_once(node.now)  # the periodic query of all schedules is not due again for a long time
    jobs = await held_jobs(node, 7)
    overlap.note_schedules(job.id for job in jobs)
    for _ in range(20):
        if not await overlap.run_once(node.now):
            break
    assert len(await Worker(node).claim(10)) == 7, "no noted schedule is dropped"


async def test_the_periodic_query_runs_although_schedules_are_noted_continuously(node: SteppedNode) -> None:
    """On a busy node, schedules are noted before every run. The periodic query of all schedules must still take place."""
    overlap = OverlapReleaser(node.store, node.engine.publisher, poll_interval_seconds=2, monotonic=lambda: node.monotonic)
    await overlap.run_once(node.now)
    await held_jobs(node, 3)
    for _ in range(3):
        overlap.note_schedules([UUID(int=7)])
        await overlap.run_once(node.now)
        node.move_to(node.now + seconds(1))
    assert len(await Worker(node).claim(10)) == 3


async def test_schedules_that_must_wait_do_not_block_others(node: SteppedNode) -> None:
    for number in range(5):
        await node.put(f"blocked-{number}", overlap="queue")
        await node.put(f"paused-{number}", overlap="queue")
    await node.run(NOW + minutes(2), by_seconds=60)
    await node.release_held()
    assert len(await Worker(node).claim(20)) == 10
    for number in range(5):
        await node.schedules.pause(DEFAULT_TENANT, f"paused-{number}", note=None, now=node.now)
    for number in range(3):
        await node.put(f"free-{number}", overlap="queue", every_seconds=60)
    await node.run(NOW + minutes(4), by_seconds=60)
    free = [task for task in await Worker(node).claim(20) if (task.schedule or "").startswith("free")]
    assert len(free) == 3
    assert set(await Worker(SteppedNode(node.store, now=node.now)).complete(*free)) == {"ok"}
    overlap = OverlapReleaser(node.store, node.engine.publisher, batch_size=2, monotonic=lambda: node.monotonic)
    for _ in range(3):
        await overlap.run_once(node.now)
    assert {task.schedule for task in await Worker(node).claim(20)} == {f"free-{number}" for number in range(3)}


async def test_a_failed_release_is_repeated(store: Store) -> None:
    class UnavailableStore(StoreOverride):
        is_unavailable = False

        async def task_release_held(self, *given: Any, **more: Any) -> HeldReleaseResult:
            if self.is_unavailable:
                raise StoreUnavailable("unavailable")
            released: HeldReleaseResult = await self.inner.task_release_held(*given, **more)
            return released

    unavailable = UnavailableStore(store)
    node = SteppedNode(unavailable)
    jobs = await held_jobs(node, 2)
    node.overlap.note_schedules(job.id for job in jobs)
    unavailable.is_unavailable = True
    with pytest.raises(StoreUnavailable):
        await node.overlap.run_once(node.now)
    unavailable.is_unavailable = False
    await node.overlap.run_once(node.now)
    assert len(await Worker(node).claim(10)) == 2


async def test_it_is_woken_by_a_noted_schedule(node: SteppedNode) -> None:
    await asyncio.sleep(0)
    waiting = asyncio.create_task(node.overlap.wait())
    await asyncio.sleep(0)
    node.overlap.note_schedules([UUID(int=1)])
    await asyncio.wait_for(waiting, 1)


# Two nodes


@pytest.mark.parametrize("seed", range(3))
async def test_two_concurrent_releasers_never_exceed_the_limit(store: Store, seed: int) -> None:
    random = Random(seed)
    second_store = open_second_store(store)
    nodes = [SteppedNode(store), SteppedNode(second_store)]
    limit = random.choice([1, 2, 3])
    job = await fire(nodes[0], 15, overlap="queue", max_concurrent=limit)
    nodes[1].move_to(nodes[0].now)
    running: list[ClaimedTask] = []
    max_live = 0

    async def act(node: SteppedNode) -> None:
        worker = Worker(node)
        for _ in range(random.randrange(3)):
            await asyncio.sleep(0)
        match random.randrange(4):
            case 0:
                running.extend(await worker.claim(random.randint(1, 3)))
            case 1 if running:
                task = running.pop(random.randrange(len(running)))
                assert await worker.complete(task) == ["ok"]
            case 2:
                node.overlap.note_schedules([job.id])
                await node.overlap.run_once(node.now)
            case _:
                await node.release_held()

    while await count_rows(store, "task_history") < 15:
        await asyncio.gather(*(act(random.choice(nodes)) for _ in range(6)))
        ((live,),) = await execute_raw(store, "SELECT count(*) FROM tasks WHERE state <> 'held'")
        max_live = max(max_live, live)
        assert live <= limit
    assert max_live == limit, "and the limit is reached"
    assert await states(nodes[0], job) == ["completed"] * 15
    await second_store.close()


@pytest.mark.parametrize("seed", range(2))
async def test_concurrent_firings_and_releases_never_exceed_the_limit(store: Store, seed: int) -> None:
    random = Random(seed)
    second_store = open_second_store(store)
    nodes = [SteppedNode(store), SteppedNode(second_store)]
    job = await nodes[0].put(overlap="queue", max_concurrent=2)
    for number in range(1, 16):
        nodes[1].move_to(NOW + minutes(number))
        done = [task for task in await Worker(nodes[1]).claim(5) if random.random() < 0.7]
        await asyncio.gather(
            nodes[0].step(NOW + minutes(number)),
            Worker(nodes[1]).complete(*done),
            nodes[1].release_held(),
            nodes[1].overlap.run_once(nodes[1].now),
        )
        ((live,),) = await execute_raw(store, "SELECT count(*) FROM tasks WHERE state <> 'held'")
        assert live <= 2
    assert len(await tasks_of(nodes[0], job)) == 15
    await second_store.close()


async def test_a_triggered_task_does_not_wait_for_tasks_of_ticks(node: SteppedNode, worker: Worker) -> None:
    job = await fire(node, 2, overlap="queue")
    triggered = await node.backfill.trigger(DEFAULT_TENANT, "job", now=node.now)
    assert {task.origin.value for task in await worker.claim(10)} == {"tick", "trigger"}
    assert (await get(node, triggered)).state is TaskState.RUNNING
    assert sorted(await states(node, job)) == ["held", "running", "running"]
