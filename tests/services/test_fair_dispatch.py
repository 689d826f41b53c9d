"""Fair dispatch: fleets serve tenants by their fair shares, max_running is respected, and claims avoid unnecessary queries."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import pytest

from everbeat.core.errors import Forbidden, StoreUnavailable
from everbeat.core.fairness import Flow
from everbeat.core.protocol import (
    ErrorInput,
    Lease,
    LeaseClaimRequest,
    LeaseCompleteRequest,
    LeaseCompletion,
    LeaseFailRequest,
    LeaseFailure,
    LeaseHeartbeat,
    LeaseHeartbeatRequest,
    LeaseReleaseRequest,
    TaskInput,
)
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import ClaimedTask
from everbeat.services import fair_dispatch
from everbeat.services.fair_dispatch import ClaimScope, EqualShares, FairDispatcher
from everbeat.services.publisher import ChangePublisher
from everbeat.store.base import Store
from everbeat.store.values import ClaimRequest, ClaimResult
from tests.factories import NOW, OTHER_TENANT, execute_raw, make_task, open_second_store
from tests.services.polling import PollingNode, ids_of, response

A, B = UUID(int=10), UUID(int=11)


class FakeDirectory(EqualShares):
    """A tenant directory that tests write to."""

    def __init__(self) -> None:
        self.weights: dict[UUID, float] = {}
        self.max_running: dict[UUID, int] = {}
        self.refresh_count = 0

    def weight_of(self, tenant_id: UUID) -> float:
        return self.weights.get(tenant_id, 1.0)

    def max_running_of(self, tenant_id: UUID) -> int | None:
        return self.max_running.get(tenant_id)

    async def refresh(self, *, now: datetime | None = None) -> None:
        self.refresh_count += 1


class FleetNode(PollingNode):
    """A node whose polls may serve every tenant."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.directory = FakeDirectory()
        self.long_polls._dispatchers.directory = self.directory

    def fleet_poll(
        self, worker: str = "worker", *, max_tasks: int = 1, wait: float = 30, **more: Any
    ) -> asyncio.Task[list[ClaimedTask]]:
        claim = LeaseClaimRequest(worker=worker, **{"queues": ["default"], **more}, max=max_tasks, wait_seconds=wait)
        self.open.append(asyncio.create_task(self.node.leases.claim(None, claim)))
        return self.open[-1]

    async def limit(self, tenant_id: UUID, max_running: int) -> None:
        self.directory.max_running[tenant_id] = max_running
        insert = "INSERT INTO tenants (id, name, max_running, created_at, updated_at) VALUES (?, ?, ?, ?, ?)"
        await execute_raw(self.store.inner, insert, tenant_id, str(tenant_id), max_running, NOW, NOW)

    async def complete(self, *tasks: ClaimedTask) -> list[str]:
        done = LeaseCompleteRequest(worker="w", results=[LeaseCompletion(id=task.id, fence=task.fence) for task in tasks])
        return [one.status for one in await self.node.leases.complete(None, done)]


@pytest.fixture(name="polling")
async def polling_node(store: Store) -> AsyncIterator[FleetNode]:
    polling = FleetNode(store)
    yield polling
    await polling.close()


def tenants_of(tasks: list[ClaimedTask]) -> Counter[UUID]:
    return Counter(task.tenant_id for task in tasks)


# Fleets


async def test_a_fleet_serves_tenants_by_weight(polling: FleetNode) -> None:
    polling.directory.weights[A] = 3.0
    await polling.submit(200, tenant=A)
    await polling.submit(200, tenant=B)
    tasks = [task for _ in range(10) for task in await response(polling.fleet_poll(max_tasks=8))]
    counts = tenants_of(tasks)
    assert abs(counts[A] - 60) <= 2
    assert counts.total() == 80


async def test_a_waiting_fleet_is_handed_tasks_of_any_tenant(polling: FleetNode) -> None:
    long_polls = [polling.fleet_poll(f"worker-{number}") for number in range(2)]
    await polling.wait_for_claims()
    claims = polling.store.claims
    ids = [*await polling.submit_for_handoff(tenant=A), *await polling.submit_for_handoff(tenant=B)]
    assert await ids_of(*long_polls) == ids
    assert polling.store.claims == claims
    assert [(await response(poll))[0].tenant_id for poll in long_polls] == [A, B]


