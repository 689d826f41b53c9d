"""Concurrent submits are combined: few requests, and each caller gets the result of its own task."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest

from everbeat.client.coalescing import Coalescer
from everbeat.client.errors import NotReachable, ServerProblem
from everbeat.client.http import HttpTransport
from everbeat.core.protocol import TaskInput
from tests.client.scripted import ScriptedServer


class Sender:
    """Stores tasks by key. Rejects batches with a task of type `bad`, and all requests while `is_unavailable`.

    `is_certain`: whether a rejection is certain, as without an earlier try whose response was lost.
    """

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.made: dict[str, UUID] = {}
        self.may_respond = asyncio.Event()
        self.may_respond.set()
        self.is_unavailable = False
        self.is_certain = True

    async def __call__(self, tasks: Sequence[TaskInput]) -> list[UUID]:
        self.requests.append([task.type for task in tasks])
        await self.may_respond.wait()
        if self.is_unavailable:
            raise NotReachable("http://x", "unavailable")
        if any(task.type == "bad" for task in tasks):
            problem = ServerProblem(422, {"detail": "bad"})
            problem.is_certain = self.is_certain
            raise problem
        return [self.made.setdefault(task.idempotency_key or f"{len(self.made)}", uuid4()) for task in tasks]


def task(type_: str = "a", key: str | None = None) -> TaskInput:
    return TaskInput(type=type_, idempotency_key=key)


async def test_a_single_submit_is_sent_immediately() -> None:
    sender = Sender()
    assert await Coalescer(sender).submit(task()) in sender.made.values()
    assert sender.requests == [["a"]]


async def test_concurrent_submits_are_one_request_and_each_gets_its_own_id() -> None:
    sender = Sender()
    coalescer = Coalescer(sender)
    ids = await asyncio.gather(*(coalescer.submit(task()) for _ in range(500)))
    assert len(sender.requests) == 1
    assert len(set(ids)) == 500


async def test_a_submit_during_requests_in_flight_goes_with_the_next_one() -> None:
    sender = Sender()
    sender.may_respond.clear()
    coalescer = Coalescer(sender)
    callers = []
    for _ in range(100):
        callers.append(asyncio.create_task(coalescer.submit(task())))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(sender.requests) == 4
    sender.may_respond.set()
    await asyncio.gather(*callers)
    assert sum(len(request) for request in sender.requests) == 100
    assert len(sender.requests) <= 8


async def test_a_submit_immediately_after_a_response_is_sent() -> None:
    """All requests in flight end in the same step of the event loop, and only the first caller submits again."""
    sender = Sender()
    sender.may_respond.clear()
    coalescer = Coalescer(sender)

    async def submit(count: int) -> None:
        for _ in range(count):
            await coalescer.submit(task())

    callers = []
    for number in range(4):
        callers.append(asyncio.create_task(submit(2 if number == 0 else 1)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(sender.requests) == 4
    sender.may_respond.set()
    async with asyncio.timeout(5):
        await asyncio.gather(*callers)
    assert len(sender.made) == 5


async def test_a_rejected_task_does_not_fail_the_others_of_its_batch() -> None:
    sender = Sender()
    coalescer = Coalescer(sender)
    outcomes = await asyncio.gather(*(coalescer.submit(task(type_)) for type_ in ("a", "bad", "b")), return_exceptions=True)
    assert isinstance(outcomes[1], ServerProblem)
    assert [outcomes[0], outcomes[2]] == list(sender.made.values())


async def test_tasks_are_not_sent_again_if_an_earlier_try_may_have_created_them() -> None:
    """They share the key of their request. Sent separately, each would get a new key, and might be created twice."""
    sender = Sender()
    sender.is_certain = False
    coalescer = Coalescer(sender)
    outcomes = await asyncio.gather(*(coalescer.submit(task(type_)) for type_ in ("a", "bad", "b")), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ServerProblem] * 3
    assert sender.requests == [["a", "bad", "b"]]


async def test_tasks_with_keys_of_their_own_are_sent_again_in_any_case() -> None:
    sender = Sender()
    sender.is_certain = False
    coalescer = Coalescer(sender)
    given = [task("a", "one"), task("bad", "two"), task("b", "three")]
    outcomes = await asyncio.gather(*map(coalescer.submit, given), return_exceptions=True)
    assert isinstance(outcomes[1], ServerProblem)
    assert (outcomes[0], outcomes[2]) == (sender.made["one"], sender.made["three"])


async def test_tasks_with_and_without_keys_of_their_own_are_separate_requests() -> None:
    sender = Sender()
    coalescer = Coalescer(sender)
    given = [task("a"), task("b"), task("c", "one"), task("d", "two"), task("e")]
    await asyncio.gather(*map(coalescer.submit, given))
    assert sender.requests == [["a", "b"], ["c", "d"], ["e"]]


async def test_all_callers_get_the_error_if_the_server_is_unreachable() -> None:
    sender = Sender()
    sender.is_unavailable = True
    coalescer = Coalescer(sender)
    outcomes = await asyncio.gather(*(coalescer.submit(task()) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [NotReachable] * 3
    assert len(sender.requests) == 1


async def test_the_task_of_a_cancelled_caller_is_not_sent() -> None:
    sender = Sender()
    coalescer = Coalescer(sender)
    caller = asyncio.create_task(coalescer.submit(task("cancelled")))
    caller.add_done_callback(lambda _: None)
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    assert await coalescer.submit(task("sent")) in sender.made.values()
    assert [type_ for request in sender.requests for type_ in request] == ["sent"]


async def test_closing_cancels_the_waiting_submits() -> None:
    sender = Sender()
    sender.may_respond.clear()
    coalescer = Coalescer(sender)
    caller = asyncio.create_task(coalescer.submit(task()))
    await asyncio.sleep(0.01)
    await coalescer.close()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_over_http_concurrent_submits_are_few_requests(server: ScriptedServer) -> None:
    transport = HttpTransport(server.url)
    made = await asyncio.gather(*(transport.submit([task()]) for _ in range(200)))
    await transport.close()
    assert {id_ for ids in made for id_ in ids} == set(server.tasks)
    assert len(server.tasks) == 200
    assert len(server.received) < 10
