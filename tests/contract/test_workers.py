"""worker_write, worker_list, worker_queues, worker_running and worker_prune; task_queue_list."""

from __future__ import annotations

import asyncio
from typing import Any

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.workers import WorkerSighting, WorkerState
from everbeat.store.base import Store
from everbeat.store.values import QueueTasks, WorkerQueue
from tests.factories import NOW, OTHER_TENANT, claim, make_task, minutes, seconds

DAY = 86_400.0


def sighting(worker: str = "host:1", *queues: str, **more: Any) -> WorkerSighting:
    values: dict[str, Any] = {
        "tenant_id": DEFAULT_TENANT,
        "age_seconds": 0.0,
        "queues": queues or ("default",),
        "types": ("a", "b"),
        "concurrency": 5,
        "version": "1.2",
    }
    return WorkerSighting(worker=worker, **{**values, **more})


async def names(store: Store, **more: Any) -> list[str]:
    return [one.worker for one in await store.worker_list(DEFAULT_TENANT, limit=100, **more)]


async def test_worker_write_creates_and_updates_a_worker(store: Store) -> None:
    await store.worker_write("node-1", [sighting(age_seconds=5)], now=NOW)
    (first,) = await store.worker_list(DEFAULT_TENANT, limit=10)
    assert (first.worker, first.queues, first.types, first.concurrency) == ("host:1", ("default",), ("a", "b"), 5)
    assert (first.version, first.node, first.state) == ("1.2", "node-1", WorkerState.LIVE)
    assert first.started_at == first.last_seen_at == NOW - seconds(5)

    changed = sighting("host:1", "mail", types=None, state=WorkerState.STOPPING)
    await store.worker_write("node-2", [changed], now=NOW + minutes(1))
    (second,) = await store.worker_list(DEFAULT_TENANT, limit=10)
    assert (second.queues, second.types, second.node, second.state) == (("mail",), None, "node-2", WorkerState.STOPPING)
    assert (second.id, second.started_at, second.last_seen_at) == (first.id, NOW - seconds(5), NOW + minutes(1))


async def test_worker_write_does_not_replace_a_newer_sighting(store: Store) -> None:
    await store.worker_write("newer", [sighting()], now=NOW)
    assert await store.worker_write("older", [sighting("host:1", "mail", age_seconds=10)], now=NOW) == 0
    assert await store.worker_write("older", [sighting(queues=None, age_seconds=10)], now=NOW) == 0
    (found,) = await store.worker_list(DEFAULT_TENANT, limit=10)
    assert (found.node, found.queues) == ("newer", ("default",))


async def test_worker_write_of_a_heartbeat_changes_only_the_time_and_the_state(store: Store) -> None:
    heartbeat = sighting(queues=None, types=None, state=WorkerState.GONE)
    assert await store.worker_write("node", [heartbeat], now=NOW) == 0
    assert await names(store) == []
    await store.worker_write("node", [sighting()], now=NOW)
    assert await store.worker_write("node-2", [heartbeat, sighting("host:2")], now=NOW + seconds(5)) == 2
    found = {one.worker: one for one in await store.worker_list(DEFAULT_TENANT, limit=10)}
    first = found["host:1"]
    assert (first.queues, first.state, first.node) == (("default",), WorkerState.GONE, "node-2")
    assert first.last_seen_at == NOW + seconds(5)


async def test_worker_write_by_two_nodes_at_once_succeeds(store: Store) -> None:
    batch = [sighting(f"host:{number}") for number in range(50)]
    await asyncio.gather(
        *(store.worker_write(f"node-{n}", batch[:: -1 if n else 1], now=NOW + seconds(n)) for n in (0, 1, 0, 1))
    )
    assert len(await names(store)) == 50


async def test_worker_list_returns_those_of_the_tenant_and_fleets_the_last_seen_first(store: Store) -> None:
    batch = [
        sighting("old", age_seconds=60),
        sighting("fleet", tenant_id=None, age_seconds=30),
        sighting("new", "mail", "reports"),
        sighting("foreign", "mail", tenant_id=OTHER_TENANT),
    ]
    await store.worker_write("node", batch, now=NOW)
    assert await names(store) == ["new", "fleet", "old"]
    assert await names(store, queue="reports") == ["new"]
    assert await names(store, queue="report") == []
    (last,) = await store.worker_list(DEFAULT_TENANT, limit=1)
    assert await names(store, before=(last.last_seen_at, last.id)) == ["fleet", "old"]
    assert [one.worker for one in await store.worker_list(OTHER_TENANT, limit=10)] == ["foreign", "fleet"]


async def test_worker_queues_counts_live_workers_and_names_the_last_one(store: Store) -> None:
    batch = [
        sighting("a", "mail"),
        sighting("b", "mail", "reports", age_seconds=61),
        sighting("c", "mail", age_seconds=61, lease_seconds=600),
        sighting("d", "reports", age_seconds=10, state=WorkerState.STOPPING),
        sighting("e", "mail", tenant_id=OTHER_TENANT),
        sighting("fleet", "all", tenant_id=None),
    ]
    await store.worker_write("node", batch, now=NOW)
    assert await store.worker_queues(DEFAULT_TENANT, now=NOW) == [
        WorkerQueue("all", 1, "fleet", NOW),
        WorkerQueue("mail", 2, "a", NOW),
        WorkerQueue("reports", 0, "d", NOW - seconds(10)),
    ]


async def test_worker_running_counts_the_tasks_of_the_tenant(store: Store) -> None:
    tasks = [make_task() for _ in range(3)] + [make_task(tenant_id=OTHER_TENANT)]
    await store.task_submit(tasks, now=NOW)
    claimed = await claim(store, worker="host:1", limit=2, now=NOW)
    assert len(claimed) == 2
    assert await store.worker_running(DEFAULT_TENANT, ["host:1", "host:2"]) == {"host:1": 2}
    assert await store.worker_running(OTHER_TENANT, ["host:1"]) == {}


async def test_worker_prune_removes_the_unseen_ones_and_those_beyond_the_limit(store: Store) -> None:
    batch = [sighting(f"host:{number}", age_seconds=number) for number in range(5)]
    old = [sighting("old", age_seconds=8 * DAY), sighting("old", tenant_id=OTHER_TENANT, age_seconds=8 * DAY)]
    await store.worker_write("node", [*batch, *old, sighting("other", tenant_id=OTHER_TENANT)], now=NOW)
    assert await store.worker_prune(unseen_seconds=7 * DAY, keep=3, limit=1, now=NOW) == 1
    assert await store.worker_prune(unseen_seconds=7 * DAY, keep=3, limit=100, now=NOW) == 3
    assert await names(store) == ["host:0", "host:1", "host:2"]
    assert [one.worker for one in await store.worker_list(OTHER_TENANT, limit=10)] == ["other"]


async def test_task_queue_list_counts_by_state_and_returns_the_oldest_ready_time(store: Store) -> None:
    tasks = [
        make_task(queue="mail", run_at=NOW - minutes(2)),
        make_task(queue="mail", run_at=NOW - minutes(1)),
        make_task(queue="mail", run_at=NOW + minutes(1)),
        make_task(queue="reports"),
        make_task(queue="mail", tenant_id=OTHER_TENANT),
    ]
    await store.task_submit(tasks, now=NOW)
    await claim(store, "reports", now=NOW)
    assert await store.task_queue_list(DEFAULT_TENANT) == [
        QueueTasks("mail", 2, 1, 0, 0, NOW - minutes(2)),
        QueueTasks("reports", 0, 0, 0, 1, None),
    ]
