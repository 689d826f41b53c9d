"""Webhooks from the submit to the response, through the deliverer."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from everbeat.clock import DatabaseClock
from everbeat.config import Settings
from everbeat.core.deliveries import DeliveryResponse
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
    given = msgspec.convert({"type": "call", "target": msgspec.to_builtins(target), **more}, TaskInput)
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
