"""A dispatcher node for tests: its deliverer delivers to a target that the test scripts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar
from uuid import UUID

from everbeat.clock import DatabaseClock
from everbeat.config import Settings
from everbeat.core.brokers import Broker
from everbeat.core.deliveries import DeliveryTask
from everbeat.core.protocol import TaskInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.targets import CustomTarget
from everbeat.core.tasks import TaskRecord
from everbeat.core.tracing import TaskSpan
from everbeat.delivery.base import Delivered, DeliveryOutcome, Target, TargetContext
from everbeat.delivery.registry import TargetRegistry
from everbeat.engine import Engine
from everbeat.services.events import Event, ignore
from everbeat.services.loops import LoopMonitor, LoopRunner
from everbeat.store.base import Store

E = TypeVar("E")
Behavior = Callable[[DeliveryTask], Awaitable[DeliveryOutcome]]
CONNECTIONS = ("a", "b", "c")


class ScriptedTarget(Target):
    """Delivers to the functions of `behaviors`, by the name of the connection. Deliveries to other connections succeed."""

    kind = "scripted"

    def __init__(self) -> None:
        self.received: list[DeliveryTask] = []
        self.behaviors: dict[str, Behavior] = {}
        self.is_closed = False

    async def deliver(self, task: DeliveryTask) -> DeliveryOutcome:
        self.received.append(task)
        assert isinstance(task.target, CustomTarget)
        behavior = self.behaviors.get(task.target.broker or "")
        return Delivered() if behavior is None else await behavior(task)

    async def close(self) -> None:
        self.is_closed = True


class DispatcherNode:
    def __init__(self, store: Store, **settings: Any) -> None:
        self.events: list[Event] = []
        self.spans: list[TaskSpan] = []
        self.target = ScriptedTarget()
        brokers = {name: Broker(name=name, kind="scripted") for name in CONNECTIONS}

        def make_target(_context: TargetContext) -> Target:
            return self.target

        self.engine = Engine(
            store,
            DatabaseClock(),
            Settings(brokers=brokers, **settings),
            emit=self.events.append,
            registry=TargetRegistry(brokers, extra={"scripted": make_target}),
            export_span=self.spans.append,
        )
        self.store = store
        self.deliverer = self.engine.deliverer

    async def submit(self, to: str = "a", *, tenant_id: UUID = DEFAULT_TENANT, **more: Any) -> TaskRecord:
        target = CustomTarget(name="scripted", broker=to)
        return (await self.engine.tasks.submit(tenant_id, TaskInput(type="work", target=target, **more)))[0]

    def events_of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    async def get(self, task: TaskRecord) -> TaskRecord:
        return await self.engine.tasks.get(task.tenant_id, task.id)

    def running(self) -> contextlib.AbstractAsyncContextManager[None]:
        return run_dispatcher(self.engine)

    async def ended(self, task: TaskRecord) -> TaskRecord:
        """Wait until the task is finished, and return it."""
        await wait_until(lambda: self._is_finished(task))
        return await self.get(task)

    async def _is_finished(self, task: TaskRecord) -> bool:
        return (await self.get(task)).finished_at is not None


@contextlib.asynccontextmanager
async def run_dispatcher(engine: Engine) -> AsyncIterator[None]:
    """Run the loops of a dispatcher, as a server does."""
    monitor = LoopMonitor()
    loops = (engine.deliverer, engine.promoter, engine.reaper)
    runners = [LoopRunner(loop, ignore, monitor) for loop in loops]
    try:
        yield
    finally:
        await asyncio.gather(*(runner.stop(2) for runner in runners))
        await engine.deliverer.stop(0.05)


async def wait_until(condition: Callable[[], Awaitable[bool]], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.01)
