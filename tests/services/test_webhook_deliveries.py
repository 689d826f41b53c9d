"""Webhooks from the submit to the response, through the deliverer."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from standardwebhooks import Webhook

from everbeat.clock import DatabaseClock
from everbeat.config import Settings
from everbeat.core.deliveries import DeliveryResponse
from everbeat.core.endpoints import EndpointInput
from everbeat.core.errors import InvalidInput
from everbeat.core.protocol import TaskInput
from everbeat.core.schedules import DEFAULT_TENANT, Retry, RetryKind
from everbeat.core.targets import HttpTarget
from everbeat.core.tasks import TaskRecord, TaskState
from everbeat.engine import Engine
from everbeat.store.base import Store
from tests.delivery.receiver import Received, Receiver, response
from tests.factories import definition
from tests.services.deliveries import run_dispatcher, wait_until

LOOPBACK = ("127.0.0.0/8",)
SOON = Retry(kind=RetryKind.FIXED, base_seconds=0.01, jitter=False)


@pytest.fixture
def engine(store: Store) -> Engine:
    return Engine(store, DatabaseClock(), Settings(webhook_allow=LOOPBACK))


async def submit(engine: Engine, url: str, **more: object) -> TaskRecord:
    target = HttpTarget(url=url)
    body = {"type": "call", "target": msgspec.to_builtins(target), **more}
    given = msgspec.json.decode(msgspec.json.encode(body), type=TaskInput)
    return (await engine.tasks.submit(DEFAULT_TENANT, given))[0]


async def ended(engine: Engine, task: TaskRecord) -> TaskRecord:
    async def is_finished() -> bool:
        return (await engine.tasks.get(DEFAULT_TENANT, task.id)).finished_at is not None

    await wait_until(is_finished)
    return await engine.tasks.get(DEFAULT_TENANT, task.id)


async def test_a_task_is_delivered_and_keeps_the_response_of_each_attempt(engine: Engine) -> None:
    async with Receiver() as receiver, run_dispatcher(engine):
        answers = [response(503, b"later"), response(200, b'{"ok": true}', Content_Type="application/json")]

        async def respond(received: Received, writer: asyncio.StreamWriter) -> None:
            await answers.pop(0)(received, writer)

        receiver.respond = respond
        task = await submit(engine, receiver.url, payload={"a": 1}, retry=msgspec.to_builtins(SOON))
        done = await ended(engine, task)
    assert (done.state, done.attempt, done.result) == (TaskState.COMPLETED, 2, b'{"ok":true}')
    attempts = await engine.tasks.attempts(DEFAULT_TENANT, task.id)
    kept = [msgspec.json.decode(one.response or b"", type=DeliveryResponse) for one in attempts]
    assert [(one.status, one.body, one.size) for one in kept] == [(503, "later", 5), (200, '{"ok": true}', 12)]
    assert [one.headers["webhook-id"] for one in receiver.received] == [str(task.id)] * 2
    assert [one.headers["everbeat-attempt"] for one in receiver.received] == ["1", "2"]


async def test_gone_pauses_the_schedule_with_a_note(engine: Engine) -> None:
    async with Receiver(response(410)) as receiver, run_dispatcher(engine):
        await engine.schedules.put(DEFAULT_TENANT, "job", definition(target={"kind": "http", "url": receiver.url}))
        await ended(engine, await engine.backfill.trigger(DEFAULT_TENANT, "job", None))

        async def is_paused() -> bool:
            return (await engine.schedules.get(DEFAULT_TENANT, "job")).note is not None

        await wait_until(is_paused)
    schedule = await engine.schedules.get(DEFAULT_TENANT, "job")
    assert (schedule.status.value, schedule.note) == ("paused", "the destination answered 410 Gone; it wants no more calls")


async def test_an_address_that_is_not_allowed_is_refused_at_registration(store: Store) -> None:
    engine = Engine(store, DatabaseClock(), Settings())
    with pytest.raises(InvalidInput, match="not public"):
        await submit(engine, "http://127.0.0.1/")
    target = {"kind": "http", "url": "http://169.254.169.254/"}
    with pytest.raises(InvalidInput, match="not public"):
        await engine.schedules.put(DEFAULT_TENANT, "job", definition(target=target))


async def submit_to(engine: Engine, target: HttpTarget, **more: object) -> TaskRecord:
    body = {"type": "call", "target": msgspec.to_builtins(target), **more}
    given = msgspec.json.decode(msgspec.json.encode(body), type=TaskInput)
    return (await engine.tasks.submit(DEFAULT_TENANT, given))[0]


async def test_an_endpoint_is_called_as_it_is_now_and_signed(engine: Engine) -> None:
    async with Receiver() as first, Receiver() as second, run_dispatcher(engine):
        _, secret = await engine.endpoints.put(DEFAULT_TENANT, "billing", EndpointInput(url=first.url, headers={"X-A": "1"}))
        assert secret is not None
        await ended(engine, await submit_to(engine, HttpTarget(endpoint="billing"), payload={"n": 1}))
        _, new_secret = await engine.endpoints.rotate(DEFAULT_TENANT, "billing")
        assert new_secret is not None
        await engine.endpoints.put(DEFAULT_TENANT, "billing", EndpointInput(url=second.url))
        done = await ended(engine, await submit_to(engine, HttpTarget(endpoint="billing"), payload={"n": 2}))
    assert (done.state, done.fair_key) == (TaskState.COMPLETED, "endpoint:billing")
    (before,), (after,) = first.received, second.received
    assert before.headers["x-a"] == "1"
    assert Webhook(secret).verify(before.body, before.headers) == {"n": 1}
    for valid in (secret, new_secret):
        assert Webhook(valid).verify(after.body, after.headers) == {"n": 2}


async def test_the_limits_of_an_endpoint_hold_from_the_first_delivery(engine: Engine) -> None:
    running = most = 0

    async def respond(received: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        await response()(received, writer)

    async with Receiver(respond) as receiver, run_dispatcher(engine):
        await engine.endpoints.put(DEFAULT_TENANT, "slow", EndpointInput(url=receiver.url, max_concurrent=2))
        tasks = [await submit_to(engine, HttpTarget(endpoint="slow")) for _ in range(12)]
        for task in tasks:
            assert (await ended(engine, task)).state is TaskState.COMPLETED
    assert most == 2


async def test_a_task_for_a_missing_endpoint_is_refused(engine: Engine) -> None:
    async with run_dispatcher(engine):
        dead = await ended(engine, await submit_to(engine, HttpTarget(endpoint="none")))
    assert (dead.state, dead.attempt) == (TaskState.DEAD, 1)
    assert dead.reason == 'the delivery was refused: there is no endpoint named "none"'


async def test_a_long_job_reports_its_end_with_the_token_of_the_request(engine: Engine) -> None:
    async with Receiver(response(202)) as receiver, run_dispatcher(engine):
        task = await submit_to(engine, HttpTarget(url=receiver.url, mode="callback"), timeout_seconds=600)

        async def is_accepted() -> bool:
            return (await engine.tasks.get(DEFAULT_TENANT, task.id)).response is not None

        await wait_until(is_accepted)
        (received,) = receiver.received
        assert received.headers["everbeat-callback-url"] == f"http://127.0.0.1:8080/v1/callbacks/{task.id}"
        claims = await engine.callbacks.claims(task.id, received.headers["everbeat-callback-token"])
        running = await engine.tasks.get(DEFAULT_TENANT, task.id)
        assert (running.state, claims.fence) == (TaskState.RUNNING, running.fence)
        assert (await engine.callbacks.complete(claims, msgspec.Raw(b'{"rows":3}'))).status == "ok"
        done = await ended(engine, task)
    assert (done.state, done.result) == (TaskState.COMPLETED, b'{"rows":3}')
    assert msgspec.json.decode(done.response or b"", type=DeliveryResponse).status == 202


async def test_callback_mode_needs_an_address_of_the_server(store: Store) -> None:
    engine = Engine(store, DatabaseClock(), Settings(host="0.0.0.0"))
    with pytest.raises(InvalidInput, match="public_url"):
        await submit_to(engine, HttpTarget(url="https://example.org/", mode="callback"))
