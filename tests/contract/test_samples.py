"""sample_waiting, sample_ready, sample_running, sample_workers, sample_database and pool_use: the state of a cluster."""

from __future__ import annotations

from datetime import timedelta

import asyncpg

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.base import Store
from everbeat.store.samples import ReadySample, RunningSample
from tests.contract.test_twins import TABLES
from tests.contract.test_workers import sighting
from tests.factories import NOW, OTHER_TENANT, claim, make_task, minutes, seconds, url_of


async def ready(store: Store, *, max_queues: int = 100, max_flows: int = 100, limit: int = 100) -> list[ReadySample]:
    return await store.sample_ready(max_queues=max_queues, max_flows=max_flows, limit=limit)


async def test_sample_waiting_counts_tasks_of_all_tenants_up_to_a_limit(store: Store) -> None:
    assert await store.sample_waiting(limit=10) == {"held": 0, "scheduled": 0}
    tenants = (OTHER_TENANT, DEFAULT_TENANT, OTHER_TENANT)
    later = [make_task(tenant_id=tenant, run_at=NOW + minutes(5)) for tenant in tenants]
    await store.task_submit([*later, make_task("ready")], now=NOW)
    assert await store.sample_waiting(limit=10) == {"held": 0, "scheduled": 3}
    assert await store.sample_waiting(limit=2) == {"held": 0, "scheduled": 2}


async def test_sample_ready_finds_the_oldest_task_of_each_queue_whatever_its_flow(store: Store) -> None:
    assert await ready(store) == []
    given = (
        ("mail", OTHER_TENANT, 100, 5),
        ("mail", DEFAULT_TENANT, 100, 3),
        ("mail", DEFAULT_TENANT, 7, 90),
        ("mail", DEFAULT_TENANT, 7, 1),
        ("slow", OTHER_TENANT, 100, 2),
    )
    await store.task_submit(
        [
            make_task(queue=queue, tenant_id=tenant, priority=priority, run_at=NOW - seconds(age))
            for queue, tenant, priority, age in given
        ],
        now=NOW,
    )
    assert await ready(store) == [ReadySample("mail", 4, NOW - seconds(90)), ReadySample("slow", 1, NOW - seconds(2))]
    assert await ready(store, limit=3) == [ReadySample("mail", 3, NOW - seconds(90)), ReadySample("slow", 1, NOW - seconds(2))]
    assert await ready(store, max_queues=1) == [ReadySample("mail", 4, NOW - seconds(90))]
    bounded = await ready(store, max_flows=1)
    assert [(one.queue, one.ready) for one in bounded] == [("mail", 4), ("slow", 1)]


async def test_sample_running_counts_tasks_that_have_used_most_of_their_timeout(store: Store) -> None:
    tasks = [
        make_task(queue=queue, timeout_seconds=timeout)
        for queue, timeout in (("mail", 100.0), ("mail", 1000.0), ("slow", 60.0))
    ]
    await store.task_submit(tasks, now=NOW)
    await claim(store, "mail", "slow")
    later = NOW + seconds(91)
    assert await store.sample_running(near_ratio=0.9, limit=10, now=later) == [
        RunningSample("mail", 2, 1),
        RunningSample("slow", 1, 1),
    ]
    assert sum(one.running for one in await store.sample_running(near_ratio=0.9, limit=2, now=later)) == 2
    assert [one.near_timeout for one in await store.sample_running(near_ratio=0.9, limit=10, now=NOW)] == [0, 0]


async def test_sample_workers_counts_live_workers_of_all_tenants_by_queue(store: Store) -> None:
    assert await store.sample_workers(limit=10, now=NOW) == {}
    seen = [
        sighting("a", "mail", "slow"),
        sighting("b", "mail", tenant_id=OTHER_TENANT),
        sighting("fleet", "slow", tenant_id=None),
        sighting("silent", "mail", age_seconds=300),
    ]
    await store.worker_write("node", seen, now=NOW)
    assert await store.sample_workers(limit=10, now=NOW) == {"mail": 2, "slow": 2}
    assert await store.sample_workers(limit=10, now=NOW + minutes(10)) == {}


async def test_sample_database_measures_the_database_and_its_tables(store: Store) -> None:
    sample = await store.sample_database()
    assert sample.bytes > 100_000
    if store.dialect == "sqlite":
        assert sample.free_bytes is not None
        assert sample.wal_bytes is not None
        assert (sample.oldest_transaction_seconds, sample.tables) == (None, [])
        return
    assert sample.wal_bytes is not None  # the role of the tests is a superuser
    assert sample.oldest_transaction_seconds is not None
    await store.month_ensure([NOW])
    before = {one.table: one.bytes for one in (await store.sample_database()).tables}
    assert set(before) == set(TABLES)
    await store.month_ensure([NOW + timedelta(days=40)])
    after = {one.table: one.bytes for one in (await store.sample_database()).tables}
    assert after["ticks"] > before["ticks"]  # the indexes of an empty month have a page


async def test_sample_database_sees_an_open_transaction(store: Store) -> None:
    if store.dialect == "sqlite":
        return  # nothing knows the transactions of other processes
    connection = await asyncpg.connect(url_of(store))
    try:
        await connection.execute("BEGIN")
        await connection.execute("SELECT pg_sleep(0.05)")
        age = (await store.sample_database()).oldest_transaction_seconds
        assert age is not None
        assert age >= 0.05
    finally:
        await connection.close()


async def test_pool_use_counts_connections(store: Store) -> None:
    await store.sample_waiting(limit=1)
    uses = {use.pool: use for use in store.pool_use()}
    assert set(uses) == ({"reader", "writer"} if store.dialect == "sqlite" else {"api", "engine", "maintenance", "lease"})
    for use in uses.values():
        assert 0 <= use.used <= use.open <= use.max
        assert use.waiting == 0
    assert uses["reader" if store.dialect == "sqlite" else "api"].open >= 1
