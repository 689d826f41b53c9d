"""A fake server, and workers on it that are stopped at the end of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from everbeat.client.registry import Registry, TaskDefinition
from everbeat.worker.runtime import Worker
from tests.support.processes import wait_until_async
from tests.worker.fakes import FakeServer, FakeTask, FakeTransport, ThreadedTransport, registry_of


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def logs() -> LogCapture:
    """Captures log entries instead of printing them."""
    return LogCapture()


@pytest.fixture(autouse=True)
def _capture_logs(logs: LogCapture) -> Any:
    config = structlog.get_config()
    structlog.configure(processors=[logs], cache_logger_on_first_use=False)
    yield
    structlog.configure(**config)


class Workers:
    """Starts workers for the given handlers, and stops them."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.made: list[Worker] = []

    async def start(
        self,
        *handlers: TaskDefinition | Callable[..., Any],
        registry: Registry | None = None,
        transport: FakeTransport | None = None,
        **options: Any,
    ) -> Worker:
        registry = registry_of(*handlers) if registry is None else registry
        worker = Worker(registry, transport or ThreadedTransport(self.server), **options)
        await worker.start()
        self.made.append(worker)
        return worker

    async def until_started(self, count: int = 1) -> None:
        """Wait until `count` handlers run. The server counts tasks as running before their worker has received them."""
        await wait_until_async(lambda: sum(len(worker._runners.running) for worker in self.made) == count)

    async def until_ended(self, *tasks: FakeTask, seconds: float = 10.0) -> None:
        await wait_until_async(
            lambda: all(task.state not in ("ready", "running") for task in tasks or self.server.tasks.values()),
            seconds,
            lambda: f"all ended: {self.server.states()}",
        )

    async def run_one(self, handler: TaskDefinition | Callable[..., Any], payload: Any = None, **options: Any) -> FakeTask:
        task = self.server.submit(payload=payload, **options)
        await self.start(handler)
        await self.until_ended(task)
        return task


@pytest.fixture
async def workers(server: FakeServer) -> AsyncIterator[Workers]:
    workers = Workers(server)
    yield workers
    await asyncio.gather(*(worker.stop(0) for worker in workers.made))


@pytest.fixture(params=["own connection", "in process"])
def transport(request: pytest.FixtureRequest, server: FakeServer) -> FakeTransport:
    return ThreadedTransport(server) if request.param == "own connection" else FakeTransport(server)
