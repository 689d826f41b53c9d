"""Concurrent submits that go together: few requests, and each caller hears only what concerns its own task."""

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
    """Keeps tasks by key; refuses batches with a task of type `bad`, and everything while it is `away`."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.made: dict[str, UUID] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_away = False

    async def __call__(self, tasks: Sequence[TaskInput]) -> list[UUID]:
        self.requests.append([task.type for task in tasks])
        await self.gate.wait()
        if self.is_away:
            raise NotReachable("http://x", "away")
        if any(task.type == "bad" for task in tasks):
            raise ServerProblem(422, {"detail": "bad"})
        return [self.made.setdefault(task.idempotency_key or "", uuid4()) for task in tasks]


def task(type_: str = "a") -> TaskInput:
    return TaskInput(type=type_)


async def test_one_alone_is_sent_at_once() -> None:
    sender = Sender()
    assert await Coalescer(sender).submit(task()) in sender.made.values()
    assert sender.requests == [["a"]]


async def test_many_at_once_go_together_and_each_gets_its_own_id() -> None:
    sender = Sender()
    coalescer = Coalescer(sender)
    ids = await asyncio.gather(*(coalescer.submit(task()) for _ in range(500)))
    assert len(sender.requests) == 1
    assert len(set(ids)) == 500


async def test_what_comes_while_others_are_under_way_waits_for_the_next() -> None:
    sender = Sender()
    sender.gate.clear()
    coalescer = Coalescer(sender)
    callers = []
    for _ in range(100):
        callers.append(asyncio.create_task(coalescer.submit(task())))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(sender.requests) == 4
    sender.gate.set()
    await asyncio.gather(*callers)
    assert sum(len(request) for request in sender.requests) == 100
    assert len(sender.requests) <= 8


async def test_a_bad_one_spoils_nothing_for_the_others() -> None:
    sender = Sender()
    coalescer = Coalescer(sender)
    outcomes = await asyncio.gather(*(coalescer.submit(task(type_)) for type_ in ("a", "bad", "b")), return_exceptions=True)
    assert isinstance(outcomes[1], ServerProblem)
    assert [outcomes[0], outcomes[2]] == list(sender.made.values())


async def test_an_unreachable_server_is_told_to_all_without_trying_each() -> None:
    sender = Sender()
    sender.is_away = True
    coalescer = Coalescer(sender)
    outcomes = await asyncio.gather(*(coalescer.submit(task()) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [NotReachable] * 3
    assert len(sender.requests) == 1


async def test_callers_that_went_away_before_want_nothing_sent() -> None:
    sender = Sender()
    coalescer = Coalescer(sender)
    caller = asyncio.create_task(coalescer.submit(task("gone")))
    caller.add_done_callback(lambda _: None)
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    assert await coalescer.submit(task("here")) in sender.made.values()
    assert [type_ for request in sender.requests for type_ in request] == ["here"]


async def test_closing_tells_those_who_wait() -> None:
    sender = Sender()
    sender.gate.clear()
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
    assert len(server.seen) < 10
