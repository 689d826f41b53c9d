"""The sampler: the state of the cluster for metrics, with a bounded number of queues and a bounded part of the time."""

from __future__ import annotations

from datetime import timedelta

from everbeat.services.events import ClusterSampled
from everbeat.services.sampler import Sampler, bounded_queues
from everbeat.store.base import Store
from everbeat.store.samples import QueueSample, ReadySample, RunningSample
from tests.contract.test_workers import sighting
from tests.factories import NOW, SteppedNode, claim, make_task, seconds


async def test_it_samples_queues_tasks_partitions_and_the_database(store: Store) -> None:
    node = SteppedNode(store)
    sampler = Sampler(store, emit=node.events.append)
    await store.task_submit([make_task(queue="mail"), make_task(queue="mail"), make_task(queue="slow")], now=NOW - seconds(30))
    await claim(store, "mail", limit=1)
    await store.worker_write("node", [sighting("a", "mail", "idle")], now=NOW)
    await sampler.run_once(NOW)
    sample = node.events_of(ClusterSampled)[-1].sample
    assert sample.queues == [
        QueueSample("idle", 0, 0, 1, 0.0),
        QueueSample("mail", 1, 1, 1, 30.0),
        QueueSample("slow", 1, 0, 0, 30.0),
    ]
    assert (sample.at, sample.states["ready"], sample.unowned_partitions, sample.is_available) == (NOW, 2, 256, False)
    await node.renew()
    await node.renew()
    await sampler.run_once(NOW)
    sample = node.events_of(ClusterSampled)[-1].sample
    assert (sample.unowned_partitions, sample.is_available) == (0, True)
    await sampler.run_once(NOW + timedelta(minutes=1))
    assert node.events_of(ClusterSampled)[-1].sample.unowned_partitions == 256  # the leases have expired


async def test_the_interval_grows_with_the_duration(store: Store) -> None:
    times = iter((0.0, 0.01, 100.0, 100.5))
    node = SteppedNode(store)
    sampler = Sampler(store, emit=node.events.append, interval_seconds=15, monotonic=lambda: next(times))
    await sampler.run_once(NOW)
    await sampler.run_once(NOW)
    assert [event.valid_seconds for event in node.events_of(ClusterSampled)] == [60, 150]


def test_queues_beyond_the_largest_are_added_up() -> None:
    ready = [ReadySample(f"q{number}", number, NOW - seconds(number)) for number in range(1, 6)]
    running = [RunningSample("q1", 100, 0), RunningSample("busy", 50, 0)]
    queues = bounded_queues(ready, running, {"q2": 3, "q3": 4, "idle": 1}, NOW, max_queues=3)
    assert queues == [
        QueueSample("busy", 0, 50, 0, 0.0),
        QueueSample("other", 9, 0, 8, 4.0),
        QueueSample("q1", 1, 100, 0, 1.0),
        QueueSample("q5", 5, 0, 0, 5.0),
    ]


def test_a_queue_named_other_is_one_of_the_others() -> None:
    ready = [ReadySample("other", 10, NOW), ReadySample("a", 20, NOW - seconds(5)), ReadySample("b", 1, NOW)]
    assert bounded_queues(ready, [], {}, NOW, max_queues=2) == [
        QueueSample("a", 20, 0, 0, 5.0),
        QueueSample("other", 11, 0, 0, 0.0),
    ]