async def test_a_small_tenant_next_to_a_large_one_is_served_by_the_next_claim(polling: FleetNode) -> None:
    await polling.submit(300, tenant=A)
    for _ in range(3):
        await response(polling.fleet_poll(max_tasks=10))
    (id_,) = await polling.submit(tenant=B)
    assert id_ in await ids_of(polling.fleet_poll(max_tasks=10))


async def test_fair_keys_of_a_tenant_get_equal_parts(polling: FleetNode) -> None:
    await polling.submit(100, fair_key="big")
    small = await polling.submit(2, fair_key="small")
    assert set(small) <= set(await ids_of(polling.poll(max_tasks=6)))


async def test_a_fleet_can_end_tasks_of_any_tenant(polling: FleetNode) -> None:
    await polling.submit(2, tenant=A)
    await polling.submit(3, tenant=B)
    one, two, three, four, five = await response(polling.fleet_poll(max_tasks=5))
    work = polling.node.leases
    (renewed,) = await work.heartbeat(None, LeaseHeartbeatRequest(worker="w", leases=[LeaseHeartbeat(id=one.id, fence=1)]))
    assert renewed.status == "ok"
    assert await polling.complete(one, two) == ["ok", "ok"]
    assert await polling.complete(one) == ["ok"], "a repeated report"
    failures = LeaseFailRequest(
        worker="w", failures=[LeaseFailure(id=three.id, fence=1, error=ErrorInput(message="x"), retryable=False)]
    )
    assert [(done.status, done.next) for done in await work.fail(None, failures)] == [("ok", "dead")]
    (released,) = await work.release(None, LeaseReleaseRequest(worker="w", leases=[Lease(id=four.id, fence=1)]))
    assert released.status == "ok"
    other_tenant_report = LeaseCompleteRequest(worker="w", results=[LeaseCompletion(id=five.id, fence=1)])
    assert [done.status for done in await work.complete(OTHER_TENANT, other_tenant_report)] == ["stale"]


async def test_tasks_claimed_for_a_cancelled_fleet_poll_are_released(polling: FleetNode) -> None:
    polling.store.delay_claim_results()
    ids = await polling.submit(2, tenant=A)
    gone = polling.fleet_poll(max_tasks=2)
    await polling.store.claim_done.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    polling.store.may_respond.set()
    await polling.wait_for_claims()
    assert {task.state.value for task in await polling.store.task_find(A, ids)} == {"ready"}


# Keys for certain queues


async def test_a_key_for_certain_queues_is_limited_to_them(polling: FleetNode) -> None:
    (ours,) = await polling.submit(queue="a")
    (theirs,) = await polling.submit(queue="b")
    work, only = polling.node.leases, frozenset({"a"})
    with pytest.raises(Forbidden, match="but not on the queue b"):
        await work.claim(DEFAULT_TENANT, LeaseClaimRequest(worker="w", queues=["a", "b"]), queues=only)
    await response(polling.poll(max_tasks=2, queues=["a", "b"]))
    leases = [Lease(id=id_, fence=1) for id_ in (ours, theirs)]
    heartbeats = LeaseHeartbeatRequest(worker="w", leases=[LeaseHeartbeat(id=one.id, fence=1) for one in leases])
    assert [one.status for one in await work.heartbeat(DEFAULT_TENANT, heartbeats, queues=only)] == ["ok", "lost"]
    failures = [LeaseFailure(id=one.id, fence=1, error=ErrorInput(message="x")) for one in leases[1:]]
    failed = await work.fail(DEFAULT_TENANT, LeaseFailRequest(worker="w", failures=failures), queues=only)
    assert [one.status for one in failed] == ["stale"]
    given = await work.release(DEFAULT_TENANT, LeaseReleaseRequest(worker="w", leases=leases[1:]), queues=only)
    assert [one.status for one in given] == ["stale"]
    results = LeaseCompleteRequest(worker="w", results=[LeaseCompletion(id=one.id, fence=1) for one in leases])
    for _ in range(2):
        done = await work.complete(DEFAULT_TENANT, results, queues=only)
        assert [one.status for one in done] == ["ok", "stale"], "also when the report is repeated"


