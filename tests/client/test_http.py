"""Both shells over a real socket: what they send, what they repeat, and that a repeated submit never makes two tasks."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from everbeat.client.errors import NotReachable, ServerProblem
from everbeat.client.exchange import RetryBudget
from everbeat.client.http import HttpTransport, SyncHttpTransport
from everbeat.core.protocol import LeaseClaimRequest, TaskInput
from tests.client.scripted import Fault, ScriptedServer

QUICK = RetryBudget(deadline_seconds=5, random_fraction=lambda: 0.05)
TASK = TaskInput(type="report", payload={"account": 7})


@pytest.fixture
async def transport(server: ScriptedServer) -> AsyncIterator[HttpTransport]:
    made = HttpTransport(server.url, "eb_secret", retry_budget=QUICK)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def shell(server: ScriptedServer) -> Iterator[SyncHttpTransport]:
    made = SyncHttpTransport(server.url, "eb_secret", retry_budget=QUICK)
    yield made
    made.close()


TROUBLE: list[list[Fault]] = [
    ["cut after"],
    ["cut before"],
    ["away"],
    ["busy"],
    ["cut after", "cut after", "away", "cut before", "busy"],
]


@pytest.mark.parametrize("faults", TROUBLE)
async def test_a_submit_that_is_repeated_makes_one_task(
    server: ScriptedServer, transport: HttpTransport, faults: list[Fault]
) -> None:
    server.faults = list(faults)
    (id_,) = await transport.submit([TASK])
    assert list(server.tasks) == [id_]
    assert len(server.seen) == len(faults) + 1


@pytest.mark.parametrize("faults", TROUBLE)
def test_so_does_one_of_sync_code(server: ScriptedServer, shell: SyncHttpTransport, faults: list[Fault]) -> None:
    server.faults = list(faults)
    (id_,) = shell.submit([TASK])
    assert list(server.tasks) == [id_]


@pytest.mark.parametrize("faults", TROUBLE)
async def test_a_batch_that_is_repeated_makes_each_task_once(
    server: ScriptedServer, transport: HttpTransport, shell: SyncHttpTransport, faults: list[Fault]
) -> None:
    server.faults = list(faults)
    ids = await transport.submit([TASK] * 5)
    assert list(server.tasks) == ids
    server.faults = list(faults)
    more = shell.submit([TASK] * 5)
    assert list(server.tasks) == ids + more


async def test_nothing_is_sent_for_no_tasks(server: ScriptedServer, transport: HttpTransport, shell: SyncHttpTransport) -> None:
    assert await transport.submit([]) == []
    assert shell.submit([]) == []
    assert server.seen == []


async def test_it_shows_its_key_and_says_what_it_is(
    server: ScriptedServer, transport: HttpTransport, shell: SyncHttpTransport
) -> None:
    await transport.request("GET", "/v1/cluster")
    shell.request("GET", "/v1/cluster")
    for seen in server.seen:
        assert seen.headers["authorization"] == "Bearer eb_secret"
        assert seen.headers["user-agent"].startswith("everbeat-python/")


async def test_connections_are_kept(server: ScriptedServer, transport: HttpTransport, shell: SyncHttpTransport) -> None:
    for _ in range(5):
        await transport.request("GET", "/v1/cluster")
        shell.request("GET", "/v1/cluster")
    assert len(server.connections) == 2


async def test_a_claim_that_was_cut_is_told_at_once(server: ScriptedServer, transport: HttpTransport) -> None:
    server.faults = ["cut after"]
    with pytest.raises(NotReachable):
        await transport.claim(LeaseClaimRequest(worker="w", queues=["a"]))
    assert len(server.seen) == 1
    assert await transport.claim(LeaseClaimRequest(worker="w", queues=["a"])) == []


async def test_a_problem_is_raised_with_its_detail(server: ScriptedServer, transport: HttpTransport) -> None:
    with pytest.raises(ServerProblem, match="no such task"):
        await transport.request("GET", "/v1/tasks/00000000-0000-0000-0000-000000000001")


async def test_nobody_there_is_told_with_the_url() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        shell = SyncHttpTransport(url, retry_budget=RetryBudget(deadline_seconds=0))
        with pytest.raises(NotReachable, match=url):
            shell.submit([TASK])
        shell.close()
        transport = HttpTransport(url, retry_budget=RetryBudget(deadline_seconds=0))
        with pytest.raises(NotReachable, match=url):
            await transport.submit([TASK])
        await transport.close()


def test_threads_share_a_shell(server: ScriptedServer, shell: SyncHttpTransport) -> None:
    threads = [threading.Thread(target=lambda: [shell.submit([TASK]) for _ in range(10)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.tasks) == 80


async def test_a_transport_for_another_thread_asks_the_same_server(server: ScriptedServer, transport: HttpTransport) -> None:
    other = transport.for_thread()

    async def submit() -> None:
        await other.submit([TASK])
        await other.close()

    await asyncio.to_thread(asyncio.run, submit())
    assert len(server.tasks) == 1
    assert server.seen[-1].headers["authorization"] == "Bearer eb_secret"
