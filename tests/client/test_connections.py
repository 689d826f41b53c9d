"""The thread and event loop on which a call runs: over HTTP, on a node in this process, and on a node in the background."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from everbeat import Everbeat
from everbeat.client.connections import BoundTransport, HttpConnection, NodeConnection
from everbeat.client.errors import BlockingCall, ConflictProblem, NotFoundProblem, ServerProblem
from everbeat.client.inprocess import InProcessTransport
from everbeat.client.operations import Call, Operation, Submit
from everbeat.core.errors import Conflict, InvalidInput, NotFound, StoreUnavailable
from everbeat.core.protocol import TaskInput, raw_json
from tests.client.fakes import FakeNode
from tests.client.scripted import ScriptedServer


def submit_tasks() -> Operation[list[Any]]:
    ids: list[Any] = yield Submit([TaskInput(type="a")])
    return ids


def get_cluster() -> Operation[Any]:
    return (yield Call("GET", "/v1/cluster", {"limit": 3})).body


@contextlib.contextmanager
def connected(node: FakeNode) -> Iterator[NodeConnection]:
    connection = NodeConnection(node.start)
    try:
        yield connection
    finally:
        connection.close()


# A node in the background


def test_sync_code_submits_to_a_node_in_the_background() -> None:
    node = FakeNode()
    with connected(node) as connection:
        assert len(connection.run_blocking(submit_tasks())) == 1
        assert connection.run_blocking(get_cluster())["path"] == "/v1/cluster?limit=3"
        assert node.hosts == ["localhost"]
    assert node.is_stopped
    assert "everbeat-submit" not in {thread.name for thread in threading.enumerate()}


async def test_async_code_can_submit_to_it_and_may_block() -> None:
    node = FakeNode()
    with connected(node) as connection:
        assert len(await connection.run_async(submit_tasks())) == 1
        assert len(connection.run_blocking(submit_tasks())) == 1
        assert node.loop is not asyncio.get_running_loop()


def test_threads_share_one_node_in_the_background() -> None:
    started: list[FakeNode] = []

    async def start() -> FakeNode:
        started.append(FakeNode())
        return await started[-1].start()

    connection = NodeConnection(start)
    threads = [threading.Thread(target=lambda: connection.run_blocking(submit_tasks())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection.close()
    assert len(started) == 1
    assert len(started[0].submitted) == 8


def test_a_failed_start_of_the_node_is_raised_and_retried() -> None:
    starts = 0

    async def start() -> FakeNode:
        nonlocal starts
        starts += 1
        if starts == 1:
            raise StoreUnavailable("the database is unavailable")
        return await FakeNode().start()

    connection = NodeConnection(start)
    with pytest.raises(StoreUnavailable):
        connection.run_blocking(submit_tasks())
    assert len(connection.run_blocking(submit_tasks())) == 1
    connection.close()


def test_it_opens_again_after_being_closed() -> None:
    node = FakeNode()
    with connected(node) as connection:
        connection.run_blocking(submit_tasks())
        connection.close()
        connection.run_blocking(submit_tasks())
    assert len(node.submitted) == 2


# A node that runs in this loop


async def test_while_attached_calls_go_to_the_running_node() -> None:
    node = await FakeNode().start()
    with connected(FakeNode()) as connection:
        connection.attach(BoundTransport(asyncio.get_running_loop(), InProcessTransport(node), is_local=True))
        await connection.run_async(submit_tasks())
        await asyncio.to_thread(connection.run_blocking, submit_tasks())
        await asyncio.to_thread(lambda: asyncio.run(connection.run_async(submit_tasks())))
        assert len(node.submitted) == 3


async def test_a_blocking_call_on_the_loop_of_the_node_is_refused() -> None:
    node = await FakeNode().start()
    with connected(FakeNode()) as connection:
        connection.attach(BoundTransport(asyncio.get_running_loop(), InProcessTransport(node), is_local=True))
        with pytest.raises(BlockingCall, match="submit_async"):
            connection.run_blocking(submit_tasks())


async def test_an_app_of_a_server_in_this_process_does_not_go_over_http() -> None:
    node = await FakeNode().start()
    eb = Everbeat("http://127.0.0.1:1", name="x")
    with eb.attached(InProcessTransport(node)):
        await eb.submit_async("report", {"account": 7})
        await asyncio.to_thread(eb.submit, "report", {"account": 7})
        with pytest.raises(BlockingCall):
            eb.submit("report")
    assert [task.payload for task in node.submitted] == [raw_json({"account": 7})] * 2


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (InvalidInput.of("tasks[0].type", "is invalid"), ServerProblem, 422),
        (NotFound("missing"), NotFoundProblem, 404),
        (Conflict("taken"), ConflictProblem, 409),
        (StoreUnavailable("unavailable"), ServerProblem, 503),
    ],
)
async def test_errors_in_process_are_those_of_http(error: Any, kind: type[ServerProblem], status: int) -> None:
    node = await FakeNode().start()
    node.error = error
    with pytest.raises(kind) as raised:
        await InProcessTransport(node).submit([TaskInput(type="a")])
    assert raised.value.status == status
    assert str(error) in str(raised.value)


# HTTP


def test_event_loops_may_be_created_and_closed(server: ScriptedServer) -> None:
    connection = HttpConnection(server.url, None)

    async def several() -> None:
        for _ in range(3):
            await connection.run_async(submit_tasks())

    asyncio.run(several())
    asyncio.run(several())
    assert len(server.tasks) == 6
    assert len(server.connections) == 2
    connection.close()


async def test_http_calls_may_block_any_loop(server: ScriptedServer) -> None:
    connection = HttpConnection(server.url, None)
    assert len(connection.run_blocking(submit_tasks())) == 1
    connection.close()