# max_running


async def test_max_running_limits_claims_and_a_finished_task_allows_another(polling: FleetNode) -> None:
    await polling.limit(A, 2)
    ids = await polling.submit(5, tenant=A)
    first, second = await response(polling.fleet_poll(max_tasks=5))
    poll = polling.fleet_poll("next")
    await polling.wait_for_claims()
    assert not poll.done(), "three more are ready, but two are running"
    flow_queries = polling.store.flow_queries
    assert await polling.complete(first) == ["ok"]
    assert await ids_of(poll) == ids[2:3]
    assert polling.store.flow_queries == flow_queries, "the waiting flows are already known"
    await polling.complete(second)


async def test_a_tenant_at_its_limit_does_not_delay_others(polling: FleetNode) -> None:
    await polling.limit(A, 1)
    await polling.submit(50, tenant=A)
    ids = await polling.submit(5, tenant=B)
    tasks = await response(polling.fleet_poll(max_tasks=10))
    assert tenants_of(tasks) == {A: 1, B: 5}
    assert {task.id for task in tasks} >= set(ids)


async def test_tasks_of_a_limited_tenant_are_not_handed_past_the_limit(polling: FleetNode) -> None:
    await polling.limit(A, 1)
    long_polls = [polling.fleet_poll(f"worker-{number}") for number in range(3)]
    await polling.wait_for_claims()
    for _ in range(3):
        await polling.submit_for_handoff(tenant=A)
    await polling.wait_for_claims()
    assert sum(poll.done() for poll in long_polls) == 1


async def test_submits_of_a_tenant_at_its_limit_wake_no_poll(polling: FleetNode) -> None:
    await polling.limit(A, 1)
    await polling.submit(2, tenant=A)
    await response(polling.fleet_poll())
    polling.fleet_poll("idle")
    await polling.wait_for_claims()
    before = (polling.store.claims, polling.store.flow_queries)
    await polling.submit(3, tenant=A)
    await polling.wait_for_claims()
    assert (polling.store.claims, polling.store.flow_queries) == before


async def test_a_failed_or_lost_task_allows_another(polling: FleetNode) -> None:
    await polling.limit(A, 1)
    await polling.submit(3, tenant=A)
    (task,) = await response(polling.fleet_poll())
    poll = polling.fleet_poll("next")
    await polling.wait_for_claims()
    failure = LeaseFailure(id=task.id, fence=1, error=ErrorInput(message="x"), retryable=False)
    await polling.node.leases.fail(A, LeaseFailRequest(worker="w", failures=[failure]))
    (second,) = await response(poll)
    poll = polling.fleet_poll("last")
    await polling.wait_for_claims()
    assert not poll.done()
    later = "UPDATE tasks SET lease_until = started_at WHERE state = 'running'"
    await execute_raw(polling.store.inner, later)
    await polling.node.reaper.run_once()
    (last,) = await response(poll)
    assert last.id != task.id
    assert second.id != task.id


# Queries for flows


async def test_known_flows_are_claimed_from_without_a_query(polling: FleetNode) -> None:
    await polling.submit(30, tenant=A)
    await response(polling.fleet_poll())
    flow_queries = polling.store.flow_queries
    for _ in range(5):
        await response(polling.fleet_poll())
    assert polling.store.flow_queries == flow_queries


async def test_a_claim_that_another_node_has_emptied_leads_to_a_new_query(polling: FleetNode) -> None:
    await polling.submit(3, tenant=A)
    await response(polling.fleet_poll())
    second_store = open_second_store(polling.store.inner)
    other = FairDispatcher(
        ClaimScope(None, ("default",), None), second_store, ChangePublisher(second_store), EqualShares(), 3600
    )
    assert len((await other.dispatch([ClaimRequest("other", 5, 30)])).tasks[0]) == 2
    await second_store.task_submit([make_task(tenant_id=B)])
    assert tenants_of(await response(polling.fleet_poll())) == {B: 1}
    await second_store.close()


