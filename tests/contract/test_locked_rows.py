"""While another session has locked one row, the other rows of each batch proceed.

PostgreSQL only: SQLite has no row locks. Its one write lock is held for the duration of a write, and the tests of processes
that hold it for longer are in tests/cluster/test_sqlite_processes.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import pytest

from everbeat.core.changes import ScheduleWrite
from everbeat.core.errors import StoreLocked
from everbeat.core.fairness import ClaimStep
from everbeat.core.schedules import DEFAULT_TENANT, Overlap
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, ClaimedTask, TaskKey, TaskState
from everbeat.core.tenants import Tenant, TenantQuotas
from everbeat.core.ticks import Outcome
from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.values import ClaimRequest, HeartbeatWrite, IdempotentResponse, RenewedLease, Replay, TenantWrite
from tests.contract.test_keys import make as make_key
from tests.contract.test_tick_fire import NODE, insert_and_own
from tests.factories import (
    NOW,
    OTHER_TENANT,
    changed,
    claim,
    complete,
    count_rows,
    execute_raw,
    find,
    firing_of,
    lease_of,
    make_schedule,
    make_task,
    minutes,
    node_heartbeat,
    seconds,
)
from tests.support.row_locks import row_locked

T = TypeVar("T")

# A verb that waits for the lock does not return before its lock timeout of five seconds.
_PROMPT_SECONDS = 2.0


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[Store]:
    made = PostgresStore(postgres_url, listen=False)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def prompt(verb: Awaitable[T]) -> T:
    """The result of a verb, which must not wait for a lock."""
    return await asyncio.wait_for(verb, _PROMPT_SECONDS)


async def test_tick_fire_skips_a_locked_schedule_and_fires_the_others(store: Store, postgres_url: str) -> None:
    schedules = [make_schedule(f"job-{number}") for number in range(20)]
    await insert_and_own(store, *schedules)
    locked, others = schedules[7], [one for one in schedules if one is not schedules[7]]
    firings = [firing_of(one) for one in schedules]
    async with row_locked(postgres_url, "schedules", "id = $1", locked.id):
        result = await prompt(store.tick_fire(NODE, firings, now=NOW))
        assert {one.schedule_id: one.outcome for one in result.fired} == {one.id: Outcome.FIRED for one in others}
        assert result.locked_ids == {locked.id}
        assert await find(store, locked) == locked
        assert await count_rows(store, "ticks", locked.id) == await count_rows(store, "tasks", locked.id) == 0
    again = await store.tick_fire(NODE, [firings[7]], now=NOW)
    assert [one.outcome for one in again.fired] == [Outcome.FIRED]
    assert again.locked_ids == frozenset()


async def test_tick_fire_reports_only_schedules_that_would_fire_as_locked(store: Store, postgres_url: str) -> None:
    """A firing that a guard refuses is not tried again, whether or not its row is locked."""
    stale, foreign, valid = make_schedule("stale"), make_schedule("foreign"), make_schedule("valid")
    await insert_and_own(store, stale, foreign, valid)
    firings = [
        firing_of(stale, revision=stale.revision + 1),
        firing_of(foreign, epoch=9),
        firing_of(valid),
    ]
    async with row_locked(postgres_url, "schedules"):
        result = await prompt(store.tick_fire(NODE, firings, now=NOW))
    assert result.fired == []
    assert result.locked_ids == {valid.id}


async def test_tick_fire_by_two_nodes_at_once_fires_each_tick_once(store: Store, postgres_url: str) -> None:
    schedules = [make_schedule(f"job-{number}") for number in range(50)]
    await insert_and_own(store, *schedules)
    stores = [PostgresStore(postgres_url, listen=False) for _ in range(3)]
    try:
        batches = [[firing_of(one) for one in schedules] for _ in range(6)]
        calls = [stores[number % 3].tick_fire(NODE, batch, now=NOW) for number, batch in enumerate(batches)]
        results = await asyncio.gather(*calls)
    finally:
        for one in stores:
            await one.close()
    fired = [one.schedule_id for result in results for one in result.fired]
    assert sorted(fired) == sorted(one.id for one in schedules)
    assert await count_rows(store, "tasks") == await count_rows(store, "ticks") == 50


# Leases of workers


async def start_tasks(store: Store, count: int, *, lease_seconds: float = 30, **more: Any) -> list[ClaimedTask]:
    await store.task_submit([make_task(**more) for _ in range(count)], now=NOW)
    return await claim(store, limit=count, lease_seconds=lease_seconds)


async def test_task_complete_skips_a_locked_task_and_completes_the_others(store: Store, postgres_url: str) -> None:
    locked, *others = await start_tasks(store, 20)
    async with row_locked(postgres_url, "tasks", "id = $1", locked.id):
        done = await prompt(complete(store, locked, *others))
        assert done.finished == {(task.id, 1) for task in others}
        assert done.locked == {(locked.id, 1)}
        assert done.repeated == frozenset()
        assert len(done.changes) == 19
    again = await complete(store, locked)
    assert again.finished == {(locked.id, 1)}
    assert again.locked == frozenset()


async def test_task_complete_waits_for_a_short_lock_without_changing_the_lock_timeout_of_its_connection(
    store: Store, postgres_url: str
) -> None:
    assert isinstance(store, PostgresStore)
    tasks = await start_tasks(store, 3)
    async with store._connections.use("api", "show") as connection:
        before = await connection.fetchval("SHOW lock_timeout")
    async with row_locked(postgres_url, "tasks", "id = $1", tasks[0].id):
        assert (await prompt(complete(store, *tasks[:2]))).locked == {(tasks[0].id, 1)}
    assert (await complete(store, tasks[0], tasks[2])).finished == {(tasks[0].id, 1), (tasks[2].id, 1)}
    async with store._connections.use("api", "show") as connection:
        assert await connection.fetchval("SHOW lock_timeout") == before


async def test_task_complete_reports_a_stale_fence_of_a_locked_task_as_stale(store: Store, postgres_url: str) -> None:
    (task,) = await start_tasks(store, 1)
    async with row_locked(postgres_url, "tasks", "id = $1", task.id):
        done = await prompt(store.task_complete([(lease_of(task, fence=7), None)], now=NOW))
    assert done.finished == frozenset()
    assert done.repeated == frozenset()
    assert done.locked == frozenset()


async def test_task_heartbeat_skips_a_locked_task_and_renews_the_others(store: Store, postgres_url: str) -> None:
    locked, *others = await start_tasks(store, 20)
    heartbeats = [HeartbeatWrite(lease_of(task), 0.5, "half", "line") for task in (locked, *others)]
    async with row_locked(postgres_url, "tasks", "id = $1", locked.id):
        renewed = {one.id: one for one in await prompt(store.task_heartbeat(heartbeats, now=NOW + seconds(10)))}
        assert renewed[locked.id] == RenewedLease(locked.id, 1, NOW + seconds(30), False, is_locked=True)
        for task in others:
            assert renewed[task.id] == RenewedLease(task.id, 1, NOW + seconds(40), False)
    assert await store.task_log(DEFAULT_TENANT, locked.id, after=None, limit=10) == []
    assert len(await store.task_log(DEFAULT_TENANT, others[0].id, after=None, limit=10)) == 1


@pytest.mark.parametrize("state", [TaskState.READY, TaskState.DEAD])
async def test_task_end_skips_a_locked_task_and_ends_the_others(store: Store, postgres_url: str, state: TaskState) -> None:
    locked, *others = await start_tasks(store, 20, lease_seconds=5)
    endings = [AttemptEnd(one.id, DEFAULT_TENANT, 1, AttemptOutcome.LOST, state, None, None) for one in (locked, *others)]
    async with row_locked(postgres_url, "tasks", "id = $1", locked.id):
        ended = await prompt(store.task_end(endings, is_expired=True, now=NOW + minutes(1)))
        assert ended.ids == {(task.id, 1) for task in others}
        assert ended.locked == {(locked.id, 1)}
        (record,) = await store.task_find(DEFAULT_TENANT, [locked.id])
        assert record.state is TaskState.RUNNING
    again = await store.task_end(endings[:1], is_expired=True, now=NOW + minutes(1))
    assert again.ids == {(locked.id, 1)}
    assert again.locked == frozenset()


async def test_task_claim_skips_a_locked_task(store: Store, postgres_url: str) -> None:
    tasks = [make_task() for _ in range(5)]
    await store.task_submit(tasks, now=NOW)
    async with row_locked(postgres_url, "tasks", "id = $1", tasks[0].id):
        claimed = await prompt(claim(store, limit=5))
        assert {task.id for task in claimed} == {task.id for task in tasks[1:]}
    assert [task.id for task in await claim(store, limit=5)] == [tasks[0].id]


async def test_task_claim_claims_for_other_tenants_while_a_limited_tenant_is_locked(store: Store, postgres_url: str) -> None:
    limited = Tenant(id=OTHER_TENANT, name="limited", quotas=TenantQuotas(max_running=5), created_at=NOW, updated_at=NOW)
    await store.tenant_write([TenantWrite(limited, None)], now=NOW)
    await store.task_submit([make_task(), make_task(tenant_id=OTHER_TENANT)], now=NOW)
    steps = [ClaimStep(100, tenant, "", (("default", "work"),), 1) for tenant in (OTHER_TENANT, DEFAULT_TENANT)]
    requests = [ClaimRequest("w", 5, 30.0)]
    async with row_locked(postgres_url, "tenants", "id = $1", OTHER_TENANT):
        claims = await prompt(store.task_claim(steps, requests, limited={OTHER_TENANT}, now=NOW))
        assert [task.tenant_id for task in claims.tasks[0]] == [DEFAULT_TENANT]
        assert claims.full == {OTHER_TENANT}
    claims = await store.task_claim(steps, requests, limited={OTHER_TENANT}, now=NOW)
    assert [task.tenant_id for task in claims.tasks[0]] == [OTHER_TENANT]


async def test_task_promote_skips_a_locked_task_and_says_that_there_is_more(store: Store, postgres_url: str) -> None:
    tasks = [make_task(run_at=NOW + seconds(5)) for _ in range(20)]
    await store.task_submit(tasks, now=NOW)
    later = NOW + seconds(10)
    async with row_locked(postgres_url, "tasks", "id = $1", tasks[3].id):
        promoted = await prompt(store.task_promote(limit=100, now=later))
        assert (promoted.count, promoted.has_more) == (19, True)
    promoted = await store.task_promote(limit=100, now=later)
    assert (promoted.count, promoted.has_more) == (1, False)


async def test_task_release_held_skips_a_locked_schedule_and_releases_the_others(store: Store, postgres_url: str) -> None:
    schedules = [make_schedule(f"job-{number}", overlap=Overlap.QUEUE) for number in range(3)]
    await insert_and_own(store, *schedules)
    await store.tick_fire(NODE, [firing_of(one) for one in schedules], now=NOW)
    await execute_raw(store, "UPDATE tasks SET state = 'held'")
    ids = [one.id for one in schedules]
    async with row_locked(postgres_url, "schedules", "id = $1", ids[1]):
        released = await prompt(store.task_release_held(ids, limit=10, now=NOW))
        assert {change.schedule_id for change in released.changes} == {ids[0], ids[2]}
        assert released.locked_ids == {ids[1]}
    released = await store.task_release_held(ids, limit=10, now=NOW)
    assert [change.schedule_id for change in released.changes] == [ids[1]]
    assert released.locked_ids == frozenset()


async def test_task_release_held_leaves_a_locked_task_and_what_follows_it(store: Store, postgres_url: str) -> None:
    schedule = make_schedule(overlap=Overlap.QUEUE)
    await insert_and_own(store, schedule)
    await store.tick_fire(NODE, [firing_of(schedule)], now=NOW)
    await execute_raw(store, "UPDATE tasks SET state = 'held'")
    async with row_locked(postgres_url, "tasks", "schedule_id = $1", schedule.id):
        assert (await prompt(store.task_release_held([schedule.id], limit=10, now=NOW))).changes == []
    assert len((await store.task_release_held([schedule.id], limit=10, now=NOW)).changes) == 1


# Ownership


async def test_partition_renew_skips_a_locked_partition_and_renews_the_others(store: Store, postgres_url: str) -> None:
    wanted = frozenset({1, 2, 3})
    node = node_heartbeat(NODE)
    await store.partition_renew(node, wanted, now=NOW)
    async with row_locked(postgres_url, "partitions", "partition = 2"):
        renewal = await prompt(store.partition_renew(node, wanted, now=NOW + seconds(3)))
        assert renewal.owned == {1: 1, 3: 1}
        assert renewal.locked == {2}
    renewal = await store.partition_renew(node, wanted, now=NOW + seconds(6))
    assert renewal.owned == {1: 1, 2: 1, 3: 1}
    assert renewal.locked == frozenset()


async def test_partition_renew_does_not_wait_for_the_row_of_its_node(store: Store, postgres_url: str) -> None:
    node = node_heartbeat(NODE)
    await store.partition_renew(node, frozenset({1}), now=NOW)
    async with row_locked(postgres_url, "nodes", "id = $1", NODE):
        renewal = await prompt(store.partition_renew(node, frozenset({1}), now=NOW + seconds(3)))
        assert renewal.owned == {1: 1}
        assert [one.seen_at for one in (await store.node_list(now=NOW))[1]] == [NOW]
    await store.partition_renew(node, frozenset({1}), now=NOW + seconds(6))
    assert [one.seen_at for one in (await store.node_list(now=NOW))[1]] == [NOW + seconds(6)]


async def test_partition_release_releases_the_others_while_a_partition_is_locked(store: Store, postgres_url: str) -> None:
    await store.partition_renew(node_heartbeat(NODE), frozenset({1, 2, 3}), now=NOW)
    async with row_locked(postgres_url, "partitions", "partition = 2"):
        assert await prompt(store.partition_release(NODE)) == 2


# Loops that write batches


async def test_schedule_fault_skips_a_locked_schedule(store: Store, postgres_url: str) -> None:
    locked, other = make_schedule("locked"), make_schedule("other")
    await insert_and_own(store, locked, other)
    async with row_locked(postgres_url, "schedules", "id = $1", locked.id):
        assert await prompt(store.schedule_fault({locked.id: "broken", other.id: "broken"}, now=NOW)) == 1
    assert await store.schedule_fault({locked.id: "broken"}, now=NOW) == 1


async def test_the_prune_verbs_skip_locked_rows(store: Store, postgres_url: str) -> None:
    await store.task_submit([make_task(key=TaskKey(f"key-{number}", b"")) for number in range(3)], now=NOW)
    for number in range(3):
        response = IdempotentResponse(key=f"key-{number}", fingerprint=b"", status=200, body=b"{}")
        await store.idempotent_response_keep(DEFAULT_TENANT, response, now=NOW)
        await store.partition_renew(node_heartbeat(UUID(int=number + 1)), frozenset(), now=NOW)
    later = NOW + minutes(60 * 48)
    prunes: list[tuple[str, str, Callable[[], Awaitable[int]]]] = [
        ("task_keys", "key = 'key-1'", lambda: store.task_key_prune(limit=10, now=later)),
        ("idempotent_answers", "key = 'key-1'", lambda: store.idempotent_response_prune(limit=10, now=later)),
        ("nodes", f"id = '{UUID(int=2)}'", lambda: store.node_prune(unseen_seconds=60, now=later)),
    ]
    for table, where, prune in prunes:
        async with row_locked(postgres_url, table, where):
            assert await prompt(prune()) == 2, table
        assert await prune() == 1, table


async def test_key_touch_skips_a_locked_key(store: Store, postgres_url: str) -> None:
    keys = [make_key(number) for number in range(3)]
    await store.key_create(keys, now=NOW)
    async with row_locked(postgres_url, "api_keys", "id = $1", keys[1].id):
        assert await prompt(store.key_touch([key.id for key in keys], now=NOW)) == 2


# Requests: they change several rows or none, so they do not skip. They wait for a short time, and release their locks.


async def raises_locked(verb: Awaitable[object]) -> None:
    """The verb gives up after about a second."""
    with pytest.raises(StoreLocked):
        await asyncio.wait_for(verb, 4)


async def test_requests_give_up_after_about_a_second_and_change_nothing(store: Store, postgres_url: str) -> None:
    schedule, other = make_schedule(), make_schedule("other")
    await insert_and_own(store, schedule, other)
    (task,) = await start_tasks(store, 1)
    ready = make_task()
    await store.task_submit([ready], now=NOW)
    edited = [ScheduleWrite(changed(one, priority=5), one) for one in (schedule, other)]
    async with row_locked(postgres_url, "schedules", "id = $1", other.id), row_locked(postgres_url, "tasks"):
        started = time.monotonic()
        await asyncio.gather(
            raises_locked(store.schedule_write(DEFAULT_TENANT, edited, now=NOW)),
            raises_locked(store.schedule_delete(DEFAULT_TENANT, [schedule.id, other.id], now=NOW)),
            raises_locked(store.task_cancel(DEFAULT_TENANT, [task.id, ready.id], now=NOW)),
            raises_locked(store.task_reschedule(DEFAULT_TENANT, ready.id, NOW, now=NOW)),
        )
        assert time.monotonic() - started > 0.8
        assert await find(store, schedule) == schedule
    assert len((await store.task_cancel(DEFAULT_TENANT, [task.id, ready.id], now=NOW)).changes) == 2


async def test_a_request_succeeds_if_the_lock_is_released_soon(store: Store, postgres_url: str) -> None:
    schedule = make_schedule()
    await insert_and_own(store, schedule)
    writing = store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(changed(schedule, priority=5), schedule)], now=NOW)
    async with row_locked(postgres_url, "schedules", "id = $1", schedule.id):
        task = asyncio.ensure_future(writing)
        await asyncio.wait({task}, timeout=0.3)
        assert not task.done()
    assert (await task).is_written


async def test_a_batch_of_schedules_holds_its_locks_only_briefly_while_it_waits(store: Store, postgres_url: str) -> None:
    """Otherwise the schedules that it has written already would not fire."""
    schedules = [make_schedule(f"job-{number}") for number in range(20)]
    await insert_and_own(store, *schedules)
    edited = [ScheduleWrite(changed(one, priority=5), one) for one in schedules]
    async with row_locked(postgres_url, "schedules", "id = $1", schedules[-1].id):
        writing = asyncio.ensure_future(raises_locked(store.schedule_write(DEFAULT_TENANT, edited, now=NOW)))
        await asyncio.sleep(0)
        left = [firing_of(one) for one in schedules[:-1]]
        until = time.monotonic() + 0.5
        while left and time.monotonic() < until:
            result = await store.pool("engine").tick_fire(NODE, left, now=NOW)
            left = [one for one in left if one.schedule_id in result.locked_ids]
        assert left == []
        await writing


async def test_requests_for_a_locked_tenant_give_up_after_about_a_second(store: Store, postgres_url: str) -> None:
    tenant = Tenant(id=OTHER_TENANT, name="other", created_at=NOW, updated_at=NOW)
    await store.tenant_write([TenantWrite(tenant, None)], now=NOW)
    renamed = msgspec.structs.replace(tenant, name="renamed", revision=tenant.revision + 1)
    async with row_locked(postgres_url, "tenants", "id = $1", OTHER_TENANT):
        await asyncio.gather(
            raises_locked(store.tenant_write([TenantWrite(renamed, tenant.revision)], now=NOW)),
            raises_locked(store.schedule_write(OTHER_TENANT, [ScheduleWrite(make_schedule(), None)], max_schedules=5, now=NOW)),
        )
        task = make_task(tenant_id=OTHER_TENANT)
        assert (await prompt(store.task_submit([task], now=NOW))).ids == [task.id]


async def test_task_submit_does_not_wait_for_a_locked_key(store: Store, postgres_url: str) -> None:
    await store.task_submit([make_task(key=TaskKey("taken", b""))], now=NOW)
    async with row_locked(postgres_url, "task_keys", "key = 'taken'"):
        with pytest.raises(StoreLocked):
            await asyncio.wait_for(store.task_submit([make_task(key=TaskKey("taken", b"")), make_task()], now=NOW), 0.5)
        assert len((await prompt(store.task_submit([make_task(key=TaskKey("free", b""))], now=NOW))).changes) == 1


async def test_dead_replay_gives_up_after_about_a_second(store: Store, postgres_url: str) -> None:
    tasks = await start_tasks(store, 2)
    endings = [AttemptEnd(one.id, DEFAULT_TENANT, 1, AttemptOutcome.FAILED, TaskState.DEAD, None, None) for one in tasks]
    await store.task_end(endings, is_expired=False, now=NOW)
    replays = [Replay(one.id, make_task()) for one in tasks]
    async with row_locked(postgres_url, "dead_letters", "task_id = $1", tasks[0].id):
        await raises_locked(store.dead_replay(DEFAULT_TENANT, replays, again=False, now=NOW))
    assert len((await store.dead_replay(DEFAULT_TENANT, replays, again=False, now=NOW)).task_ids) == 2
