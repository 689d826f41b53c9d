"""A task submitted beside a worker that waits is written as that worker's own: one commit, no claim, nothing lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from everbeat.core.errors import InvalidInput, StoreRefused, StoreUnavailable
from everbeat.core.protocol import LeaseCompleteRequest, LeaseCompletion, TaskInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import TaskState
from everbeat.store.base import Store
from tests.factories import OTHER_TENANT
from tests.services.polling import PollingNode, ids_of, response


@pytest.fixture(name="polling")
async def polling_node(store: Store) -> AsyncIterator[PollingNode]:
    polling = PollingNode(store)
    yield polling
    await polling.close()


async def test_a_task_goes_to_the_worker_that_waits_without_a_claim(polling: PollingNode) -> None:
    poll = await polling.idle("waiting", lease_seconds=60)
    claims = polling.store.claims
    ids = await polling.hand(payload={"a": 1})
    (task,) = await response(poll)
    assert (task.id, task.attempt, task.fence, bytes(task.payload)) == (ids[0], 1, 1, b'{"a":1}')
    assert polling.store.claims == claims
    (kept,) = await polling.store.task_find(DEFAULT_TENANT, ids)
    assert (kept.state, kept.worker, kept.attempt, kept.fence) == (TaskState.RUNNING, "waiting", 1, 1)
    assert kept.lease_until == task.lease_until
    completion = LeaseCompleteRequest(worker="waiting", results=[LeaseCompletion(id=task.id, fence=task.fence)])
    assert [one.status for one in await polling.node.leases.complete(DEFAULT_TENANT, completion)] == ["ok"]


async def test_a_lease_ends_with_the_time_of_the_attempt(polling: PollingNode) -> None:
    poll = await polling.idle(lease_seconds=60)
    ids = await polling.hand(timeout_seconds=7)
    (task,) = await response(poll)
    (kept,) = await polling.store.task_find(DEFAULT_TENANT, ids)
    assert kept.started_at is not None
    assert (task.lease_until - kept.started_at).total_seconds() == 7
    assert kept.lease_until == task.lease_until


async def test_workers_get_as_many_as_they_asked_for_and_the_rest_is_ready(polling: PollingNode) -> None:
    long_polls = [await polling.idle(f"worker-{number}", most=2) for number in range(2)]
    ids = await polling.hand(5)
    assert [[task.id for task in await response(poll)] for poll in long_polls] == [ids[0:2], ids[2:4]]
    assert await polling.states(ids) == [("running", 1)] * 4 + [("ready", 0)]
    assert await ids_of(polling.poll("next")) == ids[4:]


@pytest.mark.parametrize("more", [{"queue": "other"}, {"type": "other"}, {"tenant": OTHER_TENANT}, {"delay_seconds": 60}])
async def test_a_task_that_is_not_for_the_worker_is_not_given_to_it(polling: PollingNode, more: dict[str, Any]) -> None:
    poll = await polling.idle(types=["work"])
    await polling.hand(**more)
    await polling.settle()
    assert not poll.done()
    ids = await polling.hand()
    assert await ids_of(poll) == ids


async def test_work_that_may_be_more_urgent_goes_first(polling: PollingNode) -> None:
    """While a line may have work that it has not seen, nothing is handed past it."""
    poll = await polling.idle()
    polling.store.hold_back()
    (line,) = polling.long_polls._wait_queues.values()
    line.wake()
    await polling.store.taken.wait()
    (urgent,) = await polling.submit(priority=1)
    (other,) = await polling.hand()
    assert await polling.states([urgent, other]) == [("ready", 0)] * 2
    polling.store.may_answer.set()
    assert await ids_of(poll) == [urgent]


async def test_a_worker_that_goes_away_during_the_write_loses_nothing(polling: PollingNode) -> None:
    gone, next_one = await polling.idle("gone"), await polling.idle("next")
    polling.store.hold_writes()
    submitting = asyncio.create_task(polling.hand())
    await polling.store.written.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    polling.store.may_commit.set()
    ids = await submitting
    assert await ids_of(next_one) == ids
    assert await polling.states(ids) == [("running", 1)], "given back, and claimed by the next"


async def test_a_poll_that_times_out_during_the_write_loses_nothing(polling: PollingNode) -> None:
    poll = await polling.idle(wait=0.2)
    polling.store.hold_writes()
    submitting = asyncio.create_task(polling.hand())
    await polling.store.written.wait()
    assert await response(poll) == []
    polling.store.may_commit.set()
    ids = await submitting
    assert await polling.states(ids) == [("ready", 0)]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreRefused("bad")])
async def test_when_the_write_fails_those_who_waited_wait_on_in_their_order(polling: PollingNode, error: Exception) -> None:
    long_polls = [await polling.idle(f"worker-{number}") for number in range(3)]
    polling.store.write_error = error
    with pytest.raises(type(error)):
        await polling.hand(2)
    polling.store.write_error = None
    await polling.settle()
    assert not any(poll.done() for poll in long_polls)
    for poll in long_polls:
        ids = await polling.hand()
        assert await ids_of(poll) == ids


async def test_a_repeated_key_wakes_nobody_and_costs_nobody_the_place(polling: PollingNode) -> None:
    given = TaskInput(type="work")
    first, _ = await polling.node.tasks.submit(DEFAULT_TENANT, given, key="once")
    assert await ids_of(polling.poll()) == [first.id]
    long_polls = [await polling.idle("one"), await polling.idle("two")]
    again, is_new = await polling.node.tasks.submit(DEFAULT_TENANT, given, key="once")
    assert (again.id, is_new) == (first.id, False)
    with pytest.raises(InvalidInput):
        await polling.node.tasks.submit(DEFAULT_TENANT, TaskInput(type="other"), key="once")
    await polling.settle()
    assert not any(poll.done() for poll in long_polls)
    for poll in long_polls:
        ids = await polling.hand()
        assert await ids_of(poll) == ids


async def test_a_look_during_the_write_does_not_forget_the_line(polling: PollingNode) -> None:
    poll = await polling.idle()
    polling.store.hold_writes()
    polling.store.write_error = StoreUnavailable("away")
    submitting = asyncio.create_task(polling.hand())
    await polling.store.written.wait()
    await polling.long_polls.run_once()
    polling.store.may_commit.set()
    with pytest.raises(StoreUnavailable):
        await submitting
    polling.store.write_error = None
    await polling.settle()
    ids = await polling.submit()
    assert await ids_of(poll) == ids


async def test_giving_back_that_fails_does_not_fail_the_submit_nor_the_others(
    polling: PollingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("away")

    gone, next_one = await polling.idle("gone"), await polling.idle("next")
    polling.store.hold_writes()
    submitting = asyncio.create_task(polling.hand(2))
    await polling.store.written.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    monkeypatch.setattr(polling.long_polls, "_release_tasks", fail)
    polling.store.may_commit.set()
    ids = await submitting
    assert await ids_of(next_one) == ids[1:]


async def test_two_submits_at_once_share_the_workers(polling: PollingNode) -> None:
    long_polls = [await polling.idle(f"worker-{number}") for number in range(4)]
    batches = await asyncio.gather(*(polling.hand() for _ in range(6)))
    ids = {id_ for batch in batches for id_ in batch}
    served = set(await ids_of(*long_polls))
    assert len(served) == 4
    assert set(await ids_of(polling.poll(most=6))) == ids - served
