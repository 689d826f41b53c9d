"""RabbitMQ: publishes with confirms to a real RabbitMQ, consumed with aio-pika."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel

from everbeat.core.broker_targets import AmqpTarget
from everbeat.delivery.amqp import make_target
from everbeat.delivery.base import SettingMissing, Target
from tests.delivery.messages import (
    Load,
    Received,
    assert_arrived,
    assert_nothing_lost,
    broker_of,
    context_of,
    delivered,
    make_task,
    retried,
    target_of,
)
from tests.support.rabbitmq import RabbitMq


def route(exchange: str, routing_key: str, **fields: Any) -> AmqpTarget:
    return AmqpTarget(exchange=exchange, routing_key=routing_key, broker="main", **fields)


@asynccontextmanager
async def channel(server: RabbitMq) -> AsyncIterator[AbstractChannel]:
    connection = await aio_pika.connect(server.url)
    async with connection:
        yield await connection.channel()


async def declare(server: RabbitMq, queue: str, exchange: str | None = None, routing_key: str = "") -> None:
    async with channel(server) as made:
        declared = await made.declare_queue(queue, durable=True)
        if exchange is not None:
            await declared.bind(await made.get_exchange(exchange), routing_key)


async def messages(server: RabbitMq, queue: str) -> list[Received]:
    async with channel(server) as made:
        found = []
        declared = await made.get_queue(queue)
        while (message := await declared.get(fail=False, no_ack=True)) is not None:
            headers = {name: str(value) for name, value in message.headers.items()}
            found.append(Received(str(message.message_id), json.loads(message.body)["number"], headers))
        return found


@pytest.fixture
async def target(rabbitmq: RabbitMq) -> AsyncIterator[Target]:
    made = target_of(broker_of("amqp", url=rabbitmq.url))
    yield made
    await made.close()


async def test_a_message_has_the_payload_the_message_id_and_the_headers(rabbitmq: RabbitMq, target: Target) -> None:
    await declare(rabbitmq, "arrives")
    task = make_task(route("", "arrives", headers={"x-team": "blue"}, priority=3, expiration_seconds=600))
    delivered(await target.deliver(task))
    received = await messages(rabbitmq, "arrives")
    assert_arrived(received, task)
    assert received[0].headers["x-team"] == "blue"


async def test_an_exchange_is_declared_if_the_target_has_a_type(rabbitmq: RabbitMq, target: Target) -> None:
    task = make_task(route("events", "a.b", exchange_type="topic"))
    assert retried(await target.deliver(task)).kind == "unroutable"
    await declare(rabbitmq, "audit", "events", "a.*")
    delivered(await target.deliver(task))
    assert_arrived(await messages(rabbitmq, "audit"), task)
    wrong = retried(await target.deliver(make_task(route("events", "a.b", exchange_type="fanout"))))
    assert (wrong.kind, wrong.blames_destination) == ("channel", False)


async def test_an_unroutable_message_is_a_failure_without_blame(target: Target) -> None:
    outcome = retried(await target.deliver(make_task(route("", "no-such-queue"))))
    assert (outcome.kind, outcome.blames_destination) == ("unroutable", False)


async def test_an_exchange_that_is_missing_fails_alone(rabbitmq: RabbitMq, target: Target) -> None:
    await declare(rabbitmq, "unharmed")
    tasks = [make_task(route("", "unharmed"), number) for number in range(20)]
    missing, *outcomes = await asyncio.gather(
        target.deliver(make_task(route("no-such-exchange", "k"))), *(target.deliver(task) for task in tasks)
    )
    assert (retried(missing).kind, retried(missing).blames_destination) == ("channel", False)
    assert "no-such-exchange" in retried(missing).why
    assert [delivered(outcome) for outcome in outcomes]
    assert_nothing_lost(tasks, await messages(rabbitmq, "unharmed"))


async def test_an_exchange_that_is_deleted_fails_and_is_used_again_when_it_exists(rabbitmq: RabbitMq, target: Target) -> None:
    task = make_task(route("temporary", "k"))
    async with channel(rabbitmq) as made:
        for _ in range(2):
            exchange = await made.declare_exchange("temporary", "fanout")
            await declare(rabbitmq, "behind", "temporary")
            delivered(await target.deliver(task))
            await exchange.delete()
            assert retried(await target.deliver(task)).kind == "channel"
    assert assert_nothing_lost([task], await messages(rabbitmq, "behind")).total() == 1


async def test_every_message_arrives_although_rabbitmq_is_killed_under_load(rabbitmq: RabbitMq) -> None:
    await declare(rabbitmq, "load")
    target = target_of(broker_of("amqp", url=rabbitmq.url))
    tasks = [make_task(route("", "load"), number) for number in range(1000)]
    load = Load(target, tasks)
    running = asyncio.create_task(load.run())
    await load.some_are_confirmed()
    rabbitmq.kill9()
    await asyncio.to_thread(rabbitmq.start)
    await running
    await target.close()
    assert load.failures["connection"] > 0
    duplicates = assert_nothing_lost(tasks, await messages(rabbitmq, "load"))
    assert duplicates.total() <= load.failures.total()


async def test_secrets_are_not_in_errors_or_the_log(rabbitmq: RabbitMq, caplog: pytest.LogCaptureFixture) -> None:
    for url in (rabbitmq.url.replace("guest:guest", "guest:hunter2"), "amqp://guest:hunter2@127.0.0.1:1/"):
        target = target_of(broker_of("amqp", url=url))
        outcome = retried(await target.deliver(make_task(route("", "q"))))
        await target.close()
        assert (outcome.kind, outcome.blames_destination) == ("connection", True)
        assert "hunter2" not in outcome.why + caplog.text


@pytest.mark.parametrize(("options", "message"), [({}, "url is required"), ({"url": "http://x"}, "must start with amqp://")])
def test_options_are_checked_when_the_node_starts(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingMissing, match=message):
        make_target(context_of(broker_of("amqp", **options)))
