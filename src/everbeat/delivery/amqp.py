"""RabbitMQ (AMQP 0-9-1): one publish per task, on a channel with publisher confirms. The confirm is the confirmation.

Messages are published as mandatory: if no queue is bound that would get the message, RabbitMQ returns it, and the delivery has
failed. A message is persistent unless the target says otherwise; RabbitMQ confirms a persistent message in a durable queue
when it is on disk (in a quorum queue: on the disks of a majority).

The property `message_id` is the message id. RabbitMQ does not remove duplicates: a task that is sent again is a second message
with the same `message_id`, and the consumer removes it.

Each exchange has a channel of its own, because RabbitMQ closes a channel on an error, such as an exchange that does not exist,
and every delivery on that channel fails with it.

When the connection is lost, the deliveries without a confirm fail at once, and the next delivery connects again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from everbeat.core.broker_targets import AmqpTarget
from everbeat.core.brokers import Broker
from everbeat.core.deliveries import DeliveryTask, message_headers
from everbeat.delivery.base import ExtraMissing, Refused, RetryDelivery, SettingMissing, Target, TargetContext, option
from everbeat.delivery.brokers import (
    CONFIRM_SECONDS,
    CONNECT_SECONDS,
    BrokerSender,
    Confirmation,
    Connections,
    is_url,
    misconfigured,
    unavailable,
)

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, AbstractMessage
    from aiormq.abc import FieldTable


def make_target(context: TargetContext) -> Target:
    try:
        import aio_pika  # noqa: F401
    except ImportError:
        raise ExtraMissing("amqp", "amqp") from None
    return AmqpSender(context)


class AmqpConnection:
    """One connection, with a channel for each exchange."""

    def __init__(self, connection: AbstractConnection) -> None:
        self.connection = connection
        self._channels: dict[tuple[str, str | None], tuple[AbstractChannel, AbstractExchange]] = {}
        self._lock = asyncio.Lock()

    @property
    def is_lost(self) -> bool:
        return not self.connection.connected.is_set()  # is_closed is only true after a call of close()

    async def exchange(self, target: AmqpTarget) -> AbstractExchange:
        """Return the exchange, on a channel that is open. Raises an exception if it does not exist."""
        key = (target.exchange, target.exchange_type)
        async with self._lock:
            channel, exchange = self._channels.get(key, (None, None))
            if channel is None or exchange is None or channel.is_closed:
                channel = await self.connection.channel(publisher_confirms=True, on_return_raises=True)
                exchange = await _exchange(channel, target)
                self._channels[key] = (channel, exchange)
            return exchange


async def _exchange(channel: AbstractChannel, target: AmqpTarget) -> AbstractExchange:
    if not target.exchange:
        return channel.default_exchange
    try:
        if target.exchange_type is not None:
            return await channel.declare_exchange(target.exchange, target.exchange_type, durable=True)
        return await channel.get_exchange(target.exchange, ensure=True)
    except BaseException:
        await channel.close()
        raise


class AmqpSender(BrokerSender):
    kind = "amqp"

    def __init__(self, context: TargetContext) -> None:
        super().__init__(context)
        for broker in self.brokers.values():
            if not is_url(option(broker, "url", str), "amqp", "amqps"):
                raise SettingMissing.of(broker, "url must start with amqp:// or amqps://")
        self._connections = Connections(self._open, _close)

    async def _open(self, broker: Broker) -> AmqpConnection:
        import aio_pika
        from yarl import URL

        url = URL(option(broker, "url", str))
        if "password" in broker.options:
            url = url.with_password(option(broker, "password", str))
        properties: FieldTable = {"connection_name": f"everbeat {self.node_name}"}
        return AmqpConnection(await aio_pika.connect(url, timeout=CONNECT_SECONDS, client_properties=properties))

    async def send(self, broker: Broker, task: DeliveryTask) -> Confirmation:
        target = task.target
        assert isinstance(target, AmqpTarget)
        connection = await self._connections.get(broker)
        if connection.is_lost:
            await self._connections.drop(broker, connection)
            connection = await self._connections.get(broker)
        exchange = await connection.exchange(target)
        await exchange.publish(_message(task, target), target.routing_key, mandatory=True, timeout=CONFIRM_SECONDS)
        return Confirmation(task.message_id, {"exchange": target.exchange, "routing_key": target.routing_key})

    def failure(self, broker: Broker, error: Exception) -> RetryDelivery | Refused:
        from aio_pika.exceptions import CONNECTION_EXCEPTIONS, AMQPChannelError, DeliveryError, PublishError

        if isinstance(error, PublishError):
            return misconfigured(broker, "no queue is bound for this exchange and routing key", "unroutable")
        if isinstance(error, DeliveryError):
            return misconfigured(broker, "the broker has rejected the message (nack)", "nack")
        if isinstance(error, AMQPChannelError):
            return misconfigured(broker, error, "channel")
        return unavailable(broker, error) if isinstance(error, CONNECTION_EXCEPTIONS) else super().failure(broker, error)

    async def close(self) -> None:
        await self._connections.close()


def _message(task: DeliveryTask, target: AmqpTarget) -> AbstractMessage:
    from aio_pika import DeliveryMode, Message

    return Message(
        task.payload,
        headers={**target.headers, **message_headers(task)},
        content_type="application/json",
        delivery_mode=DeliveryMode.PERSISTENT if target.persistent else DeliveryMode.NOT_PERSISTENT,
        priority=target.priority,
        expiration=target.expiration_seconds,
        message_id=task.message_id,
        type=task.type,
        app_id="everbeat",
    )


async def _close(connection: AmqpConnection) -> None:
    await connection.connection.close()
