"""Brokers that accept connections and then send nothing: the delivery ends at its timeout, and the next one works."""

from __future__ import annotations

import asyncio

import pytest

from everbeat.core.broker_targets import AmqpTarget, BrokerTarget, NatsTarget, RedisTarget, SqsTarget
from everbeat.core.brokers import Broker
from tests.delivery import test_amqp, test_nats, test_redis, test_sqs
from tests.delivery.messages import Received, broker_of, delivered, make_task, target_of
from tests.support.moto_server import MotoServer
from tests.support.nats_server import NatsServer
from tests.support.proxy import FaultyProxy
from tests.support.rabbitmq import RabbitMq
from tests.support.redis_server import RedisServer

NAME = "half-open"


async def deliver_around_a_freeze(port: int, broker: Broker, spec: BrokerTarget) -> list[str]:
    """Deliver, freeze the connection during a second delivery until its timeout, and deliver the second task again.

    `port`: of the broker; in the options of the connection, the port of a proxy replaces it.
    """
    first, second = make_task(spec, 1), make_task(spec, 2)
    async with FaultyProxy("127.0.0.1", port) as proxy:
        options = {name: str(value).replace(f":{port}", f":{proxy.port}") for name, value in broker.options.items()}
        target = target_of(broker_of(broker.kind, **options))
        delivered(await target.deliver(first))
        proxy.freeze()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await target.deliver(second)
        proxy.thaw()
        delivered(await target.deliver(second))
        await target.close()
    return [first.message_id, second.message_id]


def assert_both_arrived(received: list[Received], ids: list[str]) -> None:
    # What was sent before the timeout may arrive as well, with the same message id.
    assert [message.message_id for message in received] in (ids, [*ids, ids[1]])


async def test_a_stream_of_redis(redis_server: RedisServer) -> None:
    broker, spec = broker_of("redis", url=redis_server.url), RedisTarget(stream=NAME, broker="main")
    ids = await deliver_around_a_freeze(redis_server.port, broker, spec)
    assert_both_arrived(test_redis.entries(redis_server, NAME), ids)


async def test_a_stream_of_nats(nats_server: NatsServer) -> None:
    await test_nats.add_stream(nats_server, NAME)
    broker, spec = broker_of("nats", url=nats_server.url), NatsTarget(subject=f"{NAME}.one", broker="main")
    ids = await deliver_around_a_freeze(nats_server.port, broker, spec)
    assert_both_arrived(await test_nats.messages(nats_server, NAME), ids)


async def test_an_exchange_of_rabbitmq(rabbitmq: RabbitMq) -> None:
    await test_amqp.declare(rabbitmq, NAME)
    broker, spec = broker_of("amqp", url=rabbitmq.url), AmqpTarget(exchange="", routing_key=NAME, broker="main")
    ids = await deliver_around_a_freeze(rabbitmq.port, broker, spec)
    assert_both_arrived(await test_amqp.messages(rabbitmq, NAME), ids)


async def test_a_queue_of_sqs(moto_server: MotoServer) -> None:
    url = test_sqs.create_queue(moto_server, NAME)
    broker = broker_of("sqs", region="us-east-1", endpoint=moto_server.endpoint, **test_sqs.KEYS)
    ids = await deliver_around_a_freeze(moto_server.port, broker, SqsTarget(queue_url=url, broker="main"))
    assert_both_arrived(test_sqs.messages(moto_server, url), ids)
