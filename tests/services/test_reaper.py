"""The reaper: an attempt ends when its lease expires or it times out, with an error; its task is retried, dead or cancelled."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from everbeat.core.schedules import DEFAULT_TENANT, Retry, RetryKind
from everbeat.core.tasks import TaskState
from everbeat.services.events import AttemptEnded
from everbeat.services.reaper import Reaper
from everbeat.store.base import Store
from everbeat.store.values import QueueDepth
from tests.factories import NOW, SteppedNode, count_rows, minutes, open_second_store, seconds
from tests.services.workers import Worker, attempts, error_of, get, outcomes_of, submit, submit_many

FIXED = Retry(kind=RetryKind.FIXED, base_seconds=10, jitter=False)


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


@pytest.fixture
def worker(node: SteppedNode) -> Worker:
    return Worker(node)


async def test_a_task_without_heartbeats_is_lost_and_ready_again(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node)
    await worker.claim_one()
    await node.reap(NOW + seconds(29.999))
    assert (await get(node, task)).state is TaskState.RUNNING
    await node.reap(NOW + seconds(30))
    again = await get(node, task)
    assert (again.state, again.attempt, again.worker, again.lease_until) == (TaskState.READY, 1, None, None)
    (lost,) = await attempts(node, task)
    assert (lost.outcome, lost.worker, lost.started_at, lost.ended_at) == ("lost", "worker", NOW, NOW + seconds(30))
    assert error_of(lost)["kind"] == "lost"
    assert "lease" in error_of(lost)["message"]
    assert node.events_of(AttemptEnded) == [AttemptEnded("lost", "ready")]


async def test_a_lease_of_a_clock_that_was_ahead_ends_after_its_length(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node)
    node.now += minutes(60)
    await worker.claim_one()
    await node.reap(NOW)  # the clock was set back
    await node.reap(NOW + seconds(29.9))
    assert (await get(node, task)).state is TaskState.RUNNING
    await node.reap(NOW + seconds(30))
    assert (await get(node, task)).state is TaskState.READY


async def test_a_poison_task_is_dead_after_max_attempts_and_each_attempt_has_an_error(node: SteppedNode) -> None:
    task = await submit(node, max_attempts=4)
    for number in range(1, 5):
        claimed = await Worker(node, f"victim-{number}").claim_one()
        assert claimed.attempt == number
        await node.reap(node.now + seconds(31))
    dead = await get(node, task)
    assert (dead.state, dead.attempt) == (TaskState.DEAD, 4)
    ended_attempts = await attempts(node, task)
    assert [(one.attempt, one.outcome, one.worker) for one in ended_attempts] == [
        (number, "lost", f"victim-{number}") for number in range(1, 5)
    ]
    assert all(error_of(one)["message"] for one in ended_attempts)
    letter = await node.dead_letters.get(DEFAULT_TENANT, task.id)
    assert letter.reason == "all 4 attempts failed (last outcome: lost)"
    assert await Worker(node).claim() == []


async def test_an_attempt_times_out_although_heartbeats_continue(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node, timeout_seconds=60, retry=FIXED)
    claimed = await worker.claim_one()
    for at in (20, 40, 59):
        node.move_to(NOW + seconds(at))
        assert (await worker.heartbeat(claimed)).status == "ok"
        await node.reap()
    await node.reap(NOW + seconds(60))
    assert await outcomes_of(node, task) == [(1, "timeout")]
    again = await get(node, task)
    assert (again.state, again.run_at) == (TaskState.SCHEDULED, NOW + seconds(70)), "a timeout is retried with backoff"
    assert await worker.complete(claimed) == ["stale"]


async def test_a_timeout_shorter_than_the_lease_ends_the_attempt_in_time(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node, timeout_seconds=2, max_attempts=1)
    claimed = await worker.claim_one(lease_seconds=3600)
    assert claimed.lease_until == NOW + seconds(2)
    await node.reap(NOW + seconds(2))
    assert (await get(node, task)).state is TaskState.DEAD
    assert await outcomes_of(node, task) == [(1, "timeout")]


async def test_a_task_is_not_retried_beyond_its_total_time(store: Store) -> None:
    node = SteppedNode(store, total_seconds=3600)
    worker = Worker(node)
    task = await submit(node, max_attempts=100, timeout_seconds=7200, retry=FIXED)
    attempt_count = 0
    while (await get(node, task)).state is not TaskState.DEAD:
        attempt_count += 1
        await worker.claim_one()
        await node.reap(node.now + minutes(7))
        await node.promote(node.now + minutes(1))
    assert attempt_count == 8
    letter = await node.dead_letters.get(DEFAULT_TENANT, task.id)
    assert letter.reason == "a retry would exceed the total limit of 3600 seconds"
    assert len(await outcomes_of(node, task)) == attempt_count


async def test_an_attempt_ends_with_the_total_time_of_its_task(store: Store) -> None:
    node = SteppedNode(store, total_seconds=100)
    worker = Worker(node)
    task = await submit(node, max_attempts=100, timeout_seconds=7200)
    await worker.fail(await worker.claim_one(), retry_in_seconds=50)
    await node.promote(NOW + seconds(50))
    claimed = await worker.claim_one(lease_seconds=300)
    assert claimed.lease_until == NOW + seconds(100)
    await node.reap(NOW + seconds(100))
    assert (await get(node, task)).state is TaskState.DEAD
    assert await outcomes_of(node, task) == [(1, "failed"), (2, "timeout")]


async def test_a_retry_after_the_total_time_is_not_scheduled(store: Store) -> None:
    node = SteppedNode(store, total_seconds=100)
    worker = Worker(node)
    await submit(node, max_attempts=100)
    assert (await worker.fail(await worker.claim_one(), retry_in_seconds=100)).next == "dead"


async def test_a_task_with_a_cancel_request_is_cancelled_when_its_lease_expires(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node, max_attempts=5)
    claimed = await worker.claim_one()
    await node.tasks.cancel(DEFAULT_TENANT, task.id, now=node.now)
    node.move_to(NOW + seconds(20))
    assert (await worker.heartbeat(claimed)).status == "cancel"
    await node.reap(NOW + seconds(30))
    cancelled = await get(node, task)
    assert (cancelled.state, error_of(cancelled)["kind"]) == (TaskState.CANCELLED, "cancelled")
    assert await outcomes_of(node, task) == [(1, "cancelled")]
    assert await worker.complete(claimed) == ["stale"]
    assert await worker.claim() == []


async def test_it_works_in_batches_and_returns_whether_there_is_more(node: SteppedNode, worker: Worker) -> None:
    await submit_many(node, 5)
    assert len(await worker.claim(5)) == 5
    reaper = Reaper(node.store, node.engine.publisher, batch_size=2)
    node.move_to(NOW + seconds(31))
    assert [await reaper.run_once(node.now) for _ in range(3)] == [True, True, False]
    assert not await reaper.run_once(node.now)
    assert await node.store.task_depths() == [QueueDepth("default", "ready", 5)]


async def test_valid_leases_are_not_reaped(node: SteppedNode, worker: Worker) -> None:
    await submit_many(node, 3)
    expiring, long_, renewed = [await worker.claim_one(lease_seconds=lease) for lease in (10, 60, 10)]
    node.move_to(NOW + seconds(9))
    await worker.heartbeat(renewed)
    await node.reap(NOW + seconds(12))
    assert [(await get(node, task)).state.value for task in (expiring, long_, renewed)] == ["ready", "running", "running"]


async def test_concurrent_reapers_end_each_attempt_once(store: Store) -> None:
    second_store = open_second_store(store)
    nodes = [SteppedNode(store), SteppedNode(second_store)]
    ids = await submit_many(nodes[0], 40, max_attempts=2)
    for number in (1, 2):
        now = NOW + minutes(number)
        for node in nodes:
            node.move_to(now)
        assert len(await Worker(nodes[0]).claim(40)) == 40
        for node in nodes:
            node.move_to(now + seconds(31))
        await asyncio.gather(*(node.reaper.run_once(node.now) for node in nodes for _ in range(2)))
    ended = [event for node in nodes for event in node.events_of(AttemptEnded)]
    assert sorted(ended) == [AttemptEnded("lost", "dead")] * 40 + [AttemptEnded("lost", "ready")] * 40
    assert await count_rows(store, "tasks") == 0
    assert [await count_rows(store, table) for table in ("task_history", "dead_letters", "attempts")] == [40, 40, 40]
    for id_ in ids[:3]:
        assert [one.attempt for one in await nodes[0].tasks.attempts(DEFAULT_TENANT, id_)] == [1, 2]
    await second_store.close()


async def test_a_completion_concurrent_with_the_reaper_ends_each_attempt_once(store: Store) -> None:
    """A lease is valid or expired by one clock. Whichever call succeeds, each task either finishes or is retried."""
    node = SteppedNode(store)
    worker = Worker(node)
    await submit_many(node, 30)
    tasks = await worker.claim(30)
    node.move_to(NOW + seconds(30))
    late = SteppedNode(store, now=NOW + seconds(29.9))
    statuses, _ = await asyncio.gather(Worker(late).complete(*tasks), node.reaper.run_once(node.now))
    completed = statuses.count("ok")
    assert await count_rows(store, "task_history") == completed
    assert await count_rows(store, "tasks") == 30 - completed == await count_rows(store, "attempts")


async def test_a_clock_that_jumps_ahead_loses_an_attempt_but_no_task(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node, timeout_seconds=7 * 86_400)
    await worker.claim_one()
    await node.reap(NOW + timedelta(days=2))
    assert (await get(node, task)).state is TaskState.READY
    assert await worker.complete(await worker.claim_one()) == ["ok"]
