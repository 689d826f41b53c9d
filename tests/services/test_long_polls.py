"""Long polls: woken within a ring, served in the order they came, cheap while they wait, and nothing lost when they go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from everbeat.core.errors import InvalidInput, StoreUnavailable
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import TaskState
from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.values import ClaimResult, Notice
from tests.factories import OTHER_TENANT, open_second_store
from tests.services.polling import PollingNode, ids_of, response, turn_over, until


@pytest.fixture(name="polling")
async def polling_node(store: Store) -> AsyncIterator[PollingNode]:
    polling = PollingNode(store)
    yield polling
    await polling.close()


# Waking


async def test_a_waiting_poll_hears_of_a_task_within_one_ring(polling: PollingNode) -> None:
    poll = await polling.idle()
    claims, looks = polling.store.claims, polling.store.looks
    ids = await polling.submit()
    assert await ids_of(poll) == ids
    assert (polling.store.claims, polling.store.looks) == (claims + 1, looks), "one round trip: the wake-up names the tenant"


async def test_a_task_that_is_there_is_given_at_once(polling: PollingNode) -> None:
    ids = await polling.submit(3)
    assert await ids_of(polling.poll(most=2)) == ids[:2]


async def test_a_poll_that_times_out_gets_nothing(polling: PollingNode) -> None:
    assert await response(polling.poll(wait=0.01)) == []
    ids = await polling.submit()
    assert await ids_of(polling.poll()) == ids


async def test_without_patience_it_asks_at_once_and_does_not_wait(polling: PollingNode) -> None:
    for number in range(3):
        assert await response(polling.poll(wait=0)) == []
        assert polling.store.looks == number + 1, "it asks, although nothing was there a moment ago"


async def test_a_line_that_is_known_to_be_empty_is_not_asked_again(polling: PollingNode) -> None:
    await polling.idle("first")
    looks = polling.store.looks
    for number in range(10):
        await polling.idle(f"worker-{number}")
    assert (polling.store.claims, polling.store.looks) == (0, looks)


async def test_a_ring_during_a_claim_is_not_lost(polling: PollingNode) -> None:
    polling.store.hold_back()
    poll = polling.poll()
    await polling.store.taken.wait()
    ids = await polling.submit()  # the claim under way has looked already
    polling.store.may_answer.set()
    assert await ids_of(poll) == ids


async def test_a_ring_while_nobody_waits_is_remembered(polling: PollingNode) -> None:
    assert await response(polling.poll(wait=0.01)) == []
    ids = await polling.submit()
    assert await ids_of(polling.poll()) == ids


async def test_a_ring_for_another_queue_wakes_nobody(polling: PollingNode) -> None:
    await polling.idle()
    claims = polling.store.claims
    await polling.submit(queue="other")
    await polling.settle()
    assert polling.store.claims == claims


async def test_a_poll_for_several_queues_is_woken_by_each_of_them(polling: PollingNode) -> None:
    for queue in ("a", "b"):
        poll = await polling.idle(queues=["a", "b"])
        ids = await polling.submit(queue=queue)
        assert await ids_of(poll) == ids


async def test_a_poll_gets_only_types_it_asked_for(polling: PollingNode) -> None:
    picky = await polling.idle(types=["other"])
    poll = await polling.idle()
    ids = await polling.submit()
    assert await ids_of(poll) == ids
    await polling.settle()
    assert not picky.done()


async def test_tenants_do_not_hear_of_each_others_tasks(polling: PollingNode) -> None:
    other = await polling.idle(tenant=OTHER_TENANT)
    mine = await polling.idle()
    ids = await polling.submit()
    assert await ids_of(mine) == ids
    theirs = await polling.submit(tenant=OTHER_TENANT)
    assert await ids_of(other) == theirs


async def test_bad_names_are_refused_before_anybody_waits(polling: PollingNode) -> None:
    for bad in ({"queues": ["a b"]}, {"types": ["\x00"]}, {"worker": "a\x00b"}):
        with pytest.raises(InvalidInput):
            await response(polling.poll(**{"worker": "worker", **bad}))  # type: ignore[arg-type]
    assert polling.long_polls._wait_queues == {}


# Many


async def test_five_thousand_waiting_polls_and_one_task_cost_a_few_claims(polling: PollingNode) -> None:
    long_polls = [polling.poll(f"worker-{number}") for number in range(5000)]
    await polling.settle()
    assert polling.store.claims <= 5
    claims = polling.store.claims
    ids = await polling.submit()
    assert await ids_of(long_polls[0]) == ids, "who came first"
    await polling.settle()
    assert polling.store.claims - claims <= 2
    assert sum(poll.done() for poll in long_polls) == 1
    claims, looks = polling.store.claims, polling.store.looks
    await polling.long_polls.run_once()
    await polling.settle()
    assert (polling.store.claims, polling.store.looks) == (claims, looks + 1), "a look costs one question, however many wait"
    await polling.long_polls.close()
    assert [await response(poll) for poll in long_polls[1:]] == [[]] * 4999


async def test_whoever_came_first_is_served_first(polling: PollingNode) -> None:
    long_polls = [await polling.idle(f"worker-{number}") for number in range(6)]
    for poll in long_polls:
        ids = await polling.submit()
        assert await ids_of(poll) == ids
        await polling.settle()
    assert all(poll.done() for poll in long_polls)


async def test_several_polls_are_served_by_one_claim(polling: PollingNode) -> None:
    long_polls = [await polling.idle(f"worker-{number}", most=2) for number in range(4)]
    claims = polling.store.claims
    ids = await polling.submit(5)
    assert [[task.id for task in await response(poll)] for poll in long_polls[:3]] == [ids[0:2], ids[2:4], ids[4:]]
    await polling.settle()
    assert polling.store.claims == claims + 1
    assert not long_polls[3].done()


async def test_a_claim_that_was_filled_is_followed_by_another(polling: PollingNode) -> None:
    """More was there than the front of the line took: whoever comes next is not told to wait."""
    ids = await polling.submit(3)
    assert [await ids_of(polling.poll()) for _ in range(3)] == [[id_] for id_ in ids]


async def test_without_patience_it_is_answered_although_many_wait_before_it(polling: PollingNode) -> None:
    """A claim takes so many from the front of the line; what it found to be empty is empty for those behind, too."""
    for number in range(3):
        await polling.idle(f"big-{number}", most=1000)
    assert await response(polling.poll("hasty", wait=0), 5) == []


# Going away


async def test_a_poll_that_is_cancelled_while_it_waits_costs_nothing(polling: PollingNode) -> None:
    gone, next_one = await polling.idle("gone"), await polling.idle("next")
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    ids = await polling.submit()
    assert await ids_of(next_one) == ids
    assert await polling.states(ids) == [("running", 1)]


async def test_what_is_claimed_for_a_poll_that_is_gone_is_given_back_at_once(polling: PollingNode) -> None:
    polling.store.hold_back()
    ids = await polling.submit(2)
    gone = polling.poll("gone", most=2)
    await polling.store.taken.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    polling.store.may_answer.set()
    await polling.settle()
    assert await polling.states(ids) == [("ready", 0)] * 2, "and no attempt is counted"
    assert set(await ids_of(polling.poll("next", most=2))) == set(ids)


async def test_what_is_given_back_goes_to_the_next_in_line(polling: PollingNode) -> None:
    gone, next_one = await polling.idle("gone"), await polling.idle("next")
    polling.store.hold_back()
    ids = await polling.submit()
    await polling.store.taken.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    polling.store.may_answer.set()
    assert await ids_of(next_one) == ids
    assert await polling.states(ids) == [("running", 1)]


async def test_a_poll_that_times_out_while_its_claim_is_under_way_loses_nothing(polling: PollingNode) -> None:
    ids = await polling.submit()
    polling.store.hold_back()
    poll = polling.poll(wait=0.5)
    await polling.store.taken.wait()
    assert await response(poll) == []
    polling.store.may_answer.set()
    await polling.settle()
    assert await polling.states(ids) == [("ready", 0)]


@pytest.mark.parametrize("times", [1, 3])
async def test_a_poll_that_is_cancelled_in_the_moment_of_its_answer_gives_it_back(polling: PollingNode, times: int) -> None:
    """Also if it is cancelled again and again, as servers do until a handler has ended."""
    poll = await polling.idle()
    (line,) = polling.long_polls._wait_queues.values()
    done = line.waiting[0].done
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


async def test_giving_back_that_fails_stops_nobody(polling: PollingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the lease runs out; the line goes on."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))

    async def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("away")

    gone, next_one = await polling.idle("gone"), await polling.idle("next")
    polling.store.hold_back()
    lost = await polling.submit()
    await polling.store.taken.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    with monkeypatch.context() as patch:
        patch.setattr(polling.long_polls, "_release_tasks", fail)
        polling.store.may_answer.set()
        await polling.settle()
    assert await polling.states(lost) == [("running", 1)]
    ids = await polling.submit()
    assert await ids_of(next_one) == ids
    await polling.settle()
    assert complaints == []


async def test_closing_sends_everybody_home(polling: PollingNode) -> None:
    long_polls = [await polling.idle(f"worker-{number}", queues=[f"queue-{number % 3}"]) for number in range(9)]
    await polling.long_polls.close()
    assert [await response(poll) for poll in long_polls] == [[]] * 9


async def test_closing_sends_those_home_for_whom_a_claim_is_under_way_and_those_who_come_later(polling: PollingNode) -> None:
    polling.store.hold_back()
    poll = polling.poll()
    await polling.store.taken.wait()
    await polling.long_polls.close()
    polling.store.may_answer.set()
    assert await response(poll, 5) == []
    assert await response(polling.poll("late"), 5) == []
    await polling.long_polls.run_once()
    await polling.idle("in the next life")


# Failing


async def test_a_claim_that_fails_is_told_to_those_who_asked_and_later_polls_work(polling: PollingNode) -> None:
    long_polls = [await polling.idle(f"worker-{number}") for number in range(3)]
    polling.store.error = StoreUnavailable("away")
    ids = await polling.submit()
    for poll in long_polls:
        with pytest.raises(StoreUnavailable):
            await response(poll)
    polling.store.error = None
    assert await ids_of(polling.poll()) == ids, "it asks, and does not believe the line to be empty"


async def test_whoever_comes_during_a_claim_that_fails_is_not_told_of_it(polling: PollingNode) -> None:
    first = await polling.idle("first")
    asked, may_fail = asyncio.Event(), asyncio.Event()

    async def fail(*_: Any, **__: Any) -> ClaimResult:
        asked.set()
        await may_fail.wait()
        raise StoreUnavailable("away")

    polling.store.task_claim = fail  # type: ignore[method-assign]
    ids = await polling.submit()
    await asked.wait()
    second = polling.poll("second")
    await turn_over()
    del polling.store.task_claim
    may_fail.set()
    with pytest.raises(StoreUnavailable):
        await response(first)
    assert await ids_of(second) == ids


# Other nodes


async def test_a_notice_of_another_node_wakes_the_polls_of_this_one(postgres_url: str) -> None:
    here, there = PostgresStore(postgres_url), PostgresStore(postgres_url, listen=False)
    heard: list[Notice] = []
    here.subscribe(heard.append)
    polling, other = PollingNode(here), PollingNode(there)
    await here.open()
    await until(lambda: set(heard) == set(Notice))
    poll = await polling.idle()
    ids = await other.submit()
    assert await ids_of(poll) == ids
    poll = await polling.idle()
    ids = await other.submit()
    assert await ids_of(poll) == ids, "and again"
    await polling.close()
    await here.close()
    await there.close()


async def test_the_look_now_and_then_finds_what_no_notice_told_of(polling: PollingNode) -> None:
    poll = await polling.idle()
    other = PollingNode(open_second_store(polling.store.inner))
    ids = await other.submit()
    await polling.settle()
    assert not poll.done()
    assert not await polling.long_polls.run_once()
    assert await ids_of(poll) == ids
    await other.store.close()


async def test_its_own_announcement_does_not_ring_every_line(polling: PollingNode) -> None:
    await polling.idle(queues=["a"])
    looks = polling.store.looks
    for _ in range(5):
        polling.long_polls.wake(["b"])
    await polling.settle()
    assert polling.store.looks == looks
    polling.store.publish(Notice.TASKS)
    await polling.settle()
    assert polling.store.looks == looks + 1, "one that is not its own does"


# Tidiness


async def test_lines_are_tidied_when_nobody_waits_in_them(polling: PollingNode) -> None:
    for number in range(20):
        assert await response(polling.poll(wait=0.001, queues=[f"queue-{number}"])) == []
    await polling.settle()
    await polling.long_polls.run_once()
    assert polling.long_polls._wait_queues == {}


async def test_polls_that_are_gone_are_not_kept(polling: PollingNode) -> None:
    response_tenant_id = await polling.idle("keeper")
    for _ in range(3):
        gone = [polling.poll(f"gone-{number}") for number in range(100)]
        await polling.settle()
        for poll in gone:
            poll.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        await polling.long_polls.run_once()
        await polling.settle()
    (line,) = polling.long_polls._wait_queues.values()
    assert len(line.waiting) == 1
    assert not response_tenant_id.done()


async def test_a_claim_for_a_crowd_asks_for_few_at_first_and_for_more_while_there_is_more(polling: PollingNode) -> None:
    """One task that another node made ready must not cost a look at everybody who waits."""
    long_polls = [
        await polling.idle(f"worker-{number}") if number == 0 else polling.poll(f"worker-{number}") for number in range(300)
    ]
    await polling.settle()
    asked = len(polling.store.asked)
    (first,) = await polling.submit()
    assert [task.id for task in await response(long_polls[0])] == [first]
    assert [len(workers) for workers in polling.store.asked[asked:]] == [64]
    ids = await polling.submit(299)
    served = [await response(poll) for poll in long_polls[1:]]
    assert sorted(task.id for tasks in served for task in tasks) == sorted(ids)
    sizes = [len(workers) for workers in polling.store.asked[asked + 1 :]]
    assert (sizes[0], len(sizes)) == (64, 2)


async def test_a_look_that_finds_nothing_leaves_the_line_as_it_is(polling: PollingNode) -> None:
    await polling.idle("first")
    await polling.idle("second")
    (line,) = polling.long_polls._wait_queues.values()
    waiting = list(line.waiting)
    looks, claims = polling.store.looks, polling.store.claims
    await polling.long_polls.run_once()
    await polling.settle()
    assert (polling.store.looks, polling.store.claims) == (looks + 1, claims)
    assert list(line.waiting) == waiting


async def test_the_same_queues_in_another_order_are_the_same_line(polling: PollingNode) -> None:
    await polling.idle(queues=["b", "a"])
    claims = polling.store.claims
    await polling.idle(queues=["a", "b", "a"])
    assert (len(polling.long_polls._wait_queues), polling.store.claims) == (1, claims)


async def test_a_look_during_a_claim_does_not_forget_the_line(polling: PollingNode) -> None:
    """Those for whom a claim is under way wait in the line again when it has found nothing for them."""
    polling.store.hold_back()
    poll = polling.poll()
    await polling.store.taken.wait()
    await polling.long_polls.run_once()
    polling.store.may_answer.set()
    await polling.settle()
    assert not poll.done()
    ids = await polling.submit()
    assert await ids_of(poll) == ids


async def test_what_was_claimed_can_be_completed(polling: PollingNode) -> None:
    """The fence of a long poll is as good as any."""
    poll = await polling.idle()
    ids = await polling.submit()
    (task,) = await response(poll)
    assert task.lease_until > await polling.store.clock()
    (found,) = await polling.store.task_find(DEFAULT_TENANT, ids)
    assert (found.state, found.worker, found.fence) == (TaskState.RUNNING, "worker", task.fence)
