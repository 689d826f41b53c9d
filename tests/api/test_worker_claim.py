"""POST /v1/worker/claim."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import httpx
import pytest

from everbeat.api.app import ApiContext, build_app
from everbeat.store.base import Store
from tests.api.conftest import ON_BOTH_STORES, claim, definition, fields_of, problem_of, read, submit
from tests.factories import OTHER_TENANT, make_task

FIELDS = {
    *("id", "type", "queue", "payload", "attempt", "fence", "lease_until", "scheduled_for", "schedule", "origin"),
    *("timeout_seconds", "traceparent"),
}


@ON_BOTH_STORES
async def test_a_worker_gets_what_it_needs_to_know(client: httpx.AsyncClient) -> None:
    task = await submit(client, "report", queue="reports", payload={"account": 7}, timeout_seconds=60)
    (held,) = await claim(client, "reports", lease_seconds=45)

    assert set(held) >= FIELDS
    assert (held["id"], held["type"], held["queue"], held["payload"]) == (task["id"], "report", "reports", {"account": 7})
    assert (held["attempt"], held["max_attempts"], held["fence"], held["origin"]) == (1, 3, 1, "submit")
    assert (held["timeout_seconds"], held["lease_seconds"]) == (60, 45)
    assert (held["schedule"], held["schedule_id"], held["scheduled_for"], held["traceparent"]) == (None,) * 4
    now = await read(client, task)
    assert now["lease_until"] == held["lease_until"]
    leased = datetime.fromisoformat(held["lease_until"]) - datetime.fromisoformat(now["started_at"])
    assert leased.total_seconds() == 45


@ON_BOTH_STORES
async def test_a_task_of_a_schedule_says_which(client: httpx.AsyncClient) -> None:
    schedule = (await client.post("/v1/schedules", json=definition(name="nightly"))).json()
    await client.post("/v1/schedules/nightly/trigger")

    (held,) = await claim(client)
    assert (held["schedule"], held["schedule_id"], held["origin"]) == ("nightly", schedule["id"], "trigger")


@ON_BOTH_STORES
async def test_nobody_gets_a_task_twice(client: httpx.AsyncClient) -> None:
    ids = {(await submit(client))["id"] for _ in range(20)}
    shares = await asyncio.gather(*(claim(client, worker=f"w{number}", max=3) for number in range(10)))

    given = [task["id"] for share in shares for task in share]
    assert sorted(given) == sorted(ids)


@ON_BOTH_STORES
async def test_the_most_urgent_comes_first(client: httpx.AsyncClient) -> None:
    for priority in (100, 5, 1000, 0, 50):
        await submit(client, f"p{priority}", priority=priority)

    assert [one["type"] for one in await claim(client, max=3)] == ["p0", "p5", "p50"]
    assert [one["type"] for one in await claim(client)] == ["p100", "p1000"]


@ON_BOTH_STORES
async def test_it_keeps_to_its_queues_and_types(client: httpx.AsyncClient) -> None:
    for queue, type_ in (("a", "x"), ("a", "y"), ("b", "x"), ("c", "x")):
        await submit(client, type_, queue=queue)

    assert [(one["queue"], one["type"]) for one in await claim(client, "a", "b", types=["x"])] == [("a", "x"), ("b", "x")]
    assert [(one["queue"], one["type"]) for one in await claim(client, "a", "b")] == [("a", "y")]


@ON_BOTH_STORES
async def test_without_a_wait_it_answers_at_once(client: httpx.AsyncClient) -> None:
    started = time.monotonic()
    assert await claim(client) == []
    assert time.monotonic() - started < 1


@ON_BOTH_STORES
async def test_a_wait_ends_with_nothing(client: httpx.AsyncClient) -> None:
    started = time.monotonic()
    assert await claim(client, wait_seconds=0.2) == []
    assert 0.15 < time.monotonic() - started < 2


@ON_BOTH_STORES
async def test_a_long_poll_wakes_when_a_task_comes(client: httpx.AsyncClient) -> None:
    delays = []
    for _ in range(5):
        waiting = asyncio.create_task(claim(client, wait_seconds=30, max=1))
        await asyncio.sleep(0.05)
        started = time.monotonic()
        task = await submit(client)
        (held,) = await waiting
        delays.append(time.monotonic() - started)
        assert held["id"] == task["id"]

    assert sorted(delays)[2] < 0.25


@ON_BOTH_STORES
async def test_many_long_polls_and_one_task(client: httpx.AsyncClient) -> None:
    waiting = [asyncio.create_task(claim(client, wait_seconds=1, max=1)) for _ in range(50)]
    await asyncio.sleep(0.1)
    await submit(client)

    shares = await asyncio.gather(*waiting)
    assert sorted(len(share) for share in shares) == [0] * 49 + [1]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"worker": ""}, "worker"),
        ({"worker": "x" * 201}, "worker"),
        ({"worker": "a\x00b"}, "worker"),
        ({"worker": None}, "worker"),
        ({"queues": []}, "queues"),
        ({"queues": ["a b"]}, "queues"),
        ({"queues": [5]}, "queues"),
        ({"queues": "default"}, "queues"),
        ({"queues": ["q"] * 101}, "queues"),
        ({"types": []}, "types"),
        ({"types": ["a b"]}, "types"),
        ({"max": 0}, "max"),
        ({"max": 1001}, "max"),
        ({"max": 1.5}, "max"),
        ({"wait_seconds": -1}, "wait_seconds"),
        ({"wait_seconds": 31}, "wait_seconds"),
        ({"lease_seconds": 4}, "lease_seconds"),
        ({"lease_seconds": 3601}, "lease_seconds"),
        ({"tenant": "x"}, "tenant"),
    ],
)
async def test_it_names_what_is_wrong(client: httpx.AsyncClient, wrong: dict[str, Any], field: str) -> None:
    await submit(client)
    body = {"worker": "w1", "queues": ["default"], **wrong}

    (named,) = fields_of(await client.post("/v1/worker/claim", json=body))
    assert named.partition("[")[0] == field
    assert len(await claim(client)) == 1


async def test_worker_and_queues_are_required(client: httpx.AsyncClient) -> None:
    for body in ({"worker": "w"}, {"queues": ["a"]}, {}):
        assert len(fields_of(await client.post("/v1/worker/claim", json=body))) == 1
    problem_of(await client.post("/v1/worker/claim"), 400)


@ON_BOTH_STORES
async def test_tasks_of_other_tenants_are_not_given(client: httpx.AsyncClient, store: Store) -> None:
    await store.task_submit([make_task(tenant_id=OTHER_TENANT)])

    assert await claim(client, wait_seconds=0.05) == []


# Clients that go away


class Gone:
    """A claim straight over ASGI, whose client goes away when the test says so."""

    def __init__(self, context: ApiContext, body: bytes) -> None:
        self.left = asyncio.Event()
        self.sent: list[Any] = []
        self._messages = iter([{"type": "http.request", "body": body, "more_body": False}])
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope: Any = {
            **{"type": "http", "method": "POST", "path": "/v1/worker/claim", "raw_path": b"/v1/worker/claim"},
            **{"query_string": b"", "headers": headers, "scheme": "http", "http_version": "1.1", "root_path": ""},
        }
        self.serving = asyncio.create_task(build_app(context)(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        for message in self._messages:
            return message
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.01)


CLAIM = b'{"worker":"gone","queues":["default"],"wait_seconds":30}'


@ON_BOTH_STORES
async def test_a_poll_whose_client_left_takes_nothing(client: httpx.AsyncClient, context: ApiContext) -> None:
    gone = Gone(context, CLAIM)
    await asyncio.sleep(0.1)
    gone.left.set()
    await until(gone.serving.done)
    task = await submit(client)

    (held,) = await claim(client, wait_seconds=5)
    assert (held["id"], held["attempt"]) == (task["id"], 1)


@ON_BOTH_STORES
async def test_what_was_claimed_for_a_client_that_leaves_is_given_back(client: httpx.AsyncClient, context: ApiContext) -> None:
    gone = Gone(context, CLAIM)
    await asyncio.sleep(0.1)
    submitting = asyncio.create_task(submit(client))
    gone.left.set()
    task = await submitting
    await until(gone.serving.done)

    if gone.sent[1]["body"] == b'{"tasks":[]}':
        (held,) = await claim(client, wait_seconds=5)
        assert (held["id"], held["attempt"]) == (task["id"], 1)


@ON_BOTH_STORES
async def test_a_claim_that_succeeds_in_the_moment_the_client_leaves_is_given_back(
    client: httpx.AsyncClient, context: ApiContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await submit(client)
    claimed = asyncio.Event()
    real = context.leases.claim

    async def slow(*args: Any, **more: Any) -> Any:
        tasks = await real(*args, **more)
        gone.left.set()
        claimed.set()
        return tasks

    with monkeypatch.context() as patched:
        patched.setattr(context.leases, "claim", slow)
        gone = Gone(context, CLAIM)
        await claimed.wait()
        await until(gone.serving.done)
    if gone.sent[1]["body"] == b'{"tasks":[]}':
        (held,) = await claim(client, wait_seconds=5)
        assert (held["id"], held["attempt"]) == (task["id"], 1)
    else:
        assert task["id"].encode() in gone.sent[1]["body"]


@ON_BOTH_STORES
async def test_a_server_that_is_stopped_gives_back_what_a_poll_holds(client: httpx.AsyncClient, context: ApiContext) -> None:
    gone = Gone(context, CLAIM)
    await asyncio.sleep(0.1)
    gone.serving.cancel()
    await until(gone.serving.done)
    task = await submit(client)

    (held,) = await claim(client, wait_seconds=5)
    assert held["id"] == task["id"]
