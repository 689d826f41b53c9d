"""Long polls: woken by one signal, served in the order of arrival, no queries while they wait, and no task lost on cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.errors import InvalidInput, StoreUnavailable
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import TaskState
from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.values import ClaimResult, Notice
from tests.factories import OTHER_TENANT, make_task, open_second_store
from tests.services.polling import PollingNode, ids_of, response, run_pending, until


@pytest.fixture(name="polling")
async def polling_node(store: Store) -> AsyncIterator[PollingNode]:
    polling = PollingNode(store)
    yield polling
    await polling.close()


# Waking


async def test_a_waiting_poll_gets_a_task_with_one_claim(polling: PollingNode) -> None:
    poll = await polling.waiting_poll()
    claims, flow_queries = polling.store.claims, polling.store.flow_queries
    ids = await polling.submit()
    assert await ids_of(poll) == ids
    assert (polling.store.claims, polling.store.flow_queries) == (claims + 1, flow_queries), (
        "one round trip: the wake-up names the tenant"
    )


async def test_a_ready_task_is_returned_immediately(polling: PollingNode) -> None:
    ids = await polling.submit(3)
    assert await ids_of(polling.poll(max_tasks=2)) == ids[:2]


async def test_a_poll_that_times_out_gets_nothing(polling: PollingNode) -> None:
    assert await response(polling.poll(wait=0.01)) == []
    ids = await polling.submit()
    assert await ids_of(polling.poll()) == ids


async def test_a_poll_with_wait_zero_queries_and_does_not_wait(polling: PollingNode) -> None:
    for number in range(3):
        assert await response(polling.poll(wait=0)) == []
        assert polling.store.flow_queries == number + 1, "it queries, although nothing was ready a moment ago"


async def test_a_wait_queue_without_ready_tasks_is_not_queried_again(polling: PollingNode) -> None:
    await polling.waiting_poll("first")
    flow_queries = polling.store.flow_queries
    for number in range(10):
        await polling.waiting_poll(f"worker-{number}")
    assert (polling.store.claims, polling.store.flow_queries) == (0, flow_queries)


async def test_a_wake_up_during_a_claim_is_not_lost(polling: PollingNode) -> None:
    polling.store.delay_claim_results()
    poll = polling.poll()
    await polling.store.claim_done.wait()
    ids = await polling.submit()  # the claim in progress has already queried
    polling.store.may_respond.set()
    assert await ids_of(poll) == ids


async def test_a_wake_up_without_waiting_polls_is_remembered(polling: PollingNode) -> None:
    assert await response(polling.poll(wait=0.01)) == []
    ids = await polling.submit()
    assert await ids_of(polling.poll()) == ids


async def test_a_wake_up_for_another_queue_wakes_no_poll(polling: PollingNode) -> None:
    await polling.waiting_poll()
    claims = polling.store.claims
    await polling.submit(queue="other")
    await polling.wait_for_claims()
    assert polling.store.claims == claims


async def test_a_poll_for_several_queues_is_woken_by_each_of_them(polling: PollingNode) -> None:
    for queue in ("a", "b"):
        poll = await polling.waiting_poll(queues=["a", "b"])
        ids = await polling.submit(queue=queue)
        assert await ids_of(poll) == ids


async def test_a_poll_gets_only_the_requested_types(polling: PollingNode) -> None:
    other_type = await polling.waiting_poll(types=["other"])
    poll = await polling.waiting_poll()
    ids = await polling.submit()
    assert await ids_of(poll) == ids
    await polling.wait_for_claims()
    assert not other_type.done()


async def test_polls_are_not_woken_for_tasks_of_other_tenants(polling: PollingNode) -> None:
    other = await polling.waiting_poll(tenant=OTHER_TENANT)
    mine = await polling.waiting_poll()
    ids = await polling.submit()
    assert await ids_of(mine) == ids
    theirs = await polling.submit(tenant=OTHER_TENANT)
    assert await ids_of(other) == theirs


async def test_bad_names_are_refused_before_the_poll_waits(polling: PollingNode) -> None:
    for bad in ({"queues": ["a b"]}, {"types": ["\x00"]}, {"worker": "a\x00b"}):
        with pytest.raises(InvalidInput):
            await response(polling.poll(**{"worker": "worker", **bad}))  # type: ignore[arg-type]
    assert polling.long_polls._wait_queues == {}


# Many polls


async def test_five_thousand_waiting_polls_and_one_task_cost_a_few_claims(polling: PollingNode) -> None:
    long_polls = [polling.poll(f"worker-{number}") for number in range(5000)]
    await polling.wait_for_claims()
    assert polling.store.claims <= 5
    claims = polling.store.claims
    ids = await polling.submit()
    assert await ids_of(long_polls[0]) == ids, "in the order of arrival"
    await polling.wait_for_claims()
    assert polling.store.claims - claims <= 2
    assert sum(poll.done() for poll in long_polls) == 1
    claims, flow_queries = polling.store.claims, polling.store.flow_queries
    await polling.long_polls.run_once()
    await polling.wait_for_claims()
    assert (polling.store.claims, polling.store.flow_queries) == (claims, flow_queries), "the polls were not touched"
    await polling.long_polls.close()
    assert [await response(poll) for poll in long_polls[1:]] == [[]] * 4999


async def test_polls_are_served_in_the_order_of_arrival(polling: PollingNode) -> None:
    long_polls = [await polling.waiting_poll(f"worker-{number}") for number in range(6)]
    for poll in long_polls:
        ids = await polling.submit()
        assert await ids_of(poll) == ids
        await polling.wait_for_claims()
    assert all(poll.done() for poll in long_polls)


async def test_several_polls_are_served_by_one_claim(polling: PollingNode) -> None:
    long_polls = [await polling.waiting_poll(f"worker-{number}", max_tasks=2) for number in range(4)]
    claims = polling.store.claims
    ids = await polling.submit(5)
    assert [[task.id for task in await response(poll)] for poll in long_polls[:3]] == [ids[0:2], ids[2:4], ids[4:]]
    await polling.wait_for_claims()
    assert polling.store.claims == claims + 1
    assert not long_polls[3].done()


async def test_a_claim_that_filled_its_limit_is_followed_by_another(polling: PollingNode) -> None:
    """More tasks were ready than the first polls of the wait queue took, so the next poll does not wait."""
    ids = await polling.submit(3)
    assert [await ids_of(polling.poll()) for _ in range(3)] == [[id_] for id_ in ids]


async def test_a_poll_with_wait_zero_returns_although_many_wait_before_it(polling: PollingNode) -> None:
    """A claim serves a limited number of polls. If it finds nothing, nothing is ready for the later polls either."""
    for number in range(3):
        await polling.waiting_poll(f"big-{number}", max_tasks=1000)
    assert await response(polling.poll("no-wait", wait=0), 5) == []


# Cancelled polls


async def test_a_poll_cancelled_while_it_waits_affects_no_task(polling: PollingNode) -> None:
    gone, next_one = await polling.waiting_poll("gone"), await polling.waiting_poll("next")
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    ids = await polling.submit()
    assert await ids_of(next_one) == ids
    assert await polling.states(ids) == [("running", 1)]


async def test_tasks_claimed_for_a_cancelled_poll_are_released_immediately(polling: PollingNode) -> None:
    polling.store.delay_claim_results()
    ids = await polling.submit(2)
    gone = polling.poll("gone", max_tasks=2)
    await polling.store.claim_done.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    polling.store.may_respond.set()
    await polling.wait_for_claims()
    assert await polling.states(ids) == [("ready", 0)] * 2, "and no attempt is counted"
    assert set(await ids_of(polling.poll("next", max_tasks=2))) == set(ids)


async def test_released_tasks_go_to_the_next_poll(polling: PollingNode) -> None:
    gone, next_one = await polling.waiting_poll("gone"), await polling.waiting_poll("next")
    polling.store.delay_claim_results()
    ids = await polling.submit()
    await polling.store.claim_done.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    polling.store.may_respond.set()
    assert await ids_of(next_one) == ids
    assert await polling.states(ids) == [("running", 1)]


async def test_a_poll_that_times_out_during_its_claim_loses_no_task(polling: PollingNode) -> None:
    ids = await polling.submit()
    polling.store.delay_claim_results()
    poll = polling.poll(wait=0.5)
    await polling.store.claim_done.wait()
    assert await response(poll) == []
    polling.store.may_respond.set()
    await polling.wait_for_claims()
    assert await polling.states(ids) == [("ready", 0)]


@pytest.mark.parametrize("times", [1, 3])
async def test_a_poll_cancelled_just_after_it_got_its_tasks_releases_them(polling: PollingNode, times: int) -> None:
    """Also if it is cancelled repeatedly, as servers do until a handler has ended."""
    poll = await polling.waiting_poll()
    (wait_queue,) = polling.long_polls._wait_queues.values()
    done = wait_queue.waiting[0].done
    submitting = asyncio.create_task(polling.submit())
    async with asyncio.timeout(20):
        while not done.done():
            await asyncio.sleep(0)
    for _ in range(times):
        poll.cancel()
        await asyncio.sleep(0)
    await asyncio.gather(poll, return_exceptions=True)
    assert poll.cancelled()
    await polling.long_polls.close()
    assert await polling.states(await submitting) == [("ready", 0)]


async def test_a_failed_release_does_not_stop_the_wait_queue(polling: PollingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease expires later, and the wait queue continues."""
    loop_errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: loop_errors.append(context))

    async def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("unavailable")

    gone, next_one = await polling.waiting_poll("gone"), await polling.waiting_poll("next")
    polling.store.delay_claim_results()
    lost = await polling.submit()
    await polling.store.claim_done.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    with monkeypatch.context() as patch:
        patch.setattr(polling.long_polls, "_release_tasks", fail)
        polling.store.may_respond.set()
        await polling.wait_for_claims()
    assert await polling.states(lost) == [("running", 1)]
    ids = await polling.submit()
    assert await ids_of(next_one) == ids
    await polling.wait_for_claims()
    assert loop_errors == []