async def test_more_flows_than_fit_in_one_query_are_all_served(polling: FleetNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_dispatch, "_MAX_FLOWS", 4)
    await polling.store.inner.task_submit([make_task(tenant_id=UUID(int=number + 100)) for number in range(30)])
    ids: set[UUID] = set()
    while tasks := await response(polling.fleet_poll(max_tasks=3, wait=0)):
        ids |= {task.tenant_id for task in tasks}
    assert len(ids) == 30


async def test_a_type_beyond_the_first_page_of_flows_is_found(polling: FleetNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_dispatch, "_MAX_FLOWS", 4)
    await polling.store.inner.task_submit([make_task(f"type-{number:02}") for number in range(30)])
    (task,) = await response(polling.poll(types=["type-27"], wait=0))
    assert task.type == "type-27"
    assert await response(polling.poll(types=["type-27"], wait=0)) == []


async def test_the_pause_after_a_query_is_ten_times_its_duration() -> None:
    seconds = 100.0
    flow = Flow("q", A, 100, "", "t")

    class SlowStore:
        flow_queries = 0

        async def task_flows(self, *_: Any, **__: Any) -> list[Flow]:
            nonlocal seconds
            self.flow_queries += 1
            seconds += 1
            return [flow]

        async def task_claim(self, steps: Any, claim_requests: Any, **_: Any) -> Any:
            claimed_counts = [1] + [0] * (len(steps) - 1)
            return ClaimResult([[Any] for _ in claim_requests], [step.limit for step in steps], claimed_counts)  # type: ignore[list-item]

    store = SlowStore()
    publisher = ChangePublisher(cast(Store, store))
    key = ClaimScope(None, ("q",), None)
    dispatcher = FairDispatcher(key, cast(Store, store), publisher, EqualShares(), 3600, monotonic=lambda: seconds)
    claim_requests = [ClaimRequest("w", 1, 30)]
    for _ in range(9):
        assert await dispatcher.find()
        await dispatcher.dispatch(claim_requests)
        dispatcher.mark_stale()
        seconds += 1
    assert store.flow_queries == 1
    seconds += 2
    assert await dispatcher.find()
    assert store.flow_queries == 2


async def test_a_failed_query_is_repeated(polling: FleetNode) -> None:
    polling.store.error = StoreUnavailable("unavailable")
    with pytest.raises(StoreUnavailable):
        await response(polling.fleet_poll())
    polling.store.error = None
    ids = await polling.submit(tenant=A)
    assert await ids_of(polling.fleet_poll()) == ids
    assert polling.directory.refresh_count >= 2


async def test_tasks_claimed_before_a_failed_claim_reach_their_worker(polling: FleetNode) -> None:
    """A failure of the second claim must not lose the tasks of the first."""
    for priority in (1, 2):
        await polling.submit(2, tenant=A, priority=priority)
        await polling.submit(2, tenant=B, priority=priority)
    inner, calls = polling.store.inner.task_claim, 0

    async def failing(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise StoreUnavailable("unavailable")
        return await inner(*args, **more)

    polling.store.inner.task_claim = failing  # type: ignore[method-assign]
    tasks = await response(polling.fleet_poll(max_tasks=8))
    assert len(tasks) == 4
    assert await response(polling.fleet_poll(max_tasks=8)) != []


async def test_a_submitted_batch_with_fair_keys_needs_no_query(polling: FleetNode) -> None:
    poll = await polling.waiting_poll(max_tasks=4)
    given = [TaskInput(type="work", fair_key=key, delay_seconds=0) for key in ("x", "x", "y", "z")]
    flow_queries = polling.store.flow_queries
    ids = await polling.node.tasks.submit_batch(DEFAULT_TENANT, given)
    assert set(await ids_of(poll)) == set(ids)
    assert polling.store.flow_queries == flow_queries
