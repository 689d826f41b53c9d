"""What the targets at message brokers have in common: connections, confirmations, and errors without secrets.

A message is sent until the broker has confirmed it, always with the same message id. So a message can arrive more than once if
a confirmation is lost, or if the node ends between the confirmation and recording it. The module of each kind says what removes
the duplicate. There is one connection per [brokers.NAME] table. It is opened on first use, and opened again after it was lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from everbeat.core.brokers import Broker
from everbeat.core.deliveries import DeliveryResponse, DeliveryTask
from everbeat.delivery.base import Accepted, Delivered, DeliveryOutcome, Refused, RetryDelivery, Target, TargetContext

MAX_ERROR_CHARACTERS = 500
CONNECT_SECONDS = 10.0
# Shorter than Target.timeout_seconds, so that the error of the client is recorded and not only a timeout.
CONFIRM_SECONDS = 20.0

_SECRET_ENDINGS = ("password", "passphrase", "secret", "token", "key", "seed")

C = TypeVar("C")


class Confirmation(NamedTuple):
    """The broker has stored the message. `message_id`: the id that the broker gave it. `detail`: kept with the attempt."""

    message_id: str | None = None
    detail: Mapping[str, Any] = MappingProxyType({})


class BrokerSender(Target):
    """Base class of the targets at brokers. A subclass implements `send` and `failure`."""

    def __init__(self, context: TargetContext) -> None:
        self.brokers: Mapping[str, Broker] = context.brokers
        self.node_name = context.node_name

    async def deliver(self, task: DeliveryTask) -> DeliveryOutcome:
        name: str = getattr(task.target, "broker", "")
        broker = self.brokers.get(name)
        if broker is None:
            why = f'no broker named "{name}" of the kind {self.kind} is configured on this node'
            return RetryDelivery(None, why, "broker", blames_destination=False)
        started = time.perf_counter()
        try:
            confirmed = await self.send(broker, task)
        except Exception as error:
            return self.failure(broker, error)
        duration_ms = (time.perf_counter() - started) * 1000
        detail = {name: value for name, value in confirmed.detail.items() if value is not None}
        response = DeliveryResponse(duration_ms=round(duration_ms, 3), message_id=confirmed.message_id, detail=detail)
        return self.outcome(broker, task, response)

    async def send(self, broker: Broker, task: DeliveryTask) -> Confirmation:
        """Send the message and wait for the confirmation of the broker. Raises an exception if there is none."""
        raise NotImplementedError

    def outcome(self, broker: Broker, task: DeliveryTask, response: DeliveryResponse) -> Delivered | Accepted:
        """Return the outcome of a message that the broker has confirmed."""
        return Delivered(response=response)

    def failure(self, broker: Broker, error: Exception) -> RetryDelivery | Refused:
        """Return the outcome of a message that was not confirmed. Errors of the connection count as failures of the broker."""
        if isinstance(error, (OSError, EOFError)):
            return unavailable(broker, error)
        return misconfigured(broker, f"{type(error).__name__}: {error}", "error")


def unavailable(broker: Broker, error: Exception | str, kind: str = "connection") -> RetryDelivery:
    """Return the outcome of a failure of the broker."""
    return RetryDelivery(None, error_text(broker, error), kind)


def misconfigured(broker: Broker, error: Exception | str, kind: str) -> RetryDelivery:
    """Return the outcome of a failure that only affects this target, such as a missing topic. An operator can correct it."""
    return RetryDelivery(None, error_text(broker, error), kind, blames_destination=False)


def refused(broker: Broker, error: Exception | str, kind: str = "refused") -> Refused:
    return Refused(error_text(broker, error), kind)


def error_text(broker: Broker, error: Exception | str) -> str:
    """Return the text of an error, with the name of the connection and without the secrets of its options."""
    text = str(error) or type(error).__name__
    for secret in secrets_of(broker):
        text = text.replace(secret, "***")
    return f"broker {broker.name}: {text}"[:MAX_ERROR_CHARACTERS]


def secrets_of(broker: Broker) -> list[str]:
    """Return the secret values in the options of a connection, the longest first."""
    found: set[str] = set()
    for name, value in broker.options.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                found |= {text} if name.endswith(_SECRET_ENDINGS) else _secrets_of_url(text)
    return sorted((text for text in found if text), key=len, reverse=True)


def _secrets_of_url(text: str) -> set[str]:
    if "://" not in text or "@" not in text:
        return set()
    credentials = text.partition("://")[2].rpartition("@")[0]
    user, _, password = credentials.partition(":")
    # A NATS URL may have a token in place of a user name and a password.
    secret = password or user
    return {text, credentials, secret, unquote(secret)}


def is_url(text: str, *schemes: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in schemes and (bool(parts.hostname) or parts.scheme == "unix")
    except ValueError:
        return False


class Connections(Generic[C]):
    """The open connections of one kind, by the names of their tables. Concurrent deliveries share one connection attempt."""

    def __init__(self, open_: Callable[[Broker], Awaitable[C]], close: Callable[[C], Awaitable[None]]) -> None:
        self._open = open_
        self._close = close
        self._opening: dict[str, asyncio.Task[C]] = {}

    async def get(self, broker: Broker) -> C:
        opening = self._opening.get(broker.name)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            opening = self._opening[broker.name] = asyncio.create_task(self._open_in_time(broker))
        # One delivery that is cancelled must not cancel the connection attempt of the others.
        return await asyncio.shield(opening)

    async def _open_in_time(self, broker: Broker) -> C:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._open(broker)
        except TimeoutError:
            raise ConnectionError(f"no connection within {CONNECT_SECONDS:g} s") from None

    async def drop(self, broker: Broker, connection: C) -> None:
        """Close a connection that failed, so that the next delivery opens another one."""
        opening = self._opening.get(broker.name)
        if opening is None or not opening.done() or opening.cancelled() or opening.exception() is not None:
            return
        if opening.result() is connection:
            del self._opening[broker.name]
            await self._close(connection)

    async def close(self) -> None:
        opening, self._opening = list(self._opening.values()), {}
        for one in opening:
            one.cancel()
        for found in await asyncio.gather(*opening, return_exceptions=True):
            if not isinstance(found, BaseException):
                await self._close(found)
