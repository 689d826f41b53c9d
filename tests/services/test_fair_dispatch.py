"""Dealing out work: fleets serve tenants by their shares, max_running holds, and a line asks no more than it must."""

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


class Book(EqualShares):
    """A directory that a test writes."""

    def __init__(self) -> None:
        self.weights: dict[UUID, float] = {}
        self.most: dict[UUID, int] = {}
        self.read = 0

    def weight_of(self, tenant_id: UUID) -> float:
        return self.weights.get(tenant_id, 1.0)

    def max_running_of(self, tenant_id: UUID) -> int | None:
        return self.most.get(tenant_id)

    async def refresh(self, *, now: datetime | None = None) -> None:
        self.read += 1


class Fleet(PollingNode):
    """A node whose polls work for every tenant unless they say otherwise."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.book = Book()
        self.long_polls._dispatchers.directory = self.book

    def fleet(self, worker: str = "worker", *, most: int = 1, wait: float = 30, **more: Any) -> asyncio.Task[list[ClaimedTask]]:
        claim = LeaseClaimRequest(worker=worker, **{"queues": ["default"], **more}, max=most, wait_seconds=wait)
        self.open.append(asyncio.create_task(self.node.leases.claim(None, claim)))
        return self.open[-1]

    async def limit(self, tenant_id: UUID, most: int) -> None:
        self.book.most[tenant_id] = most
        insert = "INSERT INTO tenants (id, name, max_running, created_at, updated_at) VALUES (?, ?, ?, ?, ?)"
        await execute_raw(self.store.inner, insert, tenant_id, str(tenant_id), most, NOW, NOW)

    async def complete(self, *tasks: ClaimedTask) -> list[str]:
        done = LeaseCompleteRequest(worker="w", results=[LeaseCompletion(id=task.id, fence=task.fence) for task in tasks])
        return [one.status for one in await self.node.leases.complete(None, done)]


@pytest.fixture(name="polling")
async def polling_node(store: Store) -> AsyncIterator[Fleet]:
    polling = Fleet(store)
    yield polling
    await polling.close()


def tenants_of(tasks: list[ClaimedTask]) -> Counter[UUID]:
    return Counter(task.tenant_id for task in tasks)


# Fleets


async def test_a_fleet_serves_tenants_by_weight(polling: Fleet) -> None:
    polling.book.weights[A] = 3.0
    await polling.submit(200, tenant=A)
    await polling.submit(200, tenant=B)
    tasks = [task for _ in range(10) for task in await response(polling.fleet(most=8))]
    counts = tenants_of(tasks)
    assert abs(counts[A] - 60) <= 2
    assert counts.total() == 80


async def test_a_fleet_that_waits_is_handed_tasks_of_any_tenant(polling: Fleet) -> None:
    long_polls = [polling.fleet(f"worker-{number}") for number in range(2)]
    await polling.settle()
    claims = polling.store.claims
    ids = [*await polling.hand(tenant=A), *await polling.hand(tenant=B)]
    assert await ids_of(*long_polls) == ids
    assert polling.store.claims == claims
    assert [(await response(poll))[0].tenant_id for poll in long_polls] == [A, B]


async def test_one_small_tenant_beside_a_big_one_is_served_with_the_next_claim(polling: Fleet) -> None:
    await polling.submit(300, tenant=A)
    for _ in range(3):
        await response(polling.fleet(most=10))
    (id_,) = await polling.submit(tenant=B)
    assert id_ in await ids_of(polling.fleet(most=10))


async def test_fair_keys_of_a_tenant_take_turns(polling: Fleet) -> None:
    await polling.submit(100, fair_key="big")
    small = await polling.submit(2, fair_key="small")
    assert set(small) <= set(await ids_of(polling.poll(most=6)))


async def test_what_a_fleet_holds_it_settles_whosever_it_is(polling: Fleet) -> None:
    await polling.submit(2, tenant=A)
    await polling.submit(3, tenant=B)
    one, two, three, four, five = await response(polling.fleet(most=5))
    work = polling.node.leases
    (beat,) = await work.heartbeat(None, LeaseHeartbeatRequest(worker="w", leases=[LeaseHeartbeat(id=one.id, fence=1)]))
    assert beat.status == "ok"
    assert await polling.complete(one, two) == ["ok", "ok"]
    assert await polling.complete(one) == ["ok"], "and again"
    failures = LeaseFailRequest(
        worker="w", failures=[LeaseFailure(id=three.id, fence=1, error=ErrorInput(message="x"), retryable=False)]
    )
    assert [(done.status, done.next) for done in await work.fail(None, failures)] == [("ok", "dead")]
    (released,) = await work.release(None, LeaseReleaseRequest(worker="w", leases=[Lease(id=four.id, fence=1)]))
    assert released.status == "ok"
    stranger = LeaseCompleteRequest(worker="w", results=[LeaseCompletion(id=five.id, fence=1)])
    assert [done.status for done in await work.complete(OTHER_TENANT, stranger)] == ["stale"]


async def test_what_a_fleets_worker_leaves_behind_is_given_back(polling: Fleet) -> None:
    polling.store.hold_back()
    ids = await polling.submit(2, tenant=A)
    gone = polling.fleet(most=2)
    await polling.store.taken.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    polling.store.may_answer.set()
    await polling.settle()
    assert {task.state.value for task in await polling.store.task_find(A, ids)} == {"ready"}


# Keys for certain queues


async def test_a_key_for_certain_queues_keeps_to_them(polling: Fleet) -> None:
    (ours,) = await polling.submit(queue="a")
    (theirs,) = await polling.submit(queue="b")
    work, only = polling.node.leases, frozenset({"a"})
    with pytest.raises(Forbidden, match="but not on the queue b"):
        await work.claim(DEFAULT_TENANT, LeaseClaimRequest(worker="w", queues=["a", "b"]), queues=only)
    await response(polling.poll(most=2, queues=["a", "b"]))
    leases = [Lease(id=id_, fence=1) for id_ in (ours, theirs)]
    beats = LeaseHeartbeatRequest(worker="w", leases=[LeaseHeartbeat(id=one.id, fence=1) for one in leases])
    assert [one.status for one in await work.heartbeat(DEFAULT_TENANT, beats, queues=only)] == ["ok", "lost"]
    failures = [LeaseFailure(id=one.id, fence=1, error=ErrorInput(message="x")) for one in leases[1:]]
    failed = await work.fail(DEFAULT_TENANT, LeaseFailRequest(worker="w", failures=failures), queues=only)
    assert [one.status for one in failed] == ["stale"]
    given = await work.release(DEFAULT_TENANT, LeaseReleaseRequest(worker="w", leases=leases[1:]), queues=only)
    assert [one.status for one in given] == ["stale"]
    results = LeaseCompleteRequest(worker="w", results=[LeaseCompletion(id=one.id, fence=1) for one in leases])
    for _ in range(2):
        done = await work.complete(DEFAULT_TENANT, results, queues=only)
        assert [one.status for one in done] == ["ok", "stale"], "also when the answer was lost"


# max_running


async def test_max_running_limits_claims_and_an_ended_task_allows_another(polling: Fleet) -> None:
    await polling.limit(A, 2)
    ids = await polling.submit(5, tenant=A)
    first, second = await response(polling.fleet(most=5))
    poll = polling.fleet("next")
    await polling.settle()
    assert not poll.done(), "there are three more, but two are running"
    looks = polling.store.looks
    assert await polling.complete(first) == ["ok"]
    assert await ids_of(poll) == ids[2:3]
    assert polling.store.looks == looks, "what waits is known already"
    await polling.complete(second)


async def test_a_tenant_at_its_limit_does_not_hold_up_the_others(polling: Fleet) -> None:
    await polling.limit(A, 1)
    await polling.submit(50, tenant=A)
    ids = await polling.submit(5, tenant=B)
    tasks = await response(polling.fleet(most=10))
    assert tenants_of(tasks) == {A: 1, B: 5}
    assert {task.id for task in tasks} >= set(ids)


async def test_tasks_of_a_limited_tenant_are_not_handed_past_the_limit(polling: Fleet) -> None:
    await polling.limit(A, 1)
    long_polls = [polling.fleet(f"worker-{number}") for number in range(3)]
    await polling.settle()
    for _ in range(3):
        await polling.hand(tenant=A)
    await polling.settle()
    assert sum(poll.done() for poll in long_polls) == 1


async def test_submits_of_a_tenant_at_its_limit_wake_nobody(polling: Fleet) -> None:
    await polling.limit(A, 1)
    await polling.submit(2, tenant=A)
    await response(polling.fleet())
    polling.fleet("idle")
    await polling.settle()
    asked = (polling.store.claims, polling.store.looks)
    await polling.submit(3, tenant=A)
    await polling.settle()
    assert (polling.store.claims, polling.store.looks) == asked


async def test_a_failed_or_lost_task_allows_another(polling: Fleet) -> None:
    await polling.limit(A, 1)
    await polling.submit(3, tenant=A)
    (task,) = await response(polling.fleet())
    poll = polling.fleet("next")
    await polling.settle()
    failure = LeaseFailure(id=task.id, fence=1, error=ErrorInput(message="x"), retryable=False)
    await polling.node.leases.fail(A, LeaseFailRequest(worker="w", failures=[failure]))
    (held,) = await response(poll)
    poll = polling.fleet("last")
    await polling.settle()
    assert not poll.done()
    later = "UPDATE tasks SET lease_until = started_at WHERE state = 'running'"
    await execute_raw(polling.store.inner, later)
    await polling.node.reaper.run_once()
    (last,) = await response(poll)
    assert last.id != task.id
    assert held.id != task.id


# Looking


async def test_a_roster_that_is_known_is_claimed_from_without_a_look(polling: Fleet) -> None:
    await polling.submit(30, tenant=A)
    await response(polling.fleet())
    looks = polling.store.looks
    for _ in range(5):
        await response(polling.fleet())
    assert polling.store.looks == looks


async def test_what_another_node_took_is_found_out_and_looked_for(polling: Fleet) -> None:
    await polling.submit(3, tenant=A)
    await response(polling.fleet())
    twin = open_second_store(polling.store.inner)
    other = FairDispatcher(ClaimScope(None, ("default",), None), twin, ChangePublisher(twin), EqualShares(), 3600)
    assert len((await other.dispatch([ClaimRequest("other", 5, 30)])).tasks[0]) == 2
    await twin.task_submit([make_task(tenant_id=B)])
    assert tenants_of(await response(polling.fleet())) == {B: 1}
    await twin.close()


async def test_more_flows_than_one_look_holds_are_all_reached(polling: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_dispatch, "_MAX_FLOWS", 4)
    await polling.store.inner.task_submit([make_task(tenant_id=UUID(int=number + 100)) for number in range(30)])
    ids: set[UUID] = set()
    while tasks := await response(polling.fleet(most=3, wait=0)):
        ids |= {task.tenant_id for task in tasks}
    assert len(ids) == 30


async def test_types_that_only_come_late_are_found(polling: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_dispatch, "_MAX_FLOWS", 4)
    await polling.store.inner.task_submit([make_task(f"type-{number:02}") for number in range(30)])
    (task,) = await response(polling.poll(types=["type-27"], wait=0))
    assert task.type == "type-27"
    assert await response(polling.poll(types=["type-27"], wait=0)) == []


async def test_a_look_rests_ten_times_as_long_as_it_took() -> None:
    seconds = 100.0
    flow = Flow("q", A, 100, "", "t")

    class Slow:
        looks = 0

        async def task_flows(self, *_: Any, **__: Any) -> list[Flow]:
            nonlocal seconds
            self.looks += 1
            seconds += 1
            return [flow]

        async def task_claim(self, shares_: Any, claim_requests: Any, **_: Any) -> Any:
            claimed_counts = [1] + [0] * (len(shares_) - 1)
            return ClaimResult([[Any] for _ in claim_requests], [share.limit for share in shares_], claimed_counts)  # type: ignore[list-item]

    store = Slow()
    publisher = ChangePublisher(cast(Store, store))
    key = ClaimScope(None, ("q",), None)
    dispatcher = FairDispatcher(key, cast(Store, store), publisher, EqualShares(), 3600, monotonic=lambda: seconds)
    claim_requests = [ClaimRequest("w", 1, 30)]
    for _ in range(9):
        assert await dispatcher.find()
        await dispatcher.dispatch(claim_requests)
        dispatcher.mark_stale()
        seconds += 1
    assert store.looks == 1
    seconds += 2
    assert await dispatcher.find()
    assert store.looks == 2


async def test_a_look_that_fails_is_made_again(polling: Fleet) -> None:
    polling.store.error = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        await response(polling.fleet())
    polling.store.error = None
    ids = await polling.submit(tenant=A)
    assert await ids_of(polling.fleet()) == ids
    assert polling.book.read >= 2


async def test_what_was_claimed_before_a_claim_failed_reaches_its_worker(polling: Fleet) -> None:
    """A second round that fails must not cost what the first one took."""
    for priority in (1, 2):
        await polling.submit(2, tenant=A, priority=priority)
        await polling.submit(2, tenant=B, priority=priority)
    inner, calls = polling.store.inner.task_claim, 0

    async def failing(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise StoreUnavailable("away")
        return await inner(*args, **more)

    polling.store.inner.task_claim = failing  # type: ignore[method-assign]
    tasks = await response(polling.fleet(most=8))
    assert len(tasks) == 4
    assert await response(polling.fleet(most=8)) != []


async def test_a_batch_with_fair_keys_is_told_by_its_flows(polling: Fleet) -> None:
    poll = await polling.idle(most=4)
    given = [TaskInput(type="work", fair_key=key, delay_seconds=0) for key in ("x", "x", "y", "z")]
    looks = polling.store.looks
    ids = await polling.node.tasks.submit_batch(DEFAULT_TENANT, given)
    assert set(await ids_of(poll)) == set(ids)
    assert polling.store.looks == looks
