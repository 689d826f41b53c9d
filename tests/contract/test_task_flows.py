"""task_flows and task_claim with claim steps: the flows with ready tasks, and claims of a given number of tasks per flow."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.fairness import ClaimStep, Flow
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import ClaimedTask, NewTask, TaskState
from everbeat.store.base import Store
from everbeat.store.values import ClaimRequest, HeartbeatWrite, LeaseRef, ReadyQueue
from tests.factories import (
    NOW,
    OTHER_TENANT,
    claim,
    claim_for,
    complete,
    execute_raw,
    make_task,
    minutes,
    open_second_store,
    seconds,
)

A, B, C = (UUID(int=number) for number in (10, 11, 12))


def flow(tenant_id: UUID = DEFAULT_TENANT, **more: Any) -> Flow:
    return Flow(**{"queue": "default", "tenant_id": tenant_id, "priority": 100, "fair_key": "", "type": "work", **more})


def step(tenant_id: UUID = DEFAULT_TENANT, limit: int = 10, **more: Any) -> ClaimStep:
    given = {"priority": 100, "fair_key": "", "queue_types": (("default", "work"),), **more}
    return ClaimStep(tenant_id=tenant_id, limit=limit, **given)


def task_of(one: Flow, **more: Any) -> NewTask:
    more = {"queue": one.queue, "priority": one.priority, "fair_key": one.fair_key, **more}
    return make_task(one.type, tenant_id=one.tenant_id, **more)


def tenants_of(tasks: Sequence[ClaimedTask]) -> Counter[UUID]:
    return Counter(task.tenant_id for task in tasks)


async def test_task_flows_returns_the_distinct_flows_of_ready_tasks(store: Store) -> None:
    flows = [
        flow(A, queue="a"),
        flow(A, queue="a", type="other"),
        flow(A, queue="a", fair_key="x"),
        flow(A, queue="a", fair_key="x", priority=7),
        flow(B, queue="a"),
        flow(A, queue="b"),
    ]
    await store.task_submit([task_of(one) for one in flows for _ in range(3)], now=NOW)
    await store.task_submit([task_of(flow(C, queue="a"), run_at=NOW + minutes(1)), task_of(flow(C, queue="c"))], now=NOW)
    assert sorted(await store.task_flows(None, ["a", "b", "a", "none"], limit=100)) == sorted(flows)
    assert sorted(await store.task_flows(A, ["a", "b"], limit=100)) == sorted(one for one in flows if one.tenant_id == A)
    assert await store.task_flows(B, ["a", "b"], limit=100) == [flow(B, queue="a")]
    assert await store.task_flows(C, ["a", "b"], limit=100) == []
    assert await store.task_flows(A, [], limit=100) == []


async def test_task_ready_queues_returns_each_queue_and_tenant_once(store: Store) -> None:
    pairs = [ReadyQueue(queue, tenant) for queue in "abc" for tenant in (DEFAULT_TENANT, A, B)]
    tasks = [
        make_task(type_, queue=queue, tenant_id=tenant, priority=priority)
        for queue, tenant in pairs
        for type_ in ("work", "other")
        for priority in (0, 100, 1000)
    ]
    later = make_task(queue="later", run_at=NOW + minutes(1))
    await store.task_submit([*tasks, later], now=NOW)
    assert await store.task_ready_queues(after=None, limit=100) == pairs
    found = await store.task_ready_queues(after=None, limit=4)
    while len(found) < len(pairs):
        page = await store.task_ready_queues(after=found[-1], limit=4)
        assert page
        found += page
    assert found == pairs
    assert await store.task_ready_queues(after=pairs[-1], limit=4) == []


async def test_task_flows_continues_after_the_last_flow_of_a_page(store: Store) -> None:
    flows = [flow(tenant, queue=queue, fair_key=key) for queue in "ab" for tenant in (A, B, C) for key in ("", "k")]
    await store.task_submit([task_of(one) for one in flows], now=NOW)
    first = await store.task_flows(None, ["a", "b"], limit=4)
    assert Counter(one.queue for one in first) == {"a": 4, "b": 4}
    last_flows = list({one.queue: one for one in first}.values())
    rest = await store.task_flows(None, ["a", "b"], after=last_flows, limit=4)
    assert sorted(first + rest) == sorted(flows)
    last = [one for one in flows if one.queue == "a" and one.tenant_id == B]
    assert await store.task_flows(B, ["a"], after=last[:1], limit=4) == last[1:], "a page may end inside a tenant"


async def test_task_flows_leaves_out_a_flow_whose_last_task_is_claimed(store: Store) -> None:
    await store.task_submit([task_of(flow(A)), task_of(flow(B))], now=NOW)
    await claim(store, tenant_id=A)
    assert await store.task_flows(None, ["default"], limit=10) == [flow(B)]


async def test_task_claim_takes_steps_in_their_order_up_to_their_limits(store: Store) -> None:
    await store.task_submit([task_of(flow(tenant)) for tenant in (A, B, C) for _ in range(5)], now=NOW)
    claims = await store.task_claim(
        [step(C, 2), step(A, 4), step(B, 9)], [ClaimRequest("w", 3, 30), ClaimRequest("v", 5, 30)], now=NOW
    )
    assert [[task.tenant_id for task in part] for part in claims.tasks] == [[C, C, A], [A, A, A, B, B]]
    assert (claims.limits, claims.claimed_counts, claims.full) == ([2, 4, 9], [2, 4, 2], frozenset())


async def test_task_claim_returns_the_claimed_count_of_each_step(store: Store) -> None:
    await store.task_submit([task_of(flow(A)), task_of(flow(C))], now=NOW)
    claims = await store.task_claim([step(A), step(B), step(C)], [ClaimRequest("w", 10, 30)], now=NOW)
    assert claims.claimed_counts == [1, 0, 1]


async def test_task_claim_takes_the_oldest_task_of_all_queues_and_types_of_a_step(store: Store) -> None:
    given = [("a", "x", 5), ("b", "x", 9), ("a", "y", 7), ("a", "x", 8), ("b", "y", 6), ("b", "x", 1)]
    for number, (queue, type_, age) in enumerate(given):
        await store.task_submit(
            [make_task(type_, queue=queue, run_at=NOW - minutes(age), payload=str(number).encode())], now=NOW
        )
    queue_types = tuple((queue, type_) for queue in "ab" for type_ in "xy")
    claims = await store.task_claim([step(limit=4, queue_types=queue_types)], [ClaimRequest("w", 10, 30)], now=NOW)
    assert [(one.queue, one.type) for one in claims.tasks[0]] == [("b", "x"), ("a", "x"), ("a", "y"), ("b", "y")]
    claims = await store.task_claim([step(limit=4, queue_types=queue_types)], [ClaimRequest("w", 1, 30)], now=NOW)
    assert [(one.queue, one.type) for one in claims.tasks[0]] == [("a", "x")], "no more than the claim requests allow"


async def test_task_claim_separates_fair_keys_and_priorities(store: Store) -> None:
    await store.task_submit([task_of(flow(fair_key=key, priority=priority)) for key in "ab" for priority in (1, 2)], now=NOW)
    claims = await store.task_claim(
        [step(fair_key="a", priority=2), step(fair_key="b", priority=1)], [ClaimRequest("w", 9, 30)], now=NOW
    )
    assert claims.claimed_counts == [1, 1]
    assert len(await store.task_flows(None, ["default"], limit=9)) == 2


async def test_task_claim_under_concurrency_over_many_tenants_gives_each_task_to_one_worker(store: Store) -> None:
    tasks = [make_task(tenant_id=tenant, fair_key=key) for tenant in (A, B, C) for key in ("x", "y") for _ in range(30)]
    await store.task_submit(tasks, now=NOW)
    second_stores = [open_second_store(store) for _ in range(3)]

    async def work(second_store: Store) -> list[UUID]:
        taken: list[UUID] = []
        while part := (await claim_for(second_store, ["default"], [ClaimRequest("w", 7, 30)], tenant_id=None, now=NOW))[0]:
            taken += [task.id for task in part]
        return taken

    taken = [id_ for ids in await asyncio.gather(*map(work, second_stores)) for id_ in ids]
    for second_store in second_stores:
        await second_store.close()
    taken += [
        task.id for task in (await claim_for(store, ["default"], [ClaimRequest("w", 180, 30)], tenant_id=None, now=NOW))[0]
    ]
    assert Counter(taken) == Counter(task.id for task in tasks)


# max_running


async def limit_tenant(store: Store, tenant_id: UUID, max_running: int | None) -> None:
    await execute_raw(
        store,
        "INSERT INTO tenants (id, name, max_running, created_at, updated_at) VALUES (?, ?, ?, ?, ?)",
        *(tenant_id, str(tenant_id), max_running, NOW, NOW),
    )


async def test_task_claim_respects_max_running_of_a_tenant(store: Store) -> None:
    await limit_tenant(store, A, 3)
    await store.task_submit(
        [task_of(flow(tenant, fair_key=key)) for tenant in (A, B) for key in "xy" for _ in range(5)], now=NOW
    )
    steps = [step(tenant, fair_key=key) for tenant in (A, B) for key in "xy"]
    claims = await store.task_claim(steps, [ClaimRequest("w", 9, 30)], limited={A, B}, now=NOW)
    assert tenants_of(claims.tasks[0]) == {A: 3, B: 6}
    assert (claims.limits, claims.claimed_counts, claims.full) == ([3, 0, 10, 10], [3, 0, 5, 1], frozenset({A}))
    claims = await store.task_claim(steps, [ClaimRequest("w", 9, 30)], limited={A}, now=NOW)
    assert tenants_of(claims.tasks[0]) == {B: 4}
    assert claims.full == {A}


async def test_task_claim_counts_expired_leases_until_their_attempts_end(store: Store) -> None:
    await limit_tenant(store, A, 2)
    await store.task_submit([task_of(flow(A)) for _ in range(4)], now=NOW)
    claims = await store.task_claim([step(A)], [ClaimRequest("w", 2, 5)], limited={A}, now=NOW)
    later = NOW + minutes(5)
    none = await store.task_claim([step(A)], [ClaimRequest("w", 2, 5)], limited={A}, now=later)
    assert (none.claimed_counts, none.full) == ([0], frozenset({A})), "their leases expired, but their attempts have not ended"
    assert (await store.task_heartbeat([HeartbeatWrite(LeaseRef(A, claims.tasks[0][0].id, 1))], now=later)) == []
    await execute_raw(store, "DELETE FROM tasks WHERE id = ?", claims.tasks[0][0].id)
    one = await store.task_claim([step(A)], [ClaimRequest("w", 2, 5)], limited={A}, now=later)
    assert (one.claimed_counts, one.full) == ([1], frozenset({A}))


async def test_task_claim_under_concurrency_never_exceeds_max_running(store: Store) -> None:
    await limit_tenant(store, A, 5)
    await store.task_submit([task_of(flow(A, fair_key=key)) for key in "xyz" for _ in range(20)], now=NOW)
    second_stores = [open_second_store(store) for _ in range(4)]
    steps = [step(A, fair_key=key) for key in "xyz"]
    done = 0

    async def work(second_store: Store) -> None:
        nonlocal done
        for _ in range(15):
            claims = await second_store.task_claim(steps, [ClaimRequest("w", 3, 30)], limited={A}, now=NOW)
            ((running,),) = await execute_raw(store, "SELECT count(*) FROM tasks WHERE state = 'running'")
            assert running <= 5
            if claims.tasks[0]:
                finished = await second_store.task_complete(
                    [(LeaseRef(A, task.id, task.fence), None) for task in claims.tasks[0]], now=NOW
                )
                done += len(finished.finished)

    await asyncio.gather(*map(work, second_stores))
    for second_store in second_stores:
        await second_store.close()
    assert done > 5, "another task starts after one has finished"


# Claims for all tenants


async def test_task_claim_for_all_tenants_is_completed_without_naming_the_tenant(store: Store) -> None:
    await store.task_submit([task_of(flow(tenant)) for tenant in (A, B) for _ in range(2)], now=NOW)
    ((one, two, three, _),) = await claim_for(store, ["default"], [ClaimRequest("w", 4, 30)], tenant_id=None, now=NOW)
    renewed = await store.task_heartbeat([HeartbeatWrite(LeaseRef(None, one.id, 1), log="hello")], now=NOW + seconds(5))
    assert [(one_renewed.id, one_renewed.lease_until) for one_renewed in renewed] == [(one.id, NOW + seconds(35))]
    assert [line.text for line in await store.task_log(one.tenant_id, one.id, after=None, limit=5)] == ["hello"]
    results = [
        (LeaseRef(None, one.id, 1), None),
        (LeaseRef(two.tenant_id, two.id, 1), None),
        (LeaseRef(OTHER_TENANT, three.id, 1), None),
    ]
    completed = await store.task_complete(results, now=NOW)
    assert completed.finished == {(one.id, 1), (two.id, 1)}
    assert {change.id: change.tenant_id for change in completed.changes} == {one.id: one.tenant_id, two.id: two.tenant_id}
    repeated = await store.task_complete([(LeaseRef(None, one.id, 1), None)], now=NOW)
    assert repeated.repeated == {(one.id, 1)}
    _, running = await store.task_running([LeaseRef(None, three.id, 1), LeaseRef(OTHER_TENANT, three.id, 1)], now=NOW)
    assert [(task.id, task.tenant_id) for task in running] == [(three.id, three.tenant_id)]


async def test_task_queues_returns_queues_of_live_and_finished_tasks(store: Store) -> None:
    await store.task_submit([make_task(queue="a"), make_task(queue="b")], now=NOW)
    (done,), (live,) = await claim(store, "a"), await claim(store, "b")
    await complete(store, done)
    assert await store.task_queues([done.id, live.id, A]) == {done.id: "a", live.id: "b"}


@pytest.mark.parametrize("ending", ["complete", "cancel"])
async def test_task_submit_stores_the_fair_key_until_the_task_is_finished(store: Store, ending: str) -> None:
    task = make_task(fair_key="customer-7")
    await store.task_submit([task], now=NOW)
    assert [one.fair_key for one in await store.task_find(DEFAULT_TENANT, [task.id])] == ["customer-7"]
    if ending == "complete":
        await complete(store, *await claim(store))
    else:
        await store.task_cancel(DEFAULT_TENANT, [task.id], now=NOW)
    (kept,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (kept.fair_key, kept.state in (TaskState.COMPLETED, TaskState.CANCELLED)) == ("customer-7", True)
