"""The promoter: delayed tasks become ready when they are due; it sleeps until then and is woken for earlier tasks."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from everbeat.clock import DatabaseClock
from everbeat.core.protocol import TaskInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import TaskState
from everbeat.services import promoter as promoter_module
from everbeat.services.events import TasksPromoted
from everbeat.services.promoter import Promoter
from everbeat.services.publisher import ChangePublisher
from everbeat.store.base import Store
from everbeat.store.values import Notice, QueueDepth
from tests.factories import NOW, SteppedNode, StoreOverride, minutes, open_second_store, seconds
from tests.services.polling import PollingNode, ids_of
from tests.services.workers import Worker, get, submit, submit_many


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


def recorded_queues(publisher: ChangePublisher) -> list[frozenset[str]]:
    """Return a list that records the queues of every published change that have ready tasks."""
    queues: list[frozenset[str]] = []
    publisher.subscribe(
        lambda effects: queues.append(frozenset({*effects.ready_queues, *(flow.queue for flow in effects.ready_flows)}))
    )
    return queues


async def test_a_delayed_task_is_ready_when_it_is_due_and_not_before(node: SteppedNode) -> None:
    task = await submit(node, delay_seconds=60)
    assert (task.state, task.run_at) == (TaskState.SCHEDULED, NOW + seconds(60))
    await node.promote(NOW + seconds(59.999))
    assert await Worker(node).claim() == []
    await node.promote(NOW + seconds(60))
    assert (await Worker(node).claim_one()).id == task.id
    assert node.events_of(TasksPromoted) == [TasksPromoted(1)]


async def test_a_run_at_in_the_past_makes_a_task_ready(node: SteppedNode) -> None:
    task = await submit(node, run_at=NOW - timedelta(days=400))
    assert task.state is TaskState.READY
    assert (await Worker(node).claim_one()).id == task.id


async def test_a_task_in_the_far_future_stays_scheduled(node: SteppedNode) -> None:
    far = datetime.fromisoformat("9998-12-31T00:00:00+00:00")
    task = await submit(node, run_at=far)
    await node.promote(NOW + timedelta(days=3650))
    assert (await get(node, task)).state is TaskState.SCHEDULED


async def test_thousands_of_due_tasks_are_promoted_in_batches(node: SteppedNode) -> None:
    await submit_many(node, 2500, delay_seconds=10)
    queues = recorded_queues(node.engine.publisher)
    promoter = Promoter(node.store, node.engine.publisher, DatabaseClock(), batch_size=1000)
    assert [await promoter.run_once(NOW + seconds(10)) for _ in range(4)] == [True, True, False, False]
    assert await node.store.task_depths() == [QueueDepth("default", "ready", 2500)]
    assert queues == [frozenset({"default"})] * 3, "no poll is woken without a ready task"


async def test_the_queues_with_promoted_tasks_are_published(node: SteppedNode) -> None:
    for queue in ("a", "b", "later"):
        await submit(node, queue=queue, delay_seconds=100 if queue == "later" else 1)
    queues = recorded_queues(node.engine.publisher)
    await Promoter(node.store, node.engine.publisher, DatabaseClock()).run_once(NOW + seconds(5))
    assert queues == [frozenset({"a", "b"})]


async def test_concurrent_promoters_promote_each_task_once(store: Store) -> None:
    second_store = open_second_store(store)
    nodes = [SteppedNode(store), SteppedNode(second_store)]
    await submit_many(nodes[0], 500, delay_seconds=1)
    for node in nodes:
        node.move_to(NOW + seconds(1))
    while any(await asyncio.gather(*(node.promoter.run_once(node.now) for node in nodes))):
        pass
    assert sum(event.count for node in nodes for event in node.events_of(TasksPromoted)) == 500
    assert await store.task_depths() == [QueueDepth("default", "ready", 500)]
    await second_store.close()


# Sleeping


class RecordedSleeps:
    """Replaces the waiting of a loop, and records for how long it would have waited."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, event: asyncio.Event, timeout_seconds: float) -> None:
        self.seconds.append(0.0 if event.is_set() else timeout_seconds)
        event.clear()


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> RecordedSleeps:
    sleeps = RecordedSleeps()
    monkeypatch.setattr(promoter_module, "wait_for_event", sleeps)
    return sleeps


