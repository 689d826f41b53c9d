"""Runs claimed tasks: async handlers in reused coroutines, sync handlers in threads, each with a timeout.

A runner is a coroutine that runs one task after another, because creating an asyncio.Task for each would be most of the cost
of a short task. A handler must not affect the next one, so a runner that was cancelled, or whose context variables have
changed, is replaced.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

from everbeat.worker.calls import HandlerCaller, Interrupted, Outcome
from everbeat.worker.outcomes import frame_of_thread, stack_of, timeout_of
from everbeat.worker.running_task import RunningTask, StopReason
from everbeat.worker.telemetry import WorkerTelemetry
from everbeat.worker.thread_pool import HandlerThreadPool

# How long runners may occupy the event loop without yielding, if handlers do not await anything.
_SLICE_SECONDS = 0.002
# How long an async handler may clean up after it was cancelled, before its outcome is reported without it.
CLEANUP_SECONDS = 10.0


def interleave_tenants(ready: Iterable[RunningTask]) -> Iterator[RunningTask]:
    """Return the tasks in rotation of their tenants, so that in a fleet no task waits behind all tasks of another tenant."""
    by_tenant: dict[int, deque[RunningTask]] = {}
    for running_task in ready:
        by_tenant.setdefault(running_task.task.tenant_id.int, deque()).append(running_task)
    while by_tenant:
        for tenant in list(by_tenant):
            yield by_tenant[tenant].popleft()
            if not by_tenant[tenant]:
                del by_tenant[tenant]


class Runners:
    """Runs tasks in `concurrency` slots. `ready` tasks wait for a slot; `running` tasks have one. Belongs to one event loop."""

    def __init__(
        self,
        caller: HandlerCaller,
        concurrency: int,
        loop: asyncio.AbstractEventLoop,
        telemetry: WorkerTelemetry,
        *,
        finish: Callable[[RunningTask, Outcome], None],
        on_capacity_freed: Callable[[], None],
    ) -> None:
        self.ready: deque[RunningTask] = deque()
        self.running: set[RunningTask] = set()
        self._caller = caller
        self._concurrency = concurrency
        self._loop = loop
        self._telemetry = telemetry
        self._finish = finish
        self._on_capacity_freed = on_capacity_freed
        self._thread_pool = HandlerThreadPool(concurrency, caller.call_in_thread, self._collect, loop)
        self._context = contextvars.copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = 0
        self._slice_ends = 0.0
        self._is_yielding = False
        self._next_check = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    @property
    def task_count(self) -> int:
        return len(self.ready) + len(self.running)

    def put(self, running_tasks: Iterable[RunningTask]) -> None:
        self.ready.extend(running_tasks)
        if self.ready and any(waiting.task.tenant_id != self.ready[0].task.tenant_id for waiting in self.ready):
            interleaved = list(interleave_tenants(self.ready))
            self.ready.clear()  # in place, because runners have references to the deque
            self.ready.extend(interleaved)
        self.fill_slots()

    def take_ready(self) -> list[RunningTask]:
        """Remove and return the tasks that have not started."""
        waiting = [running_task for running_task in self.ready if not running_task.is_finished]
        self.ready.clear()
        return waiting

    def interrupt(self, running_task: RunningTask) -> None:
        """Cancel an async handler and give it time to clean up. A sync handler is not interrupted; it can check its context."""
        if running_task.runner is not None:
            running_task.runner.cancel()
            self._set_deadline(running_task, monotonic() + CLEANUP_SECONDS)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._thread_pool.close()

    # Starting

    def fill_slots(self) -> None:
        """Start ready tasks in the free slots."""
        ready = self.ready
        while ready and len(self.running) + self._starting < self._concurrency:
            first = ready[0]
            if first.stop is not None:
                ready.popleft()
            elif first.definition.is_async:
                if not self._starting:
                    self._spawn()
                return
            else:
                self._thread_pool.start(self._begin(ready.popleft()))

    def _spawn(self) -> None:
        self._starting += 1
        task = self._loop.create_task(self._run(), context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        current = asyncio.current_task()
        assert current is not None
        self._starting -= 1
        if self._is_yielding:
            return  # the handlers do not await anything, and another runner continues after yielding
        # Create the next runner now, so that it starts as soon as the handler in this runner awaits something.
        if len(self.ready) > 1:
            self.fill_slots()
        while (running_task := self._next()) is not None:
            running_task.runner = current
            outcome = await self._caller.call(running_task)
            running_task.runner = None
            self._end(running_task, outcome)
            if current.cancelling() or contextvars.copy_context() != self._context:
                self.fill_slots()
                return
            if monotonic() > self._slice_ends:
                await self._yield_to_loop()

    def _next(self) -> RunningTask | None:
        """Return the next async task for this runner, if any. Starts the sync tasks before it in threads."""
        ready, running = self.ready, self.running
        while ready and len(running) < self._concurrency:
            running_task = ready.popleft()
            if running_task.stop is not None:
                continue
            self._begin(running_task)
            if running_task.definition.is_async:
                return running_task
            self._thread_pool.start(running_task)
        return None

    def _begin(self, running_task: RunningTask) -> RunningTask:
        self.running.add(running_task)
        self._set_deadline(running_task, running_task.ends_at)
        return running_task

    async def _yield_to_loop(self) -> None:
        if not self._is_yielding:
            self._is_yielding = True
            self._loop.call_soon(self._new_slice)
        await asyncio.sleep(0)

    def _new_slice(self) -> None:
        self._is_yielding = False
        self._slice_ends = monotonic() + _SLICE_SECONDS
        self.fill_slots()

    # Ending

    def _end(self, running_task: RunningTask, outcome: Outcome) -> None:
        self.running.discard(running_task)
        if not running_task.is_finished:
            self._finish(running_task, outcome)
        self._on_capacity_freed()

    def _collect(self, done: list[tuple[RunningTask, Outcome]]) -> None:
        for running_task, outcome in done:
            self._end(running_task, outcome)
        self.fill_slots()

    # Timeouts

    def _set_deadline(self, running_task: RunningTask, deadline: float) -> None:
        running_task.deadline = deadline
        if deadline < self._next_check:
            self._set_timer(deadline)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_check = at
        self._timer = self._loop.call_later(max(0.0, at - monotonic()), self._check) if at < float("inf") else None

    def _check(self) -> None:
        now = monotonic()
        for running_task in [running_task for running_task in self.running if running_task.deadline <= now]:
            self._on_timeout(running_task)
        self._set_timer(min((running_task.deadline for running_task in self.running), default=float("inf")))

    def _on_timeout(self, running_task: RunningTask) -> None:
        running_task.deadline = float("inf")
        if running_task.is_finished:
            return
        is_new = running_task.request_stop(StopReason.TIMEOUT)
        if running_task.runner is not None and is_new:
            self.interrupt(running_task)
            return
        # The handler runs in a thread, which cannot be stopped, or did not stop when cancelled. Report its end now; it keeps
        # its slot until it returns.
        frame = frame_of_thread(running_task.thread_id)
        trace = None if frame is None else stack_of(frame)
        if running_task.stop is StopReason.TIMEOUT:
            failure = timeout_of(running_task.task, trace)
            self._telemetry.failed(running_task.task, failure.error.message, "it is still running and keeps its slot")
            self._finish(running_task, failure)
        else:
            self._finish(running_task, Interrupted(trace))
