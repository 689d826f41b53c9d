"""Service levels: what is counted, that it survives failures of the database, and what is reported."""

from __future__ import annotations

import pytest

from everbeat.core.errors import StoreUnavailable
from everbeat.core.service_levels import LevelBucket, LevelStatus, Sli, bucket_of
from everbeat.services.events import LevelsReported, TicksFired
from everbeat.services.service_levels import SliCounts
from everbeat.store.base import Store
from tests.factories import NOW, SteppedNode, StoreOverride, make_task, minutes, seconds
from tests.services.workers import Worker


class _FailingStore(StoreOverride):
    is_failing = False

    async def clock(self, **more: object) -> object:
        if self.is_failing:
            raise StoreUnavailable("unavailable")
        return await self.inner.clock(**more)  # type: ignore[arg-type]

    async def service_level_write(self, *args: object) -> object:
        written = await self.inner.service_level_write(*args)  # type: ignore[arg-type]
        if self.loses_response:
            raise StoreUnavailable("the outcome is unknown")
        return written

    loses_response = False


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(_FailingStore(store))


def counted(node: SteppedNode, sli: Sli) -> SliCounts:
    return node.engine.level_counter.counts()[sli]


async def buckets(node: SteppedNode) -> list[LevelBucket]:
    return await node.store.service_level_list(NOW - minutes(60))


async def test_a_tick_is_good_if_it_fires_soon_after_it_was_due(node: SteppedNode) -> None:
    await node.put(overlap="allow", max_concurrent=10)
    await node.renew()
    await node.run(NOW + seconds(60.5))
    assert counted(node, Sli.FIRE) == (1, 1)
    node.move_to(NOW + seconds(118))
    await node.renew()
    await node.tick()
    node.move_to(NOW + seconds(122))
    await node.renew()
    await node.tick()
    assert counted(node, Sli.FIRE) == (1, 2)


async def test_jitter_is_not_lateness(node: SteppedNode) -> None:
    for number in range(20):
        await node.put(f"job{number}", jitter_seconds=30)
    await node.renew()
    await node.run(NOW + seconds(95))
    assert counted(node, Sli.FIRE) == (20, 20)
    assert max(lag for event in node.events_of(TicksFired) for lag in event.lags_seconds) > 10


async def test_a_tick_that_is_skipped_as_a_misfire_is_bad(node: SteppedNode) -> None:
    await node.put(misfire_grace_seconds=30, catch_up="none")
    await node.renew()
    await node.tick()
    await node.renew(NOW + minutes(10.9))
    await node.tick()
    good, total = counted(node, Sli.FIRE)
    assert (good, total) == (0, 10)


async def test_claims_and_ends_of_tasks_are_counted(node: SteppedNode) -> None:
    worker = Worker(node)
    await node.store.task_submit([make_task() for _ in range(3)], now=NOW)
    first = await worker.claim_one()
    node.move_to(NOW + seconds(6))
    second = await worker.claim_one()
    third = await worker.claim_one()
    assert counted(node, Sli.PICKUP) == (1, 3)
    await worker.complete(first)
    await worker.fail(second, retryable=False)
    await worker.release(third)
    assert counted(node, Sli.SUCCESS) == (1, 2)


async def test_counts_are_written_by_bucket_and_only_once(node: SteppedNode) -> None:
    await node.renew()
    recorder, emit = node.engine.service_levels, node.engine.level_counter.emit
    emit(TicksFired([0.1, 9.0], [0.1, 9.0]))
    await recorder.run_once(NOW)
    emit(TicksFired([0.2], [0.2]))
    await recorder.run_once(NOW + seconds(5))
    await recorder.run_once(NOW + seconds(6))
    (found,) = await buckets(node)
    assert (found.fire_good, found.fire_total) == (2, 3)
    await node.renew(NOW + minutes(5))
    emit(TicksFired([0.2], [0.2]))
    await recorder.run_once(NOW + minutes(5))
    assert [(one.at, one.fire_total) for one in await buckets(node)] == [
        (bucket_of(NOW), 3),
        (bucket_of(NOW + minutes(5)), 1),
    ]


async def test_a_write_with_an_unknown_outcome_is_repeated_without_counting_twice(node: SteppedNode) -> None:
    await node.renew()
    recorder, emit = node.engine.service_levels, node.engine.level_counter.emit
    emit(TicksFired([0.1], [0.1]))
    node.store.loses_response = True  # type: ignore[attr-defined]
    with pytest.raises(StoreUnavailable):
        await recorder.run_once(NOW)
    node.store.loses_response = False  # type: ignore[attr-defined]
    await recorder.run_once(NOW + seconds(5))
    (found,) = await buckets(node)
    assert (found.fire_good, found.fire_total) == (1, 1)


async def test_a_minute_is_available_if_every_partition_is_owned(node: SteppedNode) -> None:
    recorder = node.engine.service_levels
    await node.renew()
    await recorder.run_once(NOW)
    await recorder.run_once(NOW + minutes(1))  # the leases have expired
    await node.renew(NOW + minutes(2))
    await recorder.run_once(NOW + minutes(2))
    (found,) = await buckets(node)
    assert (found.available_minutes, found.unavailable_minutes) == (0b101, 0b010)


async def test_an_unavailable_database_makes_the_minute_unavailable_when_it_is_back(node: SteppedNode) -> None:
    recorder = node.engine.service_levels
    await node.renew()
    await recorder.run_once(NOW)
    node.store.is_failing = True  # type: ignore[attr-defined]
    with pytest.raises(StoreUnavailable):
        await recorder.run_once(NOW + minutes(1))
    node.store.is_failing = False  # type: ignore[attr-defined]
    await node.renew(NOW + minutes(1.5))
    await recorder.run_once(NOW + minutes(1.5))
    (found,) = await buckets(node)
    assert (found.available_minutes, found.unavailable_minutes) == (0b11, 0b10)


async def test_the_report_is_sent_to_metrics(node: SteppedNode) -> None:
    await node.renew()
    node.engine.level_counter.emit(TicksFired([0.1] * 999 + [9.0], [0.1] * 999 + [9.0]))
    await node.engine.service_levels.run_once(NOW)
    (event,) = node.events_of(LevelsReported)
    found = {level.objective.sli: level for level in event.levels}
    assert (found[Sli.FIRE].good, found[Sli.FIRE].total) == (999, 1000)
    assert found[Sli.FIRE].budget_left == pytest.approx(0)
    assert found[Sli.SUCCESS].status is LevelStatus.NO_DATA
    report = await node.engine.service_levels.report(NOW)
    assert (report.since, report.levels) == (bucket_of(NOW), event.levels)
