"""Periodic work: the auditor's alarm, retention and lost tasks; and the view of the cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from everbeat.core.changes import ScheduleWrite
from everbeat.core.retention import RetentionPeriods
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.cluster import ClusterService
from everbeat.services.events import Pruned
from everbeat.services.maintenance.pruner import Pruner
from everbeat.services.reaper import Reaper
from everbeat.store.base import Store
from everbeat.store.values import IdempotentResponse, QueueDepth
from tests.factories import (
    NOW,
    SteppedNode,
    claim,
    count_rows,
    ledger,
    make_schedule,
    minutes,
    node_heartbeat,
    seconds,
    skip,
)

DAY = timedelta(days=1)


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


async def test_the_pruner_removes_only_what_is_past_retention(node: SteppedNode) -> None:
    await node.renew()
    job = make_schedule()
    moments = [NOW - 100 * DAY, NOW - 95 * DAY, NOW - 10 * DAY, NOW]
    write = ScheduleWrite(job, skips=tuple(skip(at) for at in moments))
    response = IdempotentResponse(key="old", fingerprint=b"", status=201, body=b"")
    assert await node.store.schedule_write(DEFAULT_TENANT, [write], response=response, now=NOW - 2 * DAY)
    await node.store.partition_renew(node_heartbeat(job.id), frozenset(), now=NOW - 2 * DAY)
    pruner = Pruner(node.store, node.ownership, RetentionPeriods.of_days(30), emit=node.events.append)
    while await pruner.run_once(NOW):
        pass
    assert [tick.scheduled_for for tick in await ledger(node.store, job.id)] == moments[2:]
    assert await count_rows(node.store, "idempotent_answers") == 0
    assert [one.id for one in (await node.store.node_list(now=NOW))[1]] == [node.id]
    assert {event.what for event in node.events_of(Pruned)} == {
        "responses",
        "months" if node.store.dialect == "postgres" else "rows of months",
    }


async def test_the_pruner_returns_whether_there_is_more_to_remove(node: SteppedNode) -> None:
    await node.renew()
    skips = tuple(skip(datetime(2025, month, 1, tzinfo=UTC)) for month in range(1, 7))
    assert await node.store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(make_schedule(), skips=skips)], now=NOW)
    pruner = Pruner(node.store, node.ownership, RetentionPeriods.of_days(30), batch_size=4, budget_seconds=0)
    runs = 1
    while await pruner.run_once(NOW):
        runs += 1
    assert runs > 1
    assert await count_rows(node.store, "ticks") == 0


async def test_the_reaper_makes_lost_tasks_ready(node: SteppedNode) -> None:
    await node.put()
    await node.step(NOW + minutes(1))
    await claim(node.store, worker="gone", now=node.now)
    reaper = Reaper(node.store, node.engine.publisher, batch_size=1)
    assert not await reaper.run_once(node.now)
    assert await reaper.run_once(node.now + seconds(31))
    assert await node.store.task_depths() == [QueueDepth("default", "ready", 1)]


async def test_singleton_loops_run_only_on_the_owner_of_the_first_partition(node: SteppedNode) -> None:
    skips = (skip(NOW - 300 * DAY),)
    assert await node.store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(make_schedule("x"), skips=skips)], now=NOW)
    assert not await Pruner(node.store, node.ownership, RetentionPeriods.of_days(30)).run_once(NOW)
    assert await count_rows(node.store, "ticks") == 1


async def test_the_cluster_view_distinguishes_live_and_dead_nodes(node: SteppedNode) -> None:
    dead = SteppedNode(node.store, name="dead")
    await dead.renew()
    await node.put()
    await node.run(NOW + minutes(1), by_seconds=20)
    view = await ClusterService(node.store).view(DEFAULT_TENANT, now=node.now)
    assert {one.name: view.is_alive(one) for one in view.nodes} == {"dead": False, "node": True}
    assert (view.now, view.unowned, view.schedules, view.faulty) == (node.now, 0, {"active": 1}, 0)
    assert view.queues == [QueueDepth("default", "ready", 1)]
    later = await ClusterService(node.store).view(DEFAULT_TENANT, now=node.now + minutes(1))
    assert later.unowned == 256
