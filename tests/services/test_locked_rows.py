"""Services while one row is locked: what waits, what does not, and what a worker is told. PostgreSQL only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from everbeat.core.errors import StoreLocked
from everbeat.core.protocol import TaskInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import TaskState
from everbeat.services.events import RowsLocked
from everbeat.store.postgres.store import PostgresStore
from tests.factories import NOW, SteppedNode, execute_raw, minutes, seconds
from tests.services.workers import Worker, get, submit, submit_many
from tests.support.row_locks import row_locked


@pytest.fixture
async def node(postgres_url: str) -> AsyncIterator[SteppedNode]:
    store = PostgresStore(postgres_url, listen=False)
    await store.open()
    try:
        yield SteppedNode(store)
    finally:
        await store.close()


async def test_a_report_with_a_locked_task_completes_the_others_and_can_be_repeated(
    node: SteppedNode, postgres_url: str
) -> None:
    await submit_many(node, 3)
    worker = Worker(node)
    locked, *others = await worker.claim(3)
    async with row_locked(postgres_url, "tasks", "id = $1", locked.id):
        with pytest.raises(StoreLocked):
            await worker.complete(locked, *others)
        assert [(await get(node, task)).state for task in others] == [TaskState.COMPLETED] * 2
        assert (await get(node, locked)).state is TaskState.RUNNING
    assert await worker.complete(locked, *others) == ["ok"] * 3
    assert node.events_of(RowsLocked)[0].verb == "task_complete"


async def test_a_failed_attempt_of_a_locked_task_is_recorded_after_the_release(node: SteppedNode, postgres_url: str) -> None:
    await submit(node)
    worker = Worker(node)
    task = await worker.claim_one()
    async with row_locked(postgres_url, "tasks", "id = $1", task.id):
        failing = asyncio.create_task(worker.fail(task))
        await asyncio.wait({failing}, timeout=0.2)
        assert not failing.done()
    assert (await failing).status == "ok"


async def test_a_heartbeat_of_a_locked_task_keeps_the_lease(node: SteppedNode, postgres_url: str) -> None:
    await submit(node)
    worker = Worker(node)
    task = await worker.claim_one()
    node.move_to(NOW + seconds(10))
    async with row_locked(postgres_url, "tasks", "id = $1", task.id):
        heartbeat = await worker.heartbeat(task)
        assert (heartbeat.status, heartbeat.lease_until) == ("ok", NOW + seconds(30))
    assert (await worker.heartbeat(task)).lease_until == NOW + seconds(40)


async def test_the_reaper_ends_the_others_and_tries_the_locked_one_again(node: SteppedNode, postgres_url: str) -> None:
    await submit_many(node, 20)
    locked, *others = await Worker(node).claim(20, lease_seconds=5)
    async with row_locked(postgres_url, "tasks", "id = $1", locked.id):
        await asyncio.wait_for(node.reaper.run_once(NOW + minutes(1)), 2)
        assert [(await get(node, task)).state for task in others] == [TaskState.READY] * 19
        assert (await get(node, locked)).state is TaskState.RUNNING
        await asyncio.wait_for(node.reaper.wait(), 0.9)  # its interval is a second
        await node.reaper.run_once(NOW + minutes(1))
        locked_events = node.events_of(RowsLocked)
        assert [(one.verb, one.id) for one in locked_events] == [("task_end", locked.id)] * 2
        assert locked_events[1].longest_seconds > 0.2
    await node.reaper.run_once(NOW + minutes(1))
    assert (await get(node, locked)).state is TaskState.READY


async def test_a_node_keeps_a_locked_partition_until_its_lease_ends(node: SteppedNode, postgres_url: str) -> None:
    await node.renew()
    async with row_locked(postgres_url, "partitions", "partition = 7"):
        for at in (3, 6):
            await node.renew(NOW + seconds(at))
            assert node.ownership.current()[7] == 1
        await asyncio.wait_for(node.ownership.wait(), 2)  # instead of a third of the lease
        node.move_to(NOW + seconds(9.5))
        assert 7 not in node.ownership.current()
        assert len(node.ownership.current()) == 255
    await node.renew(NOW + seconds(10))
    assert node.ownership.current()[7] == 1
    assert len(node.owned) == 256


async def test_a_submit_with_a_locked_key_delays_no_other_submit(node: SteppedNode, postgres_url: str) -> None:
    await node.tasks.submit(DEFAULT_TENANT, TaskInput(type="t", idempotency_key=None), key=None)
    await execute_raw(
        node.store,
        "INSERT INTO task_keys (tenant_id, key, task_id, fingerprint, expires_at) SELECT tenant_id, 'taken', id, '', "
        "now() + interval '1 day' FROM tasks",
    )
    async with row_locked(postgres_url, "task_keys", "key = 'taken'"):
        submits = [node.tasks.submit_batch(DEFAULT_TENANT, [TaskInput(type="t", idempotency_key=key)]) for key in KEYS]
        locked, *others = [asyncio.create_task(one) for one in submits]
        ids = [(await asyncio.wait_for(one, 1))[0] for one in others]
        assert all(isinstance(id_, UUID) for id_ in ids)
        with pytest.raises(StoreLocked):
            await locked


KEYS = ["taken", "free", None]
