"""task_cancel: ends tasks that have not started and requests running tasks to stop, also under concurrent changes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar
from uuid import UUID

import apsw
import asyncpg
import pytest

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, TaskState
from everbeat.store.base import Store
from everbeat.store.sqlite.store import SqliteStore
from everbeat.store.values import CancelResult
from tests.factories import (
    NOW,
    OTHER_TENANT,
    claim,
    complete,
    count_rows,
    execute_raw,
    make_task,
    minutes,
    open_second_store,
    url_of,
)

T = TypeVar("T")
NOTHING = CancelResult(frozenset(), frozenset(), frozenset(), [])
SCHEDULE = UUID(int=9)


@pytest.mark.parametrize("state", ["ready", "scheduled", "held"])
async def test_task_cancel_ends_a_task_that_has_not_started(store: Store, state: str) -> None:
    task = make_task("mail", payload=b"[1]", schedule_id=SCHEDULE, schedule_name="nightly", traceparent="00-a-b-01")
    await store.task_submit([task], now=NOW)
    await execute_raw(store, f"UPDATE tasks SET state = '{state}'")
    cancelled = await store.task_cancel(DEFAULT_TENANT, [task.id], now=NOW + minutes(1))
    assert cancelled[:3] == (frozenset({task.id}), frozenset(), frozenset({SCHEDULE}))
    assert await count_rows(store, "tasks") == 0
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.state, found.finished_at, found.started_at) == (TaskState.CANCELLED, NOW + minutes(1), None)
    assert (found.outcome, found.reason) == (None, "cancelled before it started")
    assert (found.type, found.payload, found.schedule, found.traceparent) == ("mail", b"[1]", "nightly", "00-a-b-01")
    assert await count_rows(store, "dead_letters") == 0


async def test_task_cancel_requests_a_running_task_to_stop(store: Store) -> None:
    await store.task_submit([make_task(schedule_id=SCHEDULE)], now=NOW)
    (task,) = await claim(store)
    requested = CancelResult(frozenset(), frozenset({task.id}), frozenset())[:3]
    assert (await store.task_cancel(DEFAULT_TENANT, [task.id], now=NOW))[:3] == requested
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.state, found.cancel_requested, found.fence) == (TaskState.RUNNING, True, 1)
    assert (await store.task_cancel(DEFAULT_TENANT, [task.id], now=NOW))[:3] == requested, (
        "a repeated request returns the same result"
    )


async def test_task_cancel_of_a_task_waiting_for_a_retry_keeps_its_attempts(store: Store) -> None:
    await store.task_submit([make_task()], now=NOW)
    (task,) = await claim(store)
    later = AttemptEnd(task.id, DEFAULT_TENANT, 1, AttemptOutcome.FAILED, TaskState.SCHEDULED, NOW + minutes(5), '"no"')
    await store.task_end([later], is_expired=False, now=NOW)
    await store.task_cancel(DEFAULT_TENANT, [task.id], now=NOW)
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.state, found.attempt, found.fence, found.error) == (TaskState.CANCELLED, 1, 1, b'"no"')
    assert len(await store.task_attempts(DEFAULT_TENANT, task.id)) == 1


async def test_task_cancel_of_finished_unknown_or_foreign_tasks_changes_nothing(store: Store) -> None:
    await store.task_submit([make_task(), make_task(tenant_id=OTHER_TENANT)], now=NOW)
    (done,) = await claim(store)
    await complete(store, done)
    (theirs,) = await claim(store, tenant_id=OTHER_TENANT)
    assert await store.task_cancel(DEFAULT_TENANT, [done.id, theirs.id, UUID(int=5)], now=NOW) == NOTHING
    assert await store.task_cancel(DEFAULT_TENANT, [], now=NOW) == NOTHING
    (found,) = await store.task_find(OTHER_TENANT, [theirs.id])
    assert not found.cancel_requested


async def test_task_cancel_of_a_batch_handles_each_task_by_its_state(store: Store) -> None:
    tasks = [make_task() for _ in range(6)]
    await store.task_submit(tasks, now=NOW)
    running = await claim(store, limit=2)
    cancelled = await store.task_cancel(DEFAULT_TENANT, [task.id for task in tasks] * 2, now=NOW)
    assert cancelled.requested == {task.id for task in running}
    assert cancelled.ended == {task.id for task in tasks} - cancelled.requested


async def test_task_cancel_creates_a_missing_month(store: Store) -> None:
    task = make_task()
    await store.task_submit([task], now=NOW)
    assert (await store.task_cancel(DEFAULT_TENANT, [task.id], now=NOW + minutes(60 * 24 * 400))).ended == {task.id}


async def test_task_cancel_during_claims_ends_or_requests_each_task(store: Store) -> None:
    second_store = open_second_store(store)
    for _ in range(10):
        tasks = [make_task() for _ in range(20)]
        await store.task_submit(tasks, now=NOW)
        ids = [task.id for task in tasks]
        claimed, cancelled = await asyncio.gather(
            claim(store, limit=15), second_store.task_cancel(DEFAULT_TENANT, ids, now=NOW)
        )
        running = {task.id for task in claimed}
        assert cancelled.requested <= running
        assert cancelled.ended | cancelled.requested == set(ids), "each task is either ended or requested to stop"
        await complete(store, *claimed)
    await second_store.close()


async def test_task_cancel_of_a_task_that_is_being_requeued_is_not_lost(store: Store) -> None:
    """The attempt ends, uncommitted, when the cancel arrives. The cancel must find the task in one of the two states."""
    await store.task_submit([make_task()], now=NOW)
    (task,) = await claim(store)
    back = "UPDATE tasks SET state = 'ready', lease_owner = NULL, lease_until = NULL"
    cancelled = await run_during_uncommitted_change(store, back, store.task_cancel(DEFAULT_TENANT, [task.id], now=NOW))
    assert cancelled[:3] == (frozenset({task.id}), frozenset(), frozenset())


async def run_during_uncommitted_change(store: Store, sql: str, work: Coroutine[Any, Any, T]) -> T:
    """Run `work` while another connection has uncommitted changes. That connection commits when `work` waits for it."""
    if isinstance(store, SqliteStore):
        return await _run_during_uncommitted_change_sqlite(store, sql, work)
    connection, watcher = await asyncpg.connect(url_of(store)), await asyncpg.connect(url_of(store))
    try:
        async with connection.transaction():
            await connection.execute(sql)
            task = asyncio.create_task(work)
            async with asyncio.timeout(20):
                while not await watcher.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                    await asyncio.sleep(0.01)
        return await task
    finally:
        await connection.close()
        await watcher.close()


async def _run_during_uncommitted_change_sqlite(store: SqliteStore, sql: str, work: Coroutine[Any, Any, T]) -> T:
    """SQLite serializes all writes, so this does not have to observe that `work` waits."""
    connection = apsw.Connection(store.description)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(sql)
        task = asyncio.create_task(work)
        await asyncio.sleep(0.05)
        connection.execute("COMMIT")
        return await task
    finally:
        connection.close()
