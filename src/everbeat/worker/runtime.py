"""The worker: claims tasks, runs their handlers, renews their leases and reports their outcomes until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Sequence
from time import monotonic

from everbeat.client.base import Transport
from everbeat.client.registry import Registry, TaskDefinition
from everbeat.core.protocol import (
    DEFAULT_LEASE_SECONDS,
    DEFAULT_QUEUE,
    MAX_TYPES,
    LeaseClaimRequest,
    LeaseCompletion,
    LeaseHeartbeatRequest,
)
from everbeat.core.tasks import ClaimedTask
from everbeat.core.workers import WorkerState
from everbeat.version import __version__
from everbeat.worker.calls import HandlerCaller, Interrupted, Outcome
from everbeat.worker.claimer import Claimer
from everbeat.worker.heartbeats import HeartbeatThread, TransportFactory
from everbeat.worker.outcomes import cancelled_of, unknown_type_of
from everbeat.worker.prefetch import Prefetch
from everbeat.worker.reports import Reporter
from everbeat.worker.runners import Runners
from everbeat.worker.running_task import RunningTask, RunningTasks, StopReason
from everbeat.worker.telemetry import Stats, WorkerTelemetry

DEFAULT_CONCURRENCY = 50
DEFAULT_GRACE_SECONDS = 30.0
_CHECK_SECONDS = 0.25
_CLEANUP_SECONDS = 2.0
_DRAIN_SECONDS = 5.0
_ANNOUNCE_SECONDS = 0.5
_MAX_UNREPORTED = 4000
_LEASE_LOST = "the server ended the attempt, or another worker has claimed the task"


def new_worker_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


class Worker:
    """Runs the handlers of a registry. The caller opens and closes the transport."""

    def __init__(
        self,
        registry: Registry,
        transport: Transport,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        name: str | None = None,
        grace_seconds: float = DEFAULT_GRACE_SECONDS,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        heartbeat_transport_factory: TransportFactory | None = None,
        types: Sequence[str] | None = None,
    ) -> None:
        self.name = name or new_worker_name()
        self.queues = list(queues) if queues is not None else registry.queues() or [DEFAULT_QUEUE]
        self._registry = registry
        self._transport = transport
        self._types = list(types) if types is not None else sorted(registry.tasks)
        self._concurrency = concurrency
        self._grace_seconds = grace_seconds
        self._lease_seconds = lease_seconds
        self._connect = heartbeat_transport_factory or getattr(transport, "for_thread", None)
        self._telemetry = WorkerTelemetry(self.name)
        self._running_tasks: RunningTasks = {}
        self._prefetch = Prefetch(concurrency, lease_seconds)
        self._claim_below = concurrency
        self._is_stopping = False
        self._is_stopped = asyncio.Event()
        self._all_ended = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def stats(self) -> Stats:
        return self._telemetry.stats

    async def start(self) -> None:
        """Start claiming. Call `run` or `stop` next. Does nothing after `stop`."""
        if self._is_stopping:
            return
        loop = asyncio.get_running_loop()
        caller = HandlerCaller(self._registry, self.name, self._telemetry, loop)
        self._runners = Runners(
            caller, self._concurrency, loop, self._telemetry, finish=self._finished, on_capacity_freed=self._capacity_freed
        )
        self._reporter = Reporter(
            self._transport,
            self.name,
            self._running_tasks,
            self._telemetry,
            lambda: bool(self._runners.ready),
            self._capacity_freed,
        )
        self._heartbeats = HeartbeatThread(
            self.name,
            self._running_tasks,
            self._telemetry,
            self._transport,
            self._connect,
            lease_seconds=self._lease_seconds,
            on_stop=self._on_stop_requested,
        )
        if (servers := getattr(self._transport, "servers", None)) is not None:
            servers.reports_outages = False  # the worker logs them itself
        types = self._types if len(self._types) <= MAX_TYPES else None
        claim = LeaseClaimRequest(
            worker=self.name,
            queues=self.queues,
            types=types,
            lease_seconds=self._lease_seconds,
            concurrency=self._concurrency,
            version=__version__,
        )
        self._claimer = Claimer(
            self._transport, claim, self._telemetry, count_to_claim=self._count_to_claim, receive=self._received
        )
        self._heartbeats.start()
        self._tasks = [self._claimer.start(), loop.create_task(self._check_periodically())]
        server = getattr(self._transport, "url", "in this process")
        self._telemetry.started(queues=self.queues, types=len(self._types), concurrency=self._concurrency, server=server)

    async def run(self) -> None:
        """Start if not started, and run until `stop`. Raises if the server permanently rejects the claims of this worker."""
        if not self._tasks:
            await self.start()
        stopped = asyncio.create_task(self._is_stopped.wait())
        await asyncio.wait({stopped, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        if not self._is_stopping:
            await self.stop()
        await stopped
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def stop(self, grace_seconds: float | None = None) -> None:
        """Stop claiming and release tasks that have not started. Running tasks are released after the grace period."""
        if self._is_stopping:
            await self._is_stopped.wait()
            return
        self._is_stopping = True
        if not self._tasks:  # never started; `start` does nothing from now on
            self._is_stopped.set()
            return
        grace = self._grace_seconds if grace_seconds is None else grace_seconds
        self._telemetry.stopping(running=len(self._runners.running), grace_seconds=grace)
        try:
            # Stop the claimer first, so that its poll cannot claim the released tasks again.
            await self._claimer.stop()
            await self._announce(WorkerState.STOPPING)
            self._release(self._runners.take_ready())
            await self._wait_until_ended(grace)
            await self._interrupt_remaining()
            await self._reporter.drain(_DRAIN_SECONDS)
            await self._announce(WorkerState.GONE)
        finally:
            self._tasks[1].cancel()
            self._runners.close()
            await self._heartbeats.stop()
            self._telemetry.stopped()
            self._is_stopped.set()

    def release_all_leases(self, seconds: float) -> None:
        """Release all leases before the process exits. Blocks. Can be called from any thread."""
        self._heartbeats.release_all_leases(seconds)

    # Claimed tasks

    def _count_to_claim(self) -> int:
        if self._reporter.backlog > _MAX_UNREPORTED:
            return 0
        task_count = self._runners.task_count
        self._prefetch.sample(task_count, monotonic())
        self._claim_below = self._prefetch.claim_below
        return self._prefetch.to_claim(task_count)

    def _received(self, tasks: list[ClaimedTask], sent_at: float) -> None:
        now = monotonic()
        self._telemetry.stats.claimed += len(tasks)
        self._prefetch.received(min(task.timeout_seconds for task in tasks), now)
        definitions = self._registry.tasks
        received = []
        for task in tasks:
            running_task = RunningTask(task, definitions.get(task.type, _UNKNOWN), sent_at, now)
            previous = self._running_tasks.get(running_task.key)
            if previous is not None and not previous.is_finished and previous.request_stop(StopReason.LOST):
                self._on_stop_requested(previous)
            self._running_tasks[running_task.key] = running_task
            received.append(running_task)
        self._start_or_release(received, now)

    def _start_or_release(self, received: list[RunningTask], now: float) -> None:
        if self._is_stopping or received[0].lease_valid_until <= now:
            self._release(received)
            return
        unknown = [running_task for running_task in received if running_task.definition is _UNKNOWN]
        for running_task in unknown:
            running_task.is_finished = True
            self._reporter.fail(running_task, unknown_type_of(running_task.task))
        self._runners.put(running_task for running_task in received if running_task.definition is not _UNKNOWN)

    # Ended tasks

    def _finished(self, running_task: RunningTask, outcome: Outcome) -> None:
        running_task.is_finished = True
        self._prefetch.finished()
        if isinstance(outcome, LeaseCompletion):
            if running_task.stop is StopReason.LOST:
                self._drop(running_task, _LEASE_LOST)
            else:
                # Even if the lease may have expired: the work is done, and the server checks the fence.
                self._reporter.complete(running_task, outcome)
        elif running_task.stop is StopReason.LOST:
            self._drop(running_task, _LEASE_LOST)
        elif running_task.stop is StopReason.EXPIRED:
            self._drop(running_task, "its lease may have expired while the server was unreachable")
        elif running_task.stop is StopReason.SHUTDOWN:
            self._reporter.release([running_task])
        elif isinstance(outcome, Interrupted):
            self._reporter.fail(running_task, cancelled_of(running_task.task, outcome.trace))
        else:
            self._reporter.fail(running_task, outcome)

    def _capacity_freed(self) -> None:
        if self._is_stopping:
            if not self._runners.running:
                self._all_ended.set()
        elif self._claimer.is_waiting and self._runners.task_count < self._claim_below:
            self._claimer.wake()

    def _on_stop_requested(self, running_task: RunningTask) -> None:
        """Stop a task whose stop reason has been set. Called on the event loop."""
        if running_task.is_finished:
            return
        if running_task in self._runners.running:
            self._runners.interrupt(running_task)
            return
        running_task.is_finished = True
        if running_task.stop is StopReason.CANCEL:
            self._reporter.fail(running_task, cancelled_of(running_task.task))
        else:
            self._drop(running_task, "its lease ended before the handler was started")

    def _drop(self, running_task: RunningTask, reason: str) -> None:
        self._telemetry.lost(running_task, reason)
        self._reporter.forget([running_task])

    def _release(self, waiting: list[RunningTask]) -> None:
        for running_task in waiting:
            running_task.is_finished = True
        self._reporter.release(waiting)

    # Periodic checks

    async def _check_periodically(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            self._prefetch.sample(self._runners.task_count, monotonic())
            self._claim_below = self._prefetch.claim_below
            self._release_stalled()
            self._capacity_freed()

    def _release_stalled(self) -> None:
        """Release waiting tasks if the running tasks take long, because other workers may have free slots."""
        ready, now = self._runners.ready, monotonic()
        if not ready or now - ready[0].received_at < self._prefetch.max_wait_seconds:
            return
        if len(self._runners.running) < self._concurrency:
            return
        self._prefetch.stalled()
        waiting = self._runners.take_ready()
        self._telemetry.released_waiting(len(waiting))
        self._release(waiting)

    # Shutdown

    async def _announce(self, state: WorkerState) -> None:
        """Tell the server that this worker stops. If that fails, the server notices later that it no longer claims."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_ANNOUNCE_SECONDS):
                await self._transport.heartbeat(LeaseHeartbeatRequest(worker=self.name, leases=[], state=state))

    async def _wait_until_ended(self, seconds: float) -> None:
        if not self._runners.running:
            return
        self._all_ended.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._all_ended.wait()
        except TimeoutError:
            pass

    async def _interrupt_remaining(self) -> None:
        for running_task in list(self._runners.running):
            if not running_task.is_finished and running_task.request_stop(StopReason.SHUTDOWN):
                self._runners.interrupt(running_task)
        await self._wait_until_ended(_CLEANUP_SECONDS)
        # The threads of these tasks cannot be stopped. They end with the process.
        remaining = [running_task for running_task in self._runners.running if not running_task.is_finished]
        self._release(remaining)


def _unhandled() -> None:
    """The handler in the definition of unknown task types. Never called."""


_UNKNOWN = TaskDefinition(type="", queue="", function=_unhandled, is_async=False, wants_context=False)