async def test_closing_ends_all_polls(polling: PollingNode) -> None:
    long_polls = [await polling.waiting_poll(f"worker-{number}", queues=[f"queue-{number % 3}"]) for number in range(9)]
    await polling.long_polls.close()
    assert [await response(poll) for poll in long_polls] == [[]] * 9


async def test_closing_ends_polls_with_a_claim_in_progress_and_later_polls(polling: PollingNode) -> None:
    polling.store.delay_claim_results()
    poll = polling.poll()
    await polling.store.claim_done.wait()
    closing = asyncio.create_task(polling.long_polls.close())
    await run_pending()
    polling.store.may_respond.set()
    assert await response(poll, 5) == []
    assert await response(polling.poll("late"), 5) == []
    await closing
    await polling.long_polls.run_once()
    await polling.waiting_poll("after reopening")


async def test_closing_waits_for_the_claims_of_polls_that_were_cancelled(polling: PollingNode) -> None:
    """The store is closed next, and tasks that such a claim has got are returned before."""
    gone = await polling.waiting_poll()
    polling.store.delay_claim_results()
    ids = await polling.submit()
    await polling.store.claim_done.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    closing = asyncio.create_task(polling.long_polls.close())
    await run_pending()
    assert not closing.done()
    polling.store.may_respond.set()
    await closing
    assert await polling.states(ids) == [("ready", 0)]


