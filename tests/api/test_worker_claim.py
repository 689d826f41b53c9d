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
async def test_a_claimed_task_has_all_fields(client: httpx.AsyncClient) -> None:
    task = await submit(client, "report", queue="reports", payload={"account": 7}, timeout_seconds=60)
    (claimed,) = await claim(client, "reports", lease_seconds=45)

    assert set(claimed) >= FIELDS
    assert (claimed["id"], claimed["type"], claimed["queue"], claimed["payload"]) == (
        task["id"],
        "report",
        "reports",
        {"account": 7},
    )
    assert (claimed["attempt"], claimed["max_attempts"], claimed["fence"], claimed["origin"]) == (1, 3, 1, "submit")
    assert (claimed["timeout_seconds"], claimed["lease_seconds"]) == (60, 45)
    assert (claimed["schedule"], claimed["schedule_id"], claimed["scheduled_for"], claimed["traceparent"]) == (None,) * 4
    now = await read(client, task)
    assert now["lease_until"] == claimed["lease_until"]
    leased = datetime.fromisoformat(claimed["lease_until"]) - datetime.fromisoformat(now["started_at"])
    assert leased.total_seconds() == 45


@ON_BOTH_STORES
async def test_a_task_of_a_schedule_names_it(client: httpx.AsyncClient) -> None:
    schedule = (await client.post("/v1/schedules", json=definition(name="nightly"))).json()
    await client.post("/v1/schedules/nightly/trigger")

    (claimed,) = await claim(client)
    assert (claimed["schedule"], claimed["schedule_id"], claimed["origin"]) == ("nightly", schedule["id"], "trigger")


@ON_BOTH_STORES
async def test_no_task_is_claimed_twice(client: httpx.AsyncClient) -> None:
    ids = {(await submit(client))["id"] for _ in range(20)}
    responses = await asyncio.gather(*(claim(client, worker=f"w{number}", max=3) for number in range(10)))

    given = [task["id"] for tasks in responses for task in tasks]
    assert sorted(given) == sorted(ids)


@ON_BOTH_STORES
async def test_the_most_urgent_task_is_claimed_first(client: httpx.AsyncClient) -> None:
    for priority in (100, 5, 1000, 0, 50):
        await submit(client, f"p{priority}", priority=priority)

    assert [one["type"] for one in await claim(client, max=3)] == ["p0", "p5", "p50"]
    assert [one["type"] for one in await claim(client)] == ["p100", "p1000"]


@ON_BOTH_STORES
async def test_a_claim_is_limited_to_its_queues_and_types(client: httpx.AsyncClient) -> None:
    for queue, type_ in (("a", "x"), ("a", "y"), ("b", "x"), ("c", "x")):
        await submit(client, type_, queue=queue)

    assert [(one["queue"], one["type"]) for one in await claim(client, "a", "b", types=["x"])] == [("a", "x"), ("b", "x")]
    assert [(one["queue"], one["type"]) for one in await claim(client, "a", "b")] == [("a", "y")]


@ON_BOTH_STORES
async def test_without_wait_seconds_a_claim_returns_immediately(client: httpx.AsyncClient) -> None:
    started = time.monotonic()
    assert await claim(client) == []
    assert time.monotonic() - started < 1


@ON_BOTH_STORES
async def test_a_long_poll_that_times_out_returns_no_tasks(client: httpx.AsyncClient) -> None:
    started = time.monotonic()
    assert await claim(client, wait_seconds=0.2) == []
    assert 0.15 < time.monotonic() - started < 2


@ON_BOTH_STORES
async def test_a_long_poll_returns_when_a_task_is_submitted(client: httpx.AsyncClient) -> None:
    delays = []
    for _ in range(5):
        waiting = asyncio.create_task(claim(client, wait_seconds=30, max=1))
        await asyncio.sleep(0.05)
        started = time.monotonic()
        task = await submit(client)
        (claimed,) = await waiting
        delays.append(time.monotonic() - started)
        assert claimed["id"] == task["id"]

    assert sorted(delays)[2] < 0.25


@ON_BOTH_STORES
async def test_many_long_polls_and_one_task(client: httpx.AsyncClient) -> None:
    waiting = [asyncio.create_task(claim(client, wait_seconds=1, max=1)) for _ in range(50)]
    await asyncio.sleep(0.1)
    await submit(client)

    responses = await asyncio.gather(*waiting)
    assert sorted(len(tasks) for tasks in responses) == [0] * 49 + [1]


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
async def test_an_invalid_field_is_named(client: httpx.AsyncClient, wrong: dict[str, Any], field: str) -> None:
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
async def test_tasks_of_other_tenants_are_not_claimed(client: httpx.AsyncClient, store: Store) -> None:
    await store.task_submit([make_task(tenant_id=OTHER_TENANT)])

    assert await claim(client, wait_seconds=0.05) == []


# Clients that disconnect


class DisconnectingClient:
    """A claim directly over ASGI, whose client disconnects when the test sets `left`."""

    def __init__(self, context: ApiContext, body: bytes) -> None:
        self.disconnected = asyncio.Event()
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
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


CLAIM = b'{"worker":"gone","queues":["default"],"wait_seconds":30}'


@ON_BOTH_STORES
async def test_a_poll_whose_client_disconnected_gets_no_task(client: httpx.AsyncClient, context: ApiContext) -> None:
    leaving = DisconnectingClient(context, CLAIM)
    await asyncio.sleep(0.1)
    leaving.disconnected.set()
    await until(leaving.serving.done)
    task = await submit(client)

    (claimed,) = await claim(client, wait_seconds=5)
    assert (claimed["id"], claimed["attempt"]) == (task["id"], 1)


@ON_BOTH_STORES
async def test_tasks_claimed_for_a_disconnecting_client_are_released(client: httpx.AsyncClient, context: ApiContext) -> None:
    leaving = DisconnectingClient(context, CLAIM)
    await asyncio.sleep(0.1)
    submitting = asyncio.create_task(submit(client))
    leaving.disconnected.set()
    task = await submitting
    await until(leaving.serving.done)

    if leaving.sent[1]["body"] == b'{"tasks":[]}':
        (claimed,) = await claim(client, wait_seconds=5)
        assert (claimed["id"], claimed["attempt"]) == (task["id"], 1)


@ON_BOTH_STORES
async def test_a_claim_that_succeeds_while_the_client_disconnects_is_released(
    client: httpx.AsyncClient, context: ApiContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await submit(client)
    claim_done = asyncio.Event()
    original_claim = context.leases.claim

    async def slow(*args: Any, **more: Any) -> Any:
        tasks = await original_claim(*args, **more)
        leaving.disconnected.set()
        claim_done.set()
        return tasks

    with monkeypatch.context() as patched:
        patched.setattr(context.leases, "claim", slow)
        leaving = DisconnectingClient(context, CLAIM)
        await claim_done.wait()
        await until(leaving.serving.done)
    if leaving.sent[1]["body"] == b'{"tasks":[]}':
        (claimed,) = await claim(client, wait_seconds=5)
        assert (claimed["id"], claimed["attempt"]) == (task["id"], 1)
    else:
        assert task["id"].encode() in leaving.sent[1]["body"]


@ON_BOTH_STORES
async def test_a_cancelled_request_does_not_keep_a_task(client: httpx.AsyncClient, context: ApiContext) -> None:
    leaving = DisconnectingClient(context, CLAIM)
    await asyncio.sleep(0.1)
    leaving.serving.cancel()
    await until(leaving.serving.done)
    task = await submit(client)

    (claimed,) = await claim(client, wait_seconds=5)
    assert claimed["id"] == task["id"]
