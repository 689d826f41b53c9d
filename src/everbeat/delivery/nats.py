"""NATS JetStream: one publish per task. The PubAck of the stream is the confirmation; core NATS is not enough.

The message carries the header `Nats-Msg-Id` with the message id. The stream removes a duplicate that arrives within its
duplicate window (`duplicate_window`, two minutes by default), and its PubAck says so: the attempt is recorded with
`duplicate: true`. A consumer of the stream therefore gets one message, unless the second one is sent after the window, for
example because NATS was unavailable for longer. Set a longer window if that matters, or let the consumer compare the header.

A subject that no stream stores has no PubAck, so the delivery fails: the stream must exist before the first task.

When the connection is lost, the deliveries without a PubAck fail at once, and the next delivery connects again. Nothing is
buffered in the client meanwhile: the retries of the task are the only ones.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everbeat.core.broker_targets import NatsTarget
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
    from nats.js.api import PubAck

SCHEMES = ("nats", "tls", "ws", "wss")
# Error codes of JetStream: the stream is another one than expected; the message is too large for it.
_WRONG_STREAM, _TOO_LARGE = 10060, 10054


def make_target(context: TargetContext) -> Target:
    try:
        import nats  # noqa: F401
    except ImportError:
        raise ExtraMissing("nats", "nats") from None
    return NatsSender(context)


class NatsConnection:
    """A connection to one server. `lost` ends when it is closed; `last_error` is what the server reported asynchronously."""

    def __init__(self) -> None:
        from nats.aio.client import Client

        self.client = Client()
        self.stream = self.client.jetstream(timeout=CONFIRM_SECONDS)
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last_error: Exception | None = None

    async def on_closed(self) -> None:
        if not self.lost.done():
            self.lost.set_result(None)

    async def on_error(self, error: Exception) -> None:
        self.last_error = error

    async def publish(self, subject: str, payload: bytes, stream: str | None, headers: dict[str, Any]) -> PubAck:
        publish = asyncio.ensure_future(self.stream.publish(subject, payload, stream=stream, headers=headers))
        try:
            await asyncio.wait((publish, self.lost), return_when=asyncio.FIRST_COMPLETED)
            if not publish.done():
                raise ConnectionError("the connection was lost before the confirmation")
        finally:
            publish.cancel()
        return publish.result()


class NatsSender(BrokerSender):
    kind = "nats"

    def __init__(self, context: TargetContext) -> None:
        super().__init__(context)
        for broker in self.brokers.values():
            if not all(is_url(url, *SCHEMES) for url in _servers(broker)):
                raise SettingMissing.of(broker, "url must be one or more URLs that start with nats://, tls://, ws:// or wss://")
            if "credentials" in broker.options and not Path(option(broker, "credentials", str)).is_file():
                raise SettingMissing.of(broker, "credentials must be the path of a file")
        self._connections = Connections(self._open, _close)

    async def _open(self, broker: Broker) -> NatsConnection:
        from nats.errors import NoServersError

        connection = NatsConnection()
        options: dict[str, Any] = {
            name: broker.options[name] for name in ("user", "password", "token") if name in broker.options
        }
        if "credentials" in broker.options:
            options["user_credentials"] = broker.options["credentials"]
        try:
            await connection.client.connect(
                _servers(broker),
                name=f"everbeat {self.node_name}",
                error_cb=connection.on_error,  # the default callback logs; the outcome of each attempt says the same
                closed_cb=connection.on_closed,
                allow_reconnect=False,
                connect_timeout=int(CONNECT_SECONDS / 2),
                reconnect_time_wait=0,
                max_reconnect_attempts=1,
                **options,
            )
        except NoServersError:
            raise ConnectionError(str(connection.last_error or "no server is available")) from None
        return connection

    async def send(self, broker: Broker, task: DeliveryTask) -> Confirmation:
        from nats.errors import TimeoutError as NoReply

        target = task.target
        assert isinstance(target, NatsTarget)
        connection = await self._connections.get(broker)
        if connection.lost.done():
            await self._connections.drop(broker, connection)
            connection = await self._connections.get(broker)
        headers = {**target.headers, **message_headers(task), "Nats-Msg-Id": task.message_id}
        try:
            ack = await connection.publish(target.subject, task.payload, target.stream, headers)
        except NoReply:
            raise ConnectionError(f"no confirmation within {CONFIRM_SECONDS:g} s; {connection.last_error or ''}") from None
        return Confirmation(str(ack.seq), {"stream": ack.stream, "duplicate": ack.duplicate})

    def failure(self, broker: Broker, error: Exception) -> RetryDelivery | Refused:
        from nats.errors import Error, MaxPayloadError
        from nats.js.errors import APIError, NoStreamResponseError

        if isinstance(error, NoStreamResponseError):
            return misconfigured(broker, "no stream stores this subject", "no_stream")
        if isinstance(error, MaxPayloadError) or (isinstance(error, APIError) and error.err_code == _TOO_LARGE):
            return refused(broker, error, "too_large")
        if isinstance(error, APIError):
            kind = "wrong_stream" if error.err_code == _WRONG_STREAM else "stream"
            return misconfigured(broker, error.description or error, kind)
        return unavailable(broker, error) if isinstance(error, Error) else super().failure(broker, error)

    async def close(self) -> None:
        await self._connections.close()


def _servers(broker: Broker) -> list[str]:
    return [one.strip() for one in option(broker, "url", str).split(",")]


async def _close(connection: NatsConnection) -> None:
    await connection.client.close()
