"""A task submitted while a worker waits is written under that worker's lease: one commit, no claim, no task lost."""

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


async def test_a_task_is_handed_to_a_waiting_worker_without_a_claim(polling: PollingNode) -> None:
    poll = await polling.waiting_poll("waiting", lease_seconds=60)
    claims = polling.store.claims
    ids = await polling.submit_for_handoff(payload={"a": 1})
    (task,) = await response(poll)
    assert (task.id, task.attempt, task.fence, bytes(task.payload)) == (ids[0], 1, 1, b'{"a":1}')
    assert polling.store.claims == claims
    (kept,) = await polling.store.task_find(DEFAULT_TENANT, ids)
    assert (kept.state, kept.worker, kept.attempt, kept.fence) == (TaskState.RUNNING, "waiting", 1, 1)
    assert kept.lease_until == task.lease_until
    completion = LeaseCompleteRequest(worker="waiting", results=[LeaseCompletion(id=task.id, fence=task.fence)])
    assert [one.status for one in await polling.node.leases.complete(DEFAULT_TENANT, completion)] == ["ok"]


async def test_a_lease_ends_at_the_deadline_of_the_attempt(polling: PollingNode) -> None:
    poll = await polling.waiting_poll(lease_seconds=60)
    ids = await polling.submit_for_handoff(timeout_seconds=7)
    (task,) = await response(poll)
    (kept,) = await polling.store.task_find(DEFAULT_TENANT, ids)
    assert kept.started_at is not None
    assert (task.lease_until - kept.started_at).total_seconds() == 7
    assert kept.lease_until == task.lease_until


async def test_workers_get_as_many_tasks_as_requested_and_the_rest_is_ready(polling: PollingNode) -> None:
    long_polls = [await polling.waiting_poll(f"worker-{number}", max_tasks=2) for number in range(2)]
    ids = await polling.submit_for_handoff(5)
    assert [[task.id for task in await response(poll)] for poll in long_polls] == [ids[0:2], ids[2:4]]
    assert await polling.states(ids) == [("running", 1)] * 4 + [("ready", 0)]
    assert await ids_of(polling.poll("next")) == ids[4:]


@pytest.mark.parametrize("more", [{"queue": "other"}, {"type": "other"}, {"tenant": OTHER_TENANT}, {"delay_seconds": 60}])
async def test_a_task_that_does_not_match_the_poll_is_not_handed_over(polling: PollingNode, more: dict[str, Any]) -> None:
    poll = await polling.waiting_poll(types=["work"])
    await polling.submit_for_handoff(**more)
    await polling.wait_for_claims()
    assert not poll.done()
    ids = await polling.submit_for_handoff()
    assert await ids_of(poll) == ids


async def test_nothing_is_handed_over_while_more_urgent_tasks_may_be_ready(polling: PollingNode) -> None:
    """While a wait queue may have ready tasks that it has not seen, no task is handed over."""
    poll = await polling.waiting_poll()
    polling.store.delay_claim_results()
    (wait_queue,) = polling.long_polls._wait_queues.values()
    wait_queue.wake()
    await polling.store.claim_done.wait()
    (urgent,) = await polling.submit(priority=1)
    (other,) = await polling.submit_for_handoff()
    assert await polling.states([urgent, other]) == [("ready", 0)] * 2
    polling.store.may_respond.set()
    assert await ids_of(poll) == [urgent]


async def test_a_poll_cancelled_during_the_write_loses_no_task(polling: PollingNode) -> None:
    gone, next_one = await polling.waiting_poll("gone"), await polling.waiting_poll("next")
    polling.store.delay_writes()
    submitting = asyncio.create_task(polling.submit_for_handoff())
    await polling.store.write_started.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    polling.store.may_commit.set()
    ids = await submitting
    assert await ids_of(next_one) == ids
    assert await polling.states(ids) == [("running", 1)], "released, and claimed by the next worker"


async def test_a_poll_that_times_out_during_the_write_loses_no_task(polling: PollingNode) -> None:
    poll = await polling.waiting_poll(wait=0.2)
    polling.store.delay_writes()
    submitting = asyncio.create_task(polling.submit_for_handoff())
    await polling.store.write_started.wait()
    assert await response(poll) == []
    polling.store.may_commit.set()
    ids = await submitting
    assert await polling.states(ids) == [("ready", 0)]


@pytest.mark.parametrize("error", [StoreUnavailable("unavailable"), StoreRefused("bad")])
async def test_when_the_write_fails_polls_continue_to_wait_in_order(polling: PollingNode, error: Exception) -> None:
    long_polls = [await polling.waiting_poll(f"worker-{number}") for number in range(3)]
    polling.store.write_error = error
    with pytest.raises(type(error)):
        await polling.submit_for_handoff(2)
    polling.store.write_error = None
    await polling.wait_for_claims()
    assert not any(poll.done() for poll in long_polls)
    for poll in long_polls:
        ids = await polling.submit_for_handoff()
        assert await ids_of(poll) == ids


async def test_a_repeated_key_wakes_no_poll_and_keeps_the_order_of_polls(polling: PollingNode) -> None:
    given = TaskInput(type="work")
    first, _ = await polling.node.tasks.submit(DEFAULT_TENANT, given, key="once")
    assert await ids_of(polling.poll()) == [first.id]
    long_polls = [await polling.waiting_poll("one"), await polling.waiting_poll("two")]
    again, is_new = await polling.node.tasks.submit(DEFAULT_TENANT, given, key="once")
    assert (again.id, is_new) == (first.id, False)
    with pytest.raises(InvalidInput):
        await polling.node.tasks.submit(DEFAULT_TENANT, TaskInput(type="other"), key="once")
    await polling.wait_for_claims()
    assert not any(poll.done() for poll in long_polls)
    for poll in long_polls:
        ids = await polling.submit_for_handoff()
        assert await ids_of(poll) == ids


async def test_a_periodic_query_during_the_write_keeps_the_wait_queue(polling: PollingNode) -> None:
    poll = await polling.waiting_poll()
    polling.store.delay_writes()
    polling.store.write_error = StoreUnavailable("unavailable")
    submitting = asyncio.create_task(polling.submit_for_handoff())
    await polling.store.write_started.wait()
    await polling.long_polls.run_once()
    polling.store.may_commit.set()
    with pytest.raises(StoreUnavailable):
        await submitting
    polling.store.write_error = None
    await polling.wait_for_claims()
    ids = await polling.submit()
    assert await ids_of(poll) == ids


async def test_a_failed_release_does_not_fail_the_submit_or_other_polls(
    polling: PollingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("unavailable")

    gone, next_one = await polling.waiting_poll("gone"), await polling.waiting_poll("next")
    polling.store.delay_writes()
    submitting = asyncio.create_task(polling.submit_for_handoff(2))
    await polling.store.write_started.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    monkeypatch.setattr(polling.long_polls, "_release_tasks", fail)
    polling.store.may_commit.set()
    ids = await submitting
    assert await ids_of(next_one) == ids[1:]


async def test_concurrent_submits_share_the_waiting_workers(polling: PollingNode) -> None:
    long_polls = [await polling.waiting_poll(f"worker-{number}") for number in range(4)]
    batches = await asyncio.gather(*(polling.submit_for_handoff() for _ in range(6)))
    ids = {id_ for batch in batches for id_ in batch}
    served = set(await ids_of(*long_polls))
    assert len(served) == 4
    assert set(await ids_of(polling.poll(max_tasks=6))) == ids - served