def promoter_of(node: SteppedNode) -> Promoter:
    """A promoter that polls every two seconds and has the current time of the database."""
    clock = DatabaseClock(lambda: node.monotonic)
    clock.observe(node.monotonic, node.now)
    return Promoter(node.store, node.engine.publisher, clock, poll_interval_seconds=2)


async def test_it_sleeps_until_the_next_task_is_due(node: SteppedNode, sleeps: RecordedSleeps) -> None:
    await submit(node, delay_seconds=0.25)
    await submit(node, delay_seconds=60)
    promoter = promoter_of(node)
    await promoter.run_once(node.now)
    await promoter.wait()
    assert sleeps.seconds == [pytest.approx(0.25, abs=0.001)]
    node.move_to(NOW + seconds(0.25))
    await promoter.run_once(node.now)
    await promoter.wait()
    assert sleeps.seconds[1] == 2, "the next task is not due soon, so it polls periodically"
    node.move_to(NOW + seconds(59.5))
    await promoter.run_once(node.now)
    await promoter.wait()
    assert sleeps.seconds[2] == pytest.approx(0.5, abs=0.001)


async def test_without_delayed_tasks_it_polls_periodically(node: SteppedNode, sleeps: RecordedSleeps) -> None:
    promoter = promoter_of(node)
    await promoter.run_once(node.now)
    await promoter.wait()
    assert sleeps.seconds == [2]


@pytest.mark.parametrize("how", ["submit", "batch", "reschedule", "fail"])
async def test_a_task_that_is_due_earlier_wakes_it(node: SteppedNode, sleeps: RecordedSleeps, how: str) -> None:
    later = await submit(node, delay_seconds=3600)
    await submit(node, "ready")
    claimed = await Worker(node).claim_one()
    promoter = promoter_of(node)
    await promoter.run_once(node.now)
    match how:
        case "submit":
            await submit(node, delay_seconds=1)
        case "batch":
            await node.tasks.submit_batch(DEFAULT_TENANT, [TaskInput(type="work", delay_seconds=1)], now=node.now)
        case "reschedule":
            await node.tasks.reschedule(DEFAULT_TENANT, later.id, NOW + seconds(1), now=node.now)
        case _:
            await Worker(node).fail(claimed, retry_in_seconds=1)
    await promoter.wait()
    await promoter.run_once(node.now)
    await promoter.wait()
    assert sleeps.seconds == [0, pytest.approx(1, abs=0.001)]


async def test_a_task_that_is_due_much_later_does_not_wake_it(node: SteppedNode, sleeps: RecordedSleeps) -> None:
    promoter = promoter_of(node)
    await promoter.run_once(node.now)
    await submit(node, delay_seconds=600)
    await promoter.wait()
    assert sleeps.seconds == [2]


async def test_a_notice_of_another_node_wakes_it(node: SteppedNode) -> None:
    promoter = promoter_of(node)
    waiting = asyncio.create_task(promoter.wait())
    await asyncio.sleep(0)
    node.store.publish(Notice.DELAYED)
    await asyncio.wait_for(waiting, 1)


async def test_a_delayed_task_reaches_a_waiting_worker(store: Store) -> None:
    """With real clocks: the poll waits, the promoter sleeps, and the task is returned when it is due."""
    polling = PollingNode(store)
    clock = DatabaseClock()
    promoter = Promoter(polling.store, polling.node.engine.publisher, clock)
    poll = await polling.waiting_poll()
    await promoter.run_once()
    ids = await polling.submit(delay_seconds=0.05)

    async def run() -> None:
        while not poll.done():
            await promoter.wait()
            await promoter.run_once()
            await polling.wait_for_claims()

    await asyncio.wait_for(run(), 20)
    assert await ids_of(poll) == ids
    await polling.close()


async def test_a_failed_run_is_repeated(store: Store, sleeps: RecordedSleeps) -> None:
    class UnavailableStore(StoreOverride):
        is_unavailable = True

        async def task_promote(self, **more: Any) -> Any:
            if self.is_unavailable:
                raise TimeoutError
            return await self.inner.task_promote(**more)

    unavailable = UnavailableStore(store)
    node = SteppedNode(unavailable)
    await submit(node, delay_seconds=1)
    with pytest.raises(TimeoutError):
        await node.promoter.run_once(NOW + seconds(1))
    unavailable.is_unavailable = False
    await node.promote(NOW + minutes(1))
    assert len(await Worker(node).claim()) == 1