async def test_closing_does_not_wait_for_a_store_that_does_not_respond(
    polling: PollingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everbeat.services.long_polls._CLOSE_SECONDS", 0.01)
    polling.store.delay_claim_results()
    poll = polling.poll()
    await polling.store.claim_done.wait()
    async with asyncio.timeout(5):
        await polling.long_polls.close()
    poll.cancel()


# Failed claims


async def test_a_failed_claim_fails_its_polls_and_later_polls_work(polling: PollingNode) -> None:
    long_polls = [await polling.waiting_poll(f"worker-{number}") for number in range(3)]
    polling.store.error = StoreUnavailable("unavailable")
    ids = await polling.submit()
    for poll in long_polls:
        with pytest.raises(StoreUnavailable):
            await response(poll)
    polling.store.error = None
    assert await ids_of(polling.poll()) == ids, "it queries, because the wait queue is not known to be empty"


async def test_a_poll_that_arrives_during_a_failing_claim_does_not_fail(polling: PollingNode) -> None:
    first = await polling.waiting_poll("first")
    claiming, may_fail = asyncio.Event(), asyncio.Event()

    async def fail(*_: Any, **__: Any) -> ClaimResult:
        claiming.set()
        await may_fail.wait()
        raise StoreUnavailable("unavailable")

    polling.store.task_claim = fail  # type: ignore[method-assign]
    ids = await polling.submit()
    await claiming.wait()
    second = polling.poll("second")
    await run_pending()
    del polling.store.task_claim
    may_fail.set()
    with pytest.raises(StoreUnavailable):
        await response(first)
    assert await ids_of(second) == ids


# Other nodes


async def test_a_notice_of_another_node_wakes_the_polls_of_this_one(postgres_url: str) -> None:
    here, there = PostgresStore(postgres_url), PostgresStore(postgres_url, listen=False)
    notices: list[Notice] = []
    here.subscribe(notices.append)
    polling, other = PollingNode(here), PollingNode(there)
    await here.open()
    await until(lambda: set(notices) == set(Notice))
    poll = await polling.waiting_poll()
    ids = await other.submit()
    assert await ids_of(poll) == ids
    poll = await polling.waiting_poll()
    ids = await other.submit()
    assert await ids_of(poll) == ids, "and again"
    await polling.close()
    await here.close()
    await there.close()


async def test_the_periodic_query_finds_tasks_without_a_notice(polling: PollingNode) -> None:
    poll = await polling.waiting_poll()
    other = PollingNode(open_second_store(polling.store.inner))
    ids = await other.submit()
    await polling.wait_for_claims()
    assert not poll.done()
    assert not await polling.long_polls.run_once()
    assert await ids_of(poll) == ids
    await other.store.close()


async def test_a_notice_of_this_node_does_not_wake_every_wait_queue(polling: PollingNode) -> None:
    await polling.waiting_poll(queues=["a"])
    flow_queries = polling.store.flow_queries
    for _ in range(5):
        polling.long_polls.wake(["b"])
    await polling.wait_for_claims()
    assert polling.store.flow_queries == flow_queries
    assert polling.store.ready_checks == 0
    polling.store.publish(Notice.TASKS)
    await polling.wait_for_claims()
    assert (polling.store.ready_checks, polling.store.flow_queries) == (1, flow_queries), "a notice of another node is checked"


async def test_many_wait_queues_share_one_check_and_only_those_with_tasks_are_woken(polling: PollingNode) -> None:
    for number in range(50):
        await polling.waiting_poll(queues=[f"a-{number}", f"b-{number}", "shared"])
    theirs = await polling.waiting_poll(queues=["a-7"], tenant=OTHER_TENANT)
    flow_queries = polling.store.flow_queries
    await polling.store.task_submit([make_task(queue="b-7", tenant_id=tenant) for tenant in (DEFAULT_TENANT, UUID(int=99))])
    polling.store.publish(Notice.TASKS)
    await polling.wait_for_claims()
    assert polling.store.ready_checks == 1
    assert polling.store.flow_queries == flow_queries + 1
    assert not theirs.done()
    assert sum(poll.done() for poll in polling.open) == 1
    await polling.long_polls.run_once()
    await polling.wait_for_claims()
    assert polling.store.ready_checks == 2


async def test_wait_queues_that_get_nothing_rotate(polling: PollingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everbeat.services.long_polls._MAX_IN_VAIN", 3)
    await polling.store.task_submit([make_task("unwanted")])
    polls = [await polling.waiting_poll(types=[f"type-{number}"]) for number in range(12)]
    scans = []
    for _ in range(6):
        before = polling.store.flow_queries
        await polling.long_polls.run_once()
        await polling.wait_for_claims()
        scans.append(polling.store.flow_queries - before)
    assert scans == [12, 3, 3, 3, 3, 3]
    await polling.store.task_submit([make_task("type-7")])  # on another node
    for _ in range(4):
        await polling.long_polls.run_once()
        await polling.wait_for_claims()
    assert [poll.done() for poll in polls] == [number == 7 for number in range(12)]


async def test_a_queue_that_was_empty_in_between_is_not_woken_in_rotation(
    polling: PollingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everbeat.services.long_polls._MAX_IN_VAIN", 0)
    unwanted, wanted = make_task("unwanted"), make_task("wanted")
    await polling.store.task_submit([unwanted])
    poll = await polling.waiting_poll(types=["wanted"])
    await polling.long_polls.run_once()
    await polling.wait_for_claims()
    await polling.store.task_submit([wanted])
    await polling.long_polls.run_once()
    await polling.wait_for_claims()
    assert not poll.done()
    await polling.store.task_cancel(DEFAULT_TENANT, [unwanted.id, wanted.id])
    await polling.long_polls.run_once()
    await polling.store.task_submit([make_task("wanted")])
    await polling.long_polls.run_once()
    assert len(await response(poll)) == 1


async def test_a_check_continues_where_the_last_one_ended(polling: PollingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everbeat.services.long_polls._PAGE_SIZE", 2)
    monkeypatch.setattr("everbeat.services.long_polls._MAX_PAGES", 2)
    poll = await polling.waiting_poll(queues=["z"])
    await polling.store.task_submit([make_task(queue=queue) for queue in ("a", "b", "c", "d", "e", "z")])
    await polling.long_polls.run_once()
    await polling.wait_for_claims()
    assert not poll.done()
    await polling.long_polls.run_once()
    await polling.wait_for_claims()
    assert len(await response(poll)) == 1


async def test_a_failed_check_leaves_the_polls_waiting(polling: PollingNode) -> None:
    poll = await polling.waiting_poll()
    polling.store.error = StoreUnavailable("gone")
    with pytest.raises(StoreUnavailable):
        await polling.long_polls.run_once()
    polling.store.publish(Notice.TASKS)
    await polling.wait_for_claims()
    assert not poll.done()
    polling.store.error = None
    ids = await polling.submit()
    assert await ids_of(poll) == ids


# Removal of wait queues


async def test_wait_queues_without_polls_are_removed(polling: PollingNode) -> None:
    for number in range(20):
        assert await response(polling.poll(wait=0.001, queues=[f"queue-{number}"])) == []
    await polling.wait_for_claims()
    await polling.long_polls.run_once()
    assert polling.long_polls._wait_queues == {}


async def test_cancelled_polls_are_removed(polling: PollingNode) -> None:
    kept_poll = await polling.waiting_poll("kept")
    for _ in range(3):
        gone = [polling.poll(f"gone-{number}") for number in range(100)]
        await polling.wait_for_claims()
        for poll in gone:
            poll.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        await polling.long_polls.run_once()
        await polling.wait_for_claims()
    (wait_queue,) = polling.long_polls._wait_queues.values()
    assert len(wait_queue.waiting) == 1
    assert not kept_poll.done()


async def test_a_claim_for_many_polls_serves_few_at_first_and_more_if_it_was_full(polling: PollingNode) -> None:
    """One task that another node made ready must not need a claim for all waiting polls."""
    long_polls = [
        await polling.waiting_poll(f"worker-{number}") if number == 0 else polling.poll(f"worker-{number}")
        for number in range(300)
    ]
    await polling.wait_for_claims()
    claims_before = len(polling.store.claiming_workers)
    (first,) = await polling.submit()
    assert [task.id for task in await response(long_polls[0])] == [first]
    assert [len(workers) for workers in polling.store.claiming_workers[claims_before:]] == [64]
    ids = await polling.submit(299)
    served = [await response(poll) for poll in long_polls[1:]]
    assert sorted(task.id for tasks in served for task in tasks) == sorted(ids)
    sizes = [len(workers) for workers in polling.store.claiming_workers[claims_before + 1 :]]
    assert (sizes[0], len(sizes)) == (64, 2)


async def test_a_periodic_query_that_finds_nothing_keeps_the_wait_queue(polling: PollingNode) -> None:
    await polling.waiting_poll("first")
    await polling.waiting_poll("second")
    (wait_queue,) = polling.long_polls._wait_queues.values()
    waiting = list(wait_queue.waiting)
    flow_queries, claims = polling.store.flow_queries, polling.store.claims
    await polling.long_polls.run_once()
    await polling.wait_for_claims()
    assert (polling.store.flow_queries, polling.store.claims) == (flow_queries, claims)
    assert list(wait_queue.waiting) == waiting


async def test_the_same_queues_in_another_order_share_a_wait_queue(polling: PollingNode) -> None:
    await polling.waiting_poll(queues=["b", "a"])
    claims = polling.store.claims
    await polling.waiting_poll(queues=["a", "b", "a"])
    assert (len(polling.long_polls._wait_queues), polling.store.claims) == (1, claims)


async def test_a_periodic_query_during_a_claim_keeps_the_wait_queue(polling: PollingNode) -> None:
    """A poll whose claim found nothing continues to wait in the wait queue."""
    polling.store.delay_claim_results()
    poll = polling.poll()
    await polling.store.claim_done.wait()
    await polling.long_polls.run_once()
    polling.store.may_respond.set()
    await polling.wait_for_claims()
    assert not poll.done()
    ids = await polling.submit()
    assert await ids_of(poll) == ids


async def test_a_task_claimed_by_a_long_poll_can_be_completed(polling: PollingNode) -> None:
    """The lease and the fence of a long poll are valid."""
    poll = await polling.waiting_poll()
    ids = await polling.submit()
    (task,) = await response(poll)
    assert task.lease_until > await polling.store.clock()
    (found,) = await polling.store.task_find(DEFAULT_TENANT, ids)
    assert (found.state, found.worker, found.fence) == (TaskState.RUNNING, "worker", task.fence)
