"""What services report for metrics: stale writes, expired leases, group commits, run times, and the lag of the tick loop."""

from __future__ import annotations

from uuid import uuid4

import pytest

from everbeat.core.errors import StoreUnavailable
from everbeat.core.protocol import Lease
from everbeat.services.events import AttemptsRan, GroupCommitted, LeasesExpired, StaleWritesRefused, TasksClaimed
from everbeat.services.group_commit import GroupCommit
from everbeat.store.base import Store
from tests.factories import NOW, SteppedNode, StoreOverride, make_task, seconds
from tests.services.workers import Worker


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


async def test_reports_on_lost_leases_are_counted_by_operation(node: SteppedNode) -> None:
    worker = Worker(node)
    await node.store.task_submit([make_task()], now=NOW)
    task = await worker.claim_one()
    assert await worker.complete(task) == ["ok"]
    assert await worker.complete(task) == ["ok"]  # a repeated report is not stale
    assert node.events_of(StaleWritesRefused) == []
    unknown = Lease(id=uuid4(), fence=1)
    await worker.complete(unknown)
    await worker.fail(unknown)
    await worker.release(unknown)
    await worker.heartbeat(unknown)
    assert [tuple(event) for event in node.events_of(StaleWritesRefused)] == [
        ("complete", 1),
        ("end", 1),
        ("end", 1),
        ("heartbeat", 1),
    ]


async def test_an_attempt_that_the_reaper_ends_is_an_expired_lease_and_ran_until_then(node: SteppedNode) -> None:
    await node.store.task_submit([make_task()], now=NOW)
    await Worker(node).claim_one()
    await node.reap(NOW + seconds(31))
    assert node.events_of(LeasesExpired) == [LeasesExpired(1)]
    assert [event.runs for event in node.events_of(AttemptsRan)] == [[("lost", 31.0, 3600.0)]]


async def test_a_claim_reports_the_time_in_ready(node: SteppedNode) -> None:
    await node.store.task_submit([make_task()], now=NOW)
    node.move_to(NOW + seconds(4))
    await Worker(node).claim_one()
    assert node.events_of(TasksClaimed) == [TasksClaimed(1, [4.0])]


async def test_a_group_commit_reports_the_rows_of_each_batch(node: SteppedNode) -> None:
    rows: list[int] = []

    async def write(items: list[str]) -> list[None]:
        return [None] * len(items)

    commits = GroupCommit(write, max_rows=3, count_rows=len, on_batch=rows.append)
    await commits.add("ab")
    assert rows == [2]
    node.engine.publisher.report_group_commit("task_submit")(7)
    assert node.events == [GroupCommitted("task_submit", 7)]


class _RefusingStore(StoreOverride):
    is_refusing = False

    async def tick_fire(self, *args: object, **more: object) -> object:
        if self.is_refusing:
            raise StoreUnavailable("unavailable")
        return await self.inner.tick_fire(*args, **more)  # type: ignore[arg-type]


async def test_the_evaluation_lag_is_the_age_of_the_oldest_tick_that_has_not_fired(store: Store) -> None:
    refusing = _RefusingStore(store)
    node = SteppedNode(refusing)
    assert node.ticker.evaluation_lag() == 0  # it owns nothing
    await node.put()
    await node.renew()
    await node.tick()
    assert node.ticker.evaluation_lag() == 0
    refusing.is_refusing = True
    await node.renew(NOW + seconds(57))
    await node.tick()
    for late in (62, 64):
        await node.renew(NOW + seconds(late))
        with pytest.raises(StoreUnavailable):
            await node.tick()
        assert node.ticker.evaluation_lag() == pytest.approx(late - 60, abs=0.01)
    refusing.is_refusing = False
    await node.tick()
    assert node.ticker.evaluation_lag() == pytest.approx(0, abs=0.01)


async def test_a_node_that_cannot_load_schedules_is_late(node: SteppedNode) -> None:
    await node.renew()
    await node.tick()
    horizon = 5.0
    node.move_to(NOW + seconds(horizon + 2))
    await node.ownership.run_once(node.now)
    assert node.ticker.evaluation_lag() == pytest.approx(2, abs=0.01)
