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
from tests.services.polling import Room, ids_of, response


@pytest.fixture
async def room(store: Store) -> AsyncIterator[Room]:
    room = Room(store)
    yield room
    await room.close()


async def test_a_task_goes_to_the_worker_that_waits_without_a_claim(room: Room) -> None:
    poll = await room.idle("waiting", lease_seconds=60)
    claims = room.store.claims
    ids = await room.hand(payload={"a": 1})
    (task,) = await response(poll)
    assert (task.id, task.attempt, task.fence, bytes(task.payload)) == (ids[0], 1, 1, b'{"a":1}')
    assert room.store.claims == claims
    (kept,) = await room.store.task_find(DEFAULT_TENANT, ids)
    assert (kept.state, kept.worker, kept.attempt, kept.fence) == (TaskState.RUNNING, "waiting", 1, 1)
    assert kept.lease_until == task.lease_until
    completion = LeaseCompleteRequest(worker="waiting", results=[LeaseCompletion(id=task.id, fence=task.fence)])
    assert [one.status for one in await room.node.leases.complete(DEFAULT_TENANT, completion)] == ["ok"]


async def test_a_lease_ends_with_the_time_of_the_attempt(room: Room) -> None:
    poll = await room.idle(lease_seconds=60)
    ids = await room.hand(timeout_seconds=7)
    (task,) = await response(poll)
    (kept,) = await room.store.task_find(DEFAULT_TENANT, ids)
    assert kept.started_at is not None
    assert (task.lease_until - kept.started_at).total_seconds() == 7
    assert kept.lease_until == task.lease_until


async def test_workers_get_as_many_as_they_asked_for_and_the_rest_is_ready(room: Room) -> None:
    long_polls = [await room.idle(f"worker-{number}", most=2) for number in range(2)]
    ids = await room.hand(5)
    assert [[task.id for task in await response(poll)] for poll in long_polls] == [ids[0:2], ids[2:4]]
    assert await room.states(ids) == [("running", 1)] * 4 + [("ready", 0)]
    assert await ids_of(room.poll("next")) == ids[4:]


@pytest.mark.parametrize("more", [{"queue": "other"}, {"type": "other"}, {"tenant": OTHER_TENANT}, {"delay_seconds": 60}])
async def test_a_task_that_is_not_for_the_worker_is_not_given_to_it(room: Room, more: dict[str, Any]) -> None:
    poll = await room.idle(types=["work"])
    await room.hand(**more)
    await room.settle()
    assert not poll.done()
    ids = await room.hand()
    assert await ids_of(poll) == ids


async def test_work_that_may_be_more_urgent_goes_first(room: Room) -> None:
    """While a line may have work that it has not seen, nothing is handed past it."""
    poll = await room.idle()
    room.store.hold_back()
    (line,) = room.long_polls._wait_queues.values()
    line.wake()
    await room.store.taken.wait()
    (urgent,) = await room.submit(priority=1)
    (other,) = await room.hand()
    assert await room.states([urgent, other]) == [("ready", 0)] * 2
    room.store.may_answer.set()
    assert await ids_of(poll) == [urgent]


async def test_a_worker_that_goes_away_during_the_write_loses_nothing(room: Room) -> None:
    gone, next_one = await room.idle("gone"), await room.idle("next")
    room.store.hold_writes()
    submitting = asyncio.create_task(room.hand())
    await room.store.written.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    room.store.may_commit.set()
    ids = await submitting
    assert await ids_of(next_one) == ids
    assert await room.states(ids) == [("running", 1)], "given back, and claimed by the next"


async def test_a_poll_that_times_out_during_the_write_loses_nothing(room: Room) -> None:
    poll = await room.idle(wait=0.2)
    room.store.hold_writes()
    submitting = asyncio.create_task(room.hand())
    await room.store.written.wait()
    assert await response(poll) == []
    room.store.may_commit.set()
    ids = await submitting
    assert await room.states(ids) == [("ready", 0)]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreRefused("bad")])
async def test_when_the_write_fails_those_who_waited_wait_on_in_their_order(room: Room, error: Exception) -> None:
    long_polls = [await room.idle(f"worker-{number}") for number in range(3)]
    room.store.write_error = error
    with pytest.raises(type(error)):
        await room.hand(2)
    room.store.write_error = None
    await room.settle()
    assert not any(poll.done() for poll in long_polls)
    for poll in long_polls:
        ids = await room.hand()
        assert await ids_of(poll) == ids


async def test_a_repeated_key_wakes_nobody_and_costs_nobody_the_place(room: Room) -> None:
    given = TaskInput(type="work")
    first, _ = await room.node.tasks.submit(DEFAULT_TENANT, given, key="once")
    assert await ids_of(room.poll()) == [first.id]
    long_polls = [await room.idle("one"), await room.idle("two")]
    again, is_new = await room.node.tasks.submit(DEFAULT_TENANT, given, key="once")
    assert (again.id, is_new) == (first.id, False)
    with pytest.raises(InvalidInput):
        await room.node.tasks.submit(DEFAULT_TENANT, TaskInput(type="other"), key="once")
    await room.settle()
    assert not any(poll.done() for poll in long_polls)
    for poll in long_polls:
        ids = await room.hand()
        assert await ids_of(poll) == ids


async def test_a_look_during_the_write_does_not_forget_the_line(room: Room) -> None:
    poll = await room.idle()
    room.store.hold_writes()
    room.store.write_error = StoreUnavailable("away")
    submitting = asyncio.create_task(room.hand())
    await room.store.written.wait()
    await room.long_polls.run_once()
    room.store.may_commit.set()
    with pytest.raises(StoreUnavailable):
        await submitting
    room.store.write_error = None
    await room.settle()
    ids = await room.submit()
    assert await ids_of(poll) == ids


async def test_giving_back_that_fails_does_not_fail_the_submit_nor_the_others(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("away")

    gone, next_one = await room.idle("gone"), await room.idle("next")
    room.store.hold_writes()
    submitting = asyncio.create_task(room.hand(2))
    await room.store.written.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    monkeypatch.setattr(room.long_polls, "give_back", fail)
    room.store.may_commit.set()
    ids = await submitting
    assert await ids_of(next_one) == ids[1:]


async def test_two_submits_at_once_share_the_workers(room: Room) -> None:
    long_polls = [await room.idle(f"worker-{number}") for number in range(4)]
    batches = await asyncio.gather(*(room.hand() for _ in range(6)))
    ids = {id_ for batch in batches for id_ in batch}
    served = set(await ids_of(*long_polls))
    assert len(served) == 4
    assert set(await ids_of(room.poll(most=6))) == ids - served
