"""The Target contract: how one kind of target delivers a task. One implementation per kind, each in a module of its own.

The deliverer (services/deliverer.py) claims the tasks, enforces the timeout, limits the concurrency per destination, and
records the outcome. A target only sends: it holds no database connection, and is called outside of any transaction.

A delivery is `Delivered` only if the destination has confirmed it. What is not confirmed is sent again, with the same message
id (`DeliveryTask.message_id`), so that a receiver or a broker can remove the duplicate. Every message carries the headers that
`message_headers` returns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from everbeat.core.brokers import Broker
from everbeat.core.deliveries import DeliveryResponse, DeliveryTask
from everbeat.core.errors import EverbeatError
from everbeat.core.webhook_addresses import PUBLIC_ONLY, WebhookRules


class Delivered(NamedTuple):
    """The destination has confirmed the delivery, and the task is completed. `result`: JSON that is kept as its result."""

    result: Any = None
    response: DeliveryResponse | None = None


class Accepted(NamedTuple):
    """The destination has accepted the task and reports its end later. The task stays running, under the same fence.

    `lease_seconds`: how long it stays running without a heartbeat of the destination. None: until the timeout of the task.
    """

    lease_seconds: float | None = None
    response: DeliveryResponse | None = None


class RetryDelivery(NamedTuple):
    """The delivery failed, and another attempt may succeed.

    `after`: seconds until the next attempt; None: by the retry policy of the task. `why`: the error of the attempt. `kind`: a
    short word for the kind of error. `blames_destination`: whether the destination, not this task, is the cause. Several such
    failures in a row open the circuit breaker of the destination. `hold_seconds`: the destination asked to get nothing for
    this time.
    """

    after: float | None
    why: str
    kind: str = "delivery"
    response: DeliveryResponse | None = None
    blames_destination: bool = True
    hold_seconds: float = 0.0


class Refused(NamedTuple):
    """The delivery failed, and another attempt would fail as well. The task becomes a dead letter.

    `pauses_schedule`: the destination is gone for good, so the schedule of the task is paused, with `why` as the note.
    """

    why: str
    kind: str = "refused"
    response: DeliveryResponse | None = None
    pauses_schedule: bool = False


DeliveryOutcome = Delivered | Accepted | RetryDelivery | Refused


class DestinationLimits(NamedTuple):
    """The limits of one destination. `max_concurrent`: deliveries at a time; `rate_per_second`: None for no limit."""

    max_concurrent: int
    rate_per_second: float | None = None


class Target:
    """One kind of target. There is one instance per node; it is made for the first delivery and closed with the node.

    `max_concurrent`: the default number of concurrent deliveries to one destination. `timeout_seconds`: how long one delivery
    may take; the timeout of the task applies too.
    """

    kind: ClassVar[str]
    max_concurrent: int = 100
    timeout_seconds: float = 30.0

    async def deliver(self, task: DeliveryTask) -> DeliveryOutcome:
        """Send the task and return the outcome.

        It is cancelled at the timeout, and if the task is cancelled or its lease is lost. An exception is recorded as a
        RetryDelivery that does not count as a failure of the destination.
        """
        raise NotImplementedError

    def check(self, options: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with the options of a target of a custom kind, when a schedule or a task names it."""
        return []

    async def close(self) -> None:
        """Close the connections."""


class HttpOptions(NamedTuple):
    """The settings of webhooks. `now`: the time in seconds since 1970, by the clock of the database."""

    rules: WebhookRules = PUBLIC_ONLY
    max_concurrent: int = 100
    timeout_seconds: float = 30.0
    ca_file: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None
    now: Callable[[], float] = time.time


class TargetContext(NamedTuple):
    """What a target gets when it is made. `brokers`: the connections of its kind, by name."""

    brokers: Mapping[str, Broker]
    node_name: str = "everbeat"
    http: HttpOptions = HttpOptions()


TargetFactory = Callable[[TargetContext], Target]


class ExtraMissing(EverbeatError):
    """The packages that a kind of target needs are not installed on this node."""

    def __init__(self, kind: str, extra: str) -> None:
        super().__init__(f'targets of the kind {kind} need packages that are not installed: pip install "everbeat[{extra}]"')


class SettingMissing(EverbeatError):
    """An option of a broker connection is missing or wrong. The message names the connection and the option."""

    @classmethod
    def of(cls, broker: Broker, message: str) -> SettingMissing:
        return cls(f"settings: [brokers.{broker.name}]: {message}")


T = TypeVar("T")


def option(broker: Broker, name: str, type_: type[T], default: T | None = None) -> T:
    """Return an option of a connection. Raises SettingMissing if it has another type, or if it is missing without a default."""
    value = broker.options.get(name, default)
    if value is None:
        raise SettingMissing.of(broker, f"{name} is required")
    if type_ is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, type_):
        raise SettingMissing.of(broker, f"{name} must be of type {type_.__name__}")
    return value
