"""Both HTTP transports on a real socket: what they send, what they repeat, and that a repeated submit creates one task."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from everbeat.client import requests
from everbeat.client.blocking_http import BlockingHttpTransport
from everbeat.client.errors import NotReachable, ServerProblem
from everbeat.client.exchange import RetryBudget
from everbeat.client.http import HttpTransport
from everbeat.client.requests import Repeat
from everbeat.core.protocol import LeaseClaimRequest
from tests.client.scripted import Fault, ScriptedServer
from tests.factories import make_input
from tests.support.certificates import make_certificate
from tests.support.processes import wait_until, wait_until_async

FAST_RETRY = RetryBudget(deadline_seconds=5, random_fraction=lambda: 0.05)
NO_RETRY = RetryBudget(deadline_seconds=0)
TASK = make_input(type="report", payload={"account": 7})


@pytest.fixture
async def transport(server: ScriptedServer) -> AsyncIterator[HttpTransport]:
    made = HttpTransport(server.url, "eb_secret", retry_budget=FAST_RETRY)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def blocking(server: ScriptedServer) -> Iterator[BlockingHttpTransport]:
    made = BlockingHttpTransport(server.url, "eb_secret", retry_budget=FAST_RETRY)
    yield made
    made.close()


FAULTS: list[list[Fault]] = [
    ["cut after"],
    ["cut before"],
    ["unavailable"],
    ["busy"],
    ["cut after", "cut after", "unavailable", "cut before", "busy"],
]


@pytest.mark.parametrize("faults", FAULTS)
async def test_a_repeated_submit_creates_one_task(
    server: ScriptedServer, transport: HttpTransport, faults: list[Fault]
) -> None:
    server.faults = list(faults)
    (id_,) = await transport.submit([TASK])
    assert list(server.tasks) == [id_]
    assert len(server.received) == len(faults) + 1


@pytest.mark.parametrize("faults", FAULTS)
def test_a_repeated_blocking_submit_creates_one_task(
    server: ScriptedServer, blocking: BlockingHttpTransport, faults: list[Fault]
) -> None:
    server.faults = list(faults)
    (id_,) = blocking.submit([TASK])
    assert list(server.tasks) == [id_]


@pytest.mark.parametrize("faults", FAULTS)
async def test_a_repeated_batch_creates_each_task_once(
    server: ScriptedServer, transport: HttpTransport, blocking: BlockingHttpTransport, faults: list[Fault]
) -> None:
    server.faults = list(faults)
    ids = await transport.submit([TASK] * 5)
    assert list(server.tasks) == ids
    server.faults = list(faults)
    more = blocking.submit([TASK] * 5)
    assert list(server.tasks) == ids + more


async def test_nothing_is_sent_for_no_tasks(
    server: ScriptedServer, transport: HttpTransport, blocking: BlockingHttpTransport
) -> None:
    assert await transport.submit([]) == []
    assert blocking.submit([]) == []
    assert server.received == []


async def test_it_sends_the_api_key_and_a_user_agent(
    server: ScriptedServer, transport: HttpTransport, blocking: BlockingHttpTransport
) -> None:
    await transport.request("GET", "/v1/cluster")
    blocking.request("GET", "/v1/cluster")
    assert len(server.received) == 2
    for received in server.received:
        assert received.headers["authorization"] == "Bearer eb_secret"
        assert received.headers["user-agent"].startswith("everbeat-python/")


async def test_connections_are_reused(
    server: ScriptedServer, transport: HttpTransport, blocking: BlockingHttpTransport
) -> None:
    for _ in range(5):
        await transport.request("GET", "/v1/cluster")
        blocking.request("GET", "/v1/cluster")
    assert len(server.connections) == 2


async def test_a_claim_without_a_response_is_not_repeated(server: ScriptedServer, transport: HttpTransport) -> None:
    server.faults = ["cut after"]
    with pytest.raises(NotReachable):
        await transport.claim(LeaseClaimRequest(worker="w", queues=["a"]))
    assert len(server.received) == 1
    assert await transport.claim(LeaseClaimRequest(worker="w", queues=["a"])) == []


async def test_a_problem_is_raised_with_its_detail(server: ScriptedServer, transport: HttpTransport) -> None:
    with pytest.raises(ServerProblem, match="no such task"):
        await transport.request("GET", "/v1/tasks/00000000-0000-0000-0000-000000000001")


async def test_the_error_names_the_url_if_no_server_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        blocking = BlockingHttpTransport(url, retry_budget=NO_RETRY)
        with pytest.raises(NotReachable, match=url):
            blocking.submit([TASK])
        blocking.close()
        transport = HttpTransport(url, retry_budget=NO_RETRY)
        with pytest.raises(NotReachable, match=url):
            await transport.submit([TASK])
        await transport.close()


def test_threads_share_a_blocking_transport(server: ScriptedServer, blocking: BlockingHttpTransport) -> None:
    threads = [threading.Thread(target=lambda: [blocking.submit([TASK]) for _ in range(10)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.tasks) == 80


async def test_a_transport_for_another_thread_uses_the_same_server(server: ScriptedServer, transport: HttpTransport) -> None:
    other = transport.for_thread()

    async def submit() -> None:
        await other.submit([TASK])
        await other.close()

    await asyncio.to_thread(asyncio.run, submit())
    assert len(server.tasks) == 1
    assert server.received[-1].headers["authorization"] == "Bearer eb_secret"


async def test_a_redirect_is_not_followed(
    server: ScriptedServer, transport: HttpTransport, blocking: BlockingHttpTransport
) -> None:
    server.faults = ["moved", "moved"]
    assert (await transport.request("GET", "/v1/cluster")).status == 307
    assert blocking.request("GET", "/v1/cluster").status == 307
    assert len(server.received) == 2


async def test_an_idle_connection_that_the_server_closed_is_replaced(
    server: ScriptedServer, transport: HttpTransport, blocking: BlockingHttpTransport
) -> None:
    """A request that must not be repeated does not fail because of the closed connection."""
    server.faults = ["close idle"]
    blocking.request("GET", "/v1/cluster")
    wait_until(lambda: server.closed_idle == 1)
    blocking.request("POST", "/v1/dead-letters/purge", body={})
    assert len(server.connections) == 2
    server.faults = ["close idle"]
    await transport.request("GET", "/v1/cluster")
    await wait_until_async(lambda: server.closed_idle == 2)
    await asyncio.sleep(0.01)  # the event loop reads the end of the connection
    await transport.request("POST", "/v1/dead-letters/purge", body={})
    assert len(server.connections) == 4


async def test_a_request_without_a_response_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        request = requests.build("GET", "/v1/cluster")._replace(timeout_seconds=0.1, repeat=Repeat.NEVER)
        blocking = BlockingHttpTransport(url)
        with pytest.raises(NotReachable, match="timed out"):
            blocking._exchange(request)
        blocking.close()
        transport = HttpTransport(url)
        with pytest.raises(NotReachable, match="timed out"):
            await transport._exchange(request)
        await transport.close()


async def test_requests_to_other_hosts_use_the_proxy_of_the_environment(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", server.url.replace("http://", "http://user:secret@"))
    blocking = BlockingHttpTransport("http://everbeat.test/base", retry_budget=FAST_RETRY)
    blocking.request("GET", "/v1/cluster")
    blocking.close()
    transport = HttpTransport("http://everbeat.test/base", retry_budget=FAST_RETRY)
    await transport.request("GET", "/v1/cluster")
    await transport.close()
    assert [received.path for received in server.received] == ["http://everbeat.test/base/v1/cluster"] * 2
    assert {received.headers["host"] for received in server.received} == {"everbeat.test"}
    assert {received.headers["proxy-authorization"] for received in server.received} == {"Basic dXNlcjpzZWNyZXQ="}


async def test_the_path_of_the_url_and_encoded_names_are_kept(server: ScriptedServer) -> None:
    blocking = BlockingHttpTransport(f"{server.url}/base")
    blocking.request("GET", "/v1/schedules/a%2Fb%20c", query={"limit": 1})
    blocking.close()
    transport = HttpTransport(f"{server.url}/base")
    await transport.request("GET", "/v1/schedules/a%2Fb%20c", query={"limit": 1})
    await transport.close()
    assert [received.path for received in server.received] == ["/base/v1/schedules/a%2Fb%20c?limit=1"] * 2


async def test_over_tls_it_trusts_only_the_certificates_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = make_certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    with ScriptedServer(tls=tls).running() as server:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        blocking, transport = (
            BlockingHttpTransport(server.url, retry_budget=NO_RETRY),
            HttpTransport(server.url, retry_budget=NO_RETRY),
        )
        with pytest.raises(NotReachable, match="certificate"):
            blocking.submit([TASK])
        with pytest.raises(NotReachable, match="certificate"):
            await transport.submit([TASK])
        await transport.close()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        blocking, transport = (
            BlockingHttpTransport(server.url, retry_budget=NO_RETRY),
            HttpTransport(server.url, retry_budget=NO_RETRY),
        )
        blocking.submit([TASK])
        await transport.submit([TASK])
        blocking.close()
        await transport.close()
        assert len(server.tasks) == 2


async def test_a_large_body_that_the_server_does_not_read_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        body = {"text": "x" * 12_000_000}
        request = requests.build("PUT", "/v1/schedules/a", body=body)._replace(timeout_seconds=0.1, repeat=Repeat.NEVER)
        blocking = BlockingHttpTransport(url)
        with pytest.raises(NotReachable, match="timed out"):
            blocking._exchange(request)
        blocking.close()
        transport = HttpTransport(url)
        with pytest.raises(NotReachable, match="timed out"):
            await transport._exchange(request)
        await transport.close()
