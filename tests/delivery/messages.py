"""What the tests of the targets at brokers share: tasks to deliver, a small deliverer, and what consumers have received."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from everbeat.core.brokers import Broker
from everbeat.core.deliveries import DeliveryTask
from everbeat.core.targets import Target as TaskTarget
from everbeat.core.tasks import Origin
from everbeat.delivery.base import Delivered, DeliveryOutcome, RetryDelivery, Target, TargetContext
from everbeat.delivery.registry import TargetRegistry

SCHEDULED_FOR = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


class Received(NamedTuple):
    """One message, as a consumer got it. `number`: the number of the task, from the payload."""

    message_id: str
    number: int
    headers: Mapping[str, str]


def broker_of(kind: str, name: str = "main", **options: Any) -> Broker:
    return Broker(name=name, kind=kind, options=options)


def target_of(broker: Broker) -> Target:
    """Make the target of the kind of a connection as a node does."""
    return TargetRegistry({broker.name: broker}, node_name="n1").target(broker.kind)


def make_task(target: TaskTarget, number: int = 1, **fields: Any) -> DeliveryTask:
    values: dict[str, Any] = {
        "id": uuid4(),
        "tenant_id": UUID(int=1),
        "target": target,
        "type": "report",
        "payload": json.dumps({"number": number, "text": "Grüße"}).encode(),
        "attempt": 1,
        "max_attempts": 3,
        "fence": 7,
        "schedule": "nightly",
        "schedule_id": UUID(int=2),
        "scheduled_for": SCHEDULED_FOR,
        "origin": Origin.TICK,
        "timeout_seconds": 30.0,
    }
    return DeliveryTask(**(values | fields))


HEADERS = {
    "everbeat-type": "report",
    "everbeat-attempt": "1",
    "everbeat-fence": "7",
    "everbeat-origin": "tick",
    "everbeat-schedule": "nightly",
    "everbeat-scheduled-for": "2030-01-02T03:04:05.000000Z",
}


def assert_arrived(received: Iterable[Received], task: DeliveryTask) -> None:
    """Assert that exactly this task has arrived, with all its headers."""
    (message,) = received
    expected = {**HEADERS, "everbeat-task": str(task.id)}
    assert (message.message_id, message.number) == (str(task.id), json.loads(task.payload)["number"])
    assert {name: value for name, value in message.headers.items() if name in expected} == expected


def delivered(outcome: DeliveryOutcome) -> Delivered:
    assert isinstance(outcome, Delivered), outcome
    return outcome


def retried(outcome: DeliveryOutcome) -> RetryDelivery:
    assert isinstance(outcome, RetryDelivery), outcome
    return outcome


class Load:
    """Delivers numbered tasks with some concurrency, each until the target has confirmed it, like the deliverer."""

    def __init__(self, target: Target, tasks: list[DeliveryTask], *, concurrency: int = 20) -> None:
        self.confirmed: set[UUID] = set()
        self.failures: Counter[str] = Counter()
        self._target = target
        self._waiting = list(reversed(tasks))
        self._concurrency = concurrency
        self._some = asyncio.Event()
        self._some_count = len(tasks) // 5

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._run_one())

    async def some_are_confirmed(self) -> None:
        """Wait until a fifth of the tasks has been confirmed."""
        await self._some.wait()

    async def _run_one(self) -> None:
        while self._waiting:
            task = self._waiting.pop()
            while not isinstance(outcome := await self._deliver(task), Delivered):
                failed = retried(outcome)
                assert failed.blames_destination, failed
                self.failures[failed.kind] += 1
                await asyncio.sleep(0.05)
            self.confirmed.add(task.id)
            if len(self.confirmed) >= self._some_count:
                self._some.set()

    async def _deliver(self, task: DeliveryTask) -> DeliveryOutcome:
        try:
            async with asyncio.timeout(self._target.timeout_seconds):
                return await self._target.deliver(task)
        except TimeoutError:
            return RetryDelivery(None, "timeout", "timeout")


def assert_nothing_lost(tasks: list[DeliveryTask], received: Iterable[Received]) -> Counter[str]:
    """Assert that every task has arrived, and that every duplicate has the message id of its task. Return the duplicates."""
    number_of = {str(task.id): json.loads(task.payload)["number"] for task in tasks}
    counts = Counter(message.message_id for message in received)
    assert {message.message_id: message.number for message in received}.items() <= number_of.items()
    assert set(number_of) - set(counts) == set()
    return Counter({message_id: count - 1 for message_id, count in counts.items() if count > 1})


def context_of(*brokers: Broker) -> TargetContext:
    return TargetContext({broker.name: broker for broker in brokers}, "n1")
