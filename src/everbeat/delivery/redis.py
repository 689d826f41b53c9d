"""Redis: one XADD per task. The reply of Redis, which is the id of the new entry, is the confirmation.

An entry has the field `payload` (JSON), the field `id` (the message id), and one field for each message header.

Redis does not remove duplicates: a task that is sent again is a second entry with the same `id`. The consumer removes it, for
example with SET NX on the id in the transaction in which it records the effect.

A confirmation is as durable as Redis is configured to be. With `appendonly yes` and `appendfsync always`, an entry is on disk
before the reply. With the default of one fsync per second, a crash of the machine loses up to a second of confirmed entries.
Replication is asynchronous, so a failover can lose confirmed entries as well. Redis Cluster and Sentinel are not supported.

The client does not retry by itself: the retries of the task are the only ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everbeat.core.broker_targets import RedisTarget
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
    refused,
    unavailable,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis

# Replies that concern the stream of this target and not the server.
_OF_THE_TARGET = ("WRONGTYPE", "NOPERM")


def make_target(context: TargetContext) -> Target:
    try:
        import redis.asyncio  # noqa: F401
    except ImportError:
        raise ExtraMissing("redis", "redis") from None
    return RedisSender(context)


class RedisSender(BrokerSender):
    kind = "redis"

    def __init__(self, context: TargetContext) -> None:
        super().__init__(context)
        for broker in self.brokers.values():
            if not is_url(option(broker, "url", str), "redis", "rediss", "unix"):
                raise SettingMissing.of(broker, "url must start with redis://, rediss:// or unix://")
            option(broker, "max_connections", int, 20)
        self._connections = Connections(self._open, _close)

    async def _open(self, broker: Broker) -> Redis:
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        options: dict[str, Any] = {name: broker.options[name] for name in ("username", "password") if name in broker.options}
        pool = BlockingConnectionPool.from_url(
            option(broker, "url", str),
            max_connections=option(broker, "max_connections", int, 20),
            timeout=CONFIRM_SECONDS,
            socket_timeout=CONFIRM_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS,
            client_name="everbeat",
            retry=Retry(NoBackoff(), 0),
            **options,
        )
        return Redis.from_pool(pool)

    async def send(self, broker: Broker, task: DeliveryTask) -> Confirmation:
        target = task.target
        assert isinstance(target, RedisTarget)
        client = await self._connections.get(broker)
        fields: dict[Any, Any] = {"id": task.message_id, "payload": task.payload, **message_headers(task)}
        reply = await client.xadd(target.stream, fields, maxlen=target.maxlen, approximate=target.approximate)
        entry = reply.decode() if isinstance(reply, bytes) else str(reply)
        return Confirmation(entry, {"stream": target.stream})

    def failure(self, broker: Broker, error: Exception) -> RetryDelivery | Refused:
        from redis.exceptions import RedisError, ResponseError

        if isinstance(error, ResponseError) and str(error).startswith(_OF_THE_TARGET):
            return misconfigured(broker, error, "stream")
        if isinstance(error, ResponseError) and "maximum allowed size" in str(error):
            return refused(broker, error, "too_large")
        return unavailable(broker, error) if isinstance(error, RedisError) else super().failure(broker, error)

    async def close(self) -> None:
        await self._connections.close()


async def _close(client: Redis) -> None:
    await client.aclose()
    await client.connection_pool.disconnect()
