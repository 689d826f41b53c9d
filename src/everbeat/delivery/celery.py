"""Celery: one `send_task` per task, through the broker of the user's Celery application, so that its workers run it unchanged.

The id of the Celery task is the id of the Everbeat task, for all attempts. Celery does not remove duplicates: a task that is
sent again is a second message with the same id, and the handler has to be idempotent, as with `acks_late`.

In the mode `sync`, the task is completed when the broker has confirmed the message: RabbitMQ by a publisher confirm, Redis and
SQS by their reply. Everbeat then knows nothing of what the Celery worker does. In the mode `callback`, the message carries a
callback URL and a token, and the Celery worker reports the end with `everbeat.contrib.celery`; until then the task is running.

The payload becomes the arguments: `{"args": […], "kwargs": {…}}`, another object as keyword arguments, an array as positional
arguments, and any other value except null as one argument.

kombu blocks, so each connection has a few threads. A thread is never blocked for longer than its socket timeouts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from everbeat.core.broker_targets import CeleryTarget
from everbeat.core.brokers import Broker
from everbeat.core.deliveries import DeliveryResponse, DeliveryTask, message_headers
from everbeat.delivery.base import (
    Accepted,
    Delivered,
    ExtraMissing,
    Refused,
    RetryDelivery,
    SettingMissing,
    Target,
    TargetContext,
    option,
)
from everbeat.delivery.brokers import (
    CONFIRM_SECONDS,
    CONNECT_SECONDS,
    BrokerSender,
    Confirmation,
    Connections,
    misconfigured,
    refused,
    unavailable,
)

MAX_THREADS = 8
MODES = ("sync", "callback")


class Unroutable(Exception):
    """RabbitMQ has returned the message: no queue is bound for it."""


class NoCallback(Exception):
    """The target has the mode `callback`, but this server has no address for callbacks."""


class CeleryArguments(NamedTuple):
    args: list[Any]
    kwargs: dict[str, Any]


def make_target(context: TargetContext) -> Target:
    try:
        import celery  # noqa: F401
    except ImportError:
        raise ExtraMissing("celery", "celery") from None
    return CelerySender(context)


def celery_arguments(payload: bytes) -> CeleryArguments:
    """Return the arguments of a Celery task for a payload."""
    value = json.loads(payload)
    if isinstance(value, dict):
        args, kwargs = value.get("args", []), value.get("kwargs", {})
        if value.keys() <= {"args", "kwargs"} and isinstance(args, list) and isinstance(kwargs, dict):
            return CeleryArguments(args, kwargs)
        return CeleryArguments([], value)
    if isinstance(value, list):
        return CeleryArguments(value, {})
    return CeleryArguments([] if value is None else [value], {})


class CeleryConnection:
    """A Celery application that only sends, and the threads in which it does. Each thread has a connection of its own."""

    def __init__(self, broker: Broker, node_name: str) -> None:
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix=f"everbeat-celery-{broker.name}")
        self._declares = option(broker, "declare_queues", bool, True)
        self._queue_arguments = option(broker, "queue_arguments", dict, {})
        self._app = _make_app(broker, node_name)
        self._producers: dict[int, Any] = {}

    async def send(self, target: CeleryTarget, arguments: CeleryArguments, **options: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, self._send, target, arguments, options)

    def _send(self, target: CeleryTarget, arguments: CeleryArguments, options: dict[str, Any]) -> None:
        thread = threading.get_ident()
        returned: list[Any] = []
        try:
            producer = self._producers.get(thread)
            if producer is None:
                producer = self._producers[thread] = self._app.amqp.Producer(
                    self._app.connection_for_write(), auto_declare=False
                )
            if hasattr(producer.channel, "events"):  # RabbitMQ reports an unroutable message before it confirms it
                producer.channel.events["basic_return"] = {lambda *details: returned.append(details)}
            self._app.send_task(
                target.task,
                *arguments,
                **self._route(target),
                **options,
                producer=producer,
                priority=target.priority,
                expires=target.expires_seconds,
                mandatory=True,
                confirm_timeout=CONFIRM_SECONDS,
                retry=False,
            )
        except BaseException:
            # After an error the state of the channel is unknown: the next task of this thread connects again.
            if (producer := self._producers.pop(thread, None)) is not None:
                _close(producer)
            raise
        if returned:
            raise Unroutable

    def _route(self, target: CeleryTarget) -> dict[str, Any]:
        from kombu import Exchange, Queue

        if target.exchange is not None:
            return {"exchange": target.exchange, "routing_key": target.routing_key or "", "declare": []}
        exchange = Exchange(target.queue, "direct")
        queue = Queue(target.queue, exchange, target.routing_key or target.queue, queue_arguments=self._queue_arguments or None)
        return {"queue": queue, "declare": [queue] if self._declares else []}

    async def close(self) -> None:
        # The threads end with their socket timeouts, if a broker hangs.
        self._threads.shutdown(wait=False, cancel_futures=True)
        producers, self._producers = list(self._producers.values()), {}
        for producer in producers:
            await asyncio.to_thread(_close, producer)


def _close(producer: Any) -> None:
    with contextlib.suppress(Exception):
        producer.connection.collect()  # without the closing handshake, for which a dead broker would be waited for


def _make_app(broker: Broker, node_name: str) -> Any:
    from celery import Celery

    app = Celery(f"everbeat-{node_name}", set_as_current=False, autofinalize=False)
    app.conf.update(
        broker_url=option(broker, "url", str),
        broker_connection_timeout=CONNECT_SECONDS,
        broker_transport_options={
            **_transport_options(option(broker, "url", str)),
            **option(broker, "transport_options", dict, {}),
            # One attempt to connect per delivery; otherwise kombu would retry for ever.
            **{"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0},
        },
        result_backend=None,
        task_serializer="json",
        task_ignore_result=True,
        worker_hijack_root_logger=False,
    )
    if "password" in broker.options:
        app.conf.broker_url = _with_password(option(broker, "url", str), option(broker, "password", str))
    return app


def _transport_options(url: str) -> dict[str, Any]:
    if url.startswith(("amqp", "pyamqp")):
        return {"confirm_publish": True, "read_timeout": CONFIRM_SECONDS, "write_timeout": CONFIRM_SECONDS}
    if url.startswith(("redis", "rediss")):
        return {"socket_timeout": CONFIRM_SECONDS, "socket_connect_timeout": CONNECT_SECONDS}
    return {}


def _with_password(url: str, password: str) -> str:
    from urllib.parse import quote, urlsplit

    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user.partition(':')[0] if at else ''}:{quote(password, safe='')}@{host}").geturl()


class CelerySender(BrokerSender):
    kind = "celery"
    max_concurrent = 4 * MAX_THREADS

    def __init__(self, context: TargetContext) -> None:
        super().__init__(context)
        for broker in self.brokers.values():
            if "://" not in option(broker, "url", str):
                raise SettingMissing.of(broker, "url must be a broker URL of Celery, such as redis:// or amqp://")
            if option(broker, "mode", str, "sync") not in MODES:
                raise SettingMissing.of(broker, "mode must be sync or callback")
            for name in ("transport_options", "queue_arguments"):
                option(broker, name, dict, {})
            option(broker, "declare_queues", bool, True)
        self._connections = Connections(self._open, CeleryConnection.close)

    async def _open(self, broker: Broker) -> CeleryConnection:
        return await asyncio.to_thread(CeleryConnection, broker, self.node_name)

    async def send(self, broker: Broker, task: DeliveryTask) -> Confirmation:
        target = task.target
        assert isinstance(target, CeleryTarget)
        headers = {**target.headers, **message_headers(task)}
        if _mode(broker, target) == "callback":
            if task.callback_url is None or task.callback_token is None:
                raise NoCallback
            headers |= {"everbeat-callback-url": task.callback_url, "everbeat-callback-token": task.callback_token}
        connection = await self._connections.get(broker)
        await connection.send(target, celery_arguments(task.payload), task_id=task.message_id, headers=headers)
        return Confirmation(task.message_id, {"task": target.task, "queue": target.queue})

    def outcome(self, broker: Broker, task: DeliveryTask, response: DeliveryResponse) -> Delivered | Accepted:
        assert isinstance(task.target, CeleryTarget)
        if _mode(broker, task.target) == "callback":
            return Accepted(None, response)
        return super().outcome(broker, task, response)

    def failure(self, broker: Broker, error: Exception) -> RetryDelivery | Refused:
        from amqp.exceptions import AMQPError, ChannelError
        from kombu.exceptions import EncodeError, OperationalError

        if isinstance(error, NoCallback):
            return misconfigured(broker, "the mode callback needs the setting public_url of the server", "callback")
        if isinstance(error, Unroutable):
            return misconfigured(broker, "no queue is bound for this message", "unroutable")
        if isinstance(error, EncodeError):
            return refused(broker, error)
        if isinstance(error, ChannelError):
            return misconfigured(broker, error, "channel")
        if isinstance(error, (AMQPError, OperationalError)):
            return unavailable(broker, error)
        return super().failure(broker, error)

    async def close(self) -> None:
        await self._connections.close()


def _mode(broker: Broker, target: CeleryTarget) -> str:
    return target.mode or option(broker, "mode", str, "sync")
