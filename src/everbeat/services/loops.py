"""Runs loops: iterates while there is work, waits as the loop defines, and backs off after a failure instead of ending."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import datetime
from typing import Protocol

import msgspec

from everbeat.clock import Monotonic
from everbeat.core.errors import EverbeatError, StoreLocked, StoreUnavailable
from everbeat.services.events import Emit, LoopFailed, LoopRan

_FIRST_DELAY, _MAX_DELAY = 0.1, 2.0
# The deadline cancels an iteration. One that still runs after this time ignores that, or blocks the event loop.
_OVERDUE_SECONDS = 5.0


class Loop(Protocol):
    """A service that works in iterations. `deadline_seconds` limits each of them."""

    name: str
    deadline_seconds: float

    async def run_once(self, now: datetime | None = None) -> bool:
        """Run one iteration. Returns whether there is more to do immediately."""

    async def wait(self) -> None:
        """Wait until the next iteration is due."""

    async def close(self) -> None:
        """Stop what still runs in the background."""


class Periodic:
    """The waiting of loops that run at an interval and can be woken."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval = interval_seconds
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def wait(self) -> None:
        await wait_for_event(self._woken, self._interval)

    async def close(self) -> None:
        """Do nothing: nothing runs in the background."""


async def wait_for_event(event: asyncio.Event, timeout_seconds: float) -> None:
    """Wait for the event or the timeout, and clear the event."""
    if timeout_seconds > 0:
        try:
            async with asyncio.timeout(timeout_seconds):
                await event.wait()
        except TimeoutError:
            pass
    else:
        await asyncio.sleep(0)
    event.clear()


class LoopState(msgspec.Struct):
    """What a loop is doing. Times are monotonic. `running_since` None: it waits for its next iteration."""

    deadline_seconds: float
    iterated_at: float
    running_since: float | None = None
    failing_since: float | None = None
    error: BaseException | None = None


class LoopMonitor:
    """The state of each loop, so that health checks and the watchdog can detect a loop that is stuck or that keeps failing."""

    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self._monotonic = monotonic
        self._states: dict[str, LoopState] = {}

    def note_iteration(self, loop: str, deadline_seconds: float = 60.0) -> None:
        now = self._monotonic()
        state = self._states.setdefault(loop, LoopState(deadline_seconds, now))
        state.iterated_at = state.running_since = now

    def note_end(self, loop: str, error: BaseException | None) -> None:
        state = self._states[loop]
        state.running_since = None
        if error is None:
            state.failing_since = state.error = None
            return
        state.failing_since = self._monotonic() if state.failing_since is None else state.failing_since
        state.error = error

    def ages(self) -> dict[str, float]:
        now = self._monotonic()
        return {loop: now - state.iterated_at for loop, state in self._states.items()}

    def overdue(self) -> dict[str, float]:
        """Return the loops with an iteration that still runs after its deadline, and for how many seconds it has run."""
        now = self._monotonic()
        running = {loop: (state, state.running_since) for loop, state in list(self._states.items())}
        return {
            loop: now - since
            for loop, (state, since) in running.items()
            if since is not None and now - since > state.deadline_seconds + _OVERDUE_SECONDS
        }

    def problem(self, loop: str, limit_seconds: float) -> str | None:
        """Say what is wrong with a loop that has not begun an iteration, or only failed, for longer than the limit.

        An unavailable database is not a fault of the process.
        """
        state = self._states.get(loop)
        if state is None:
            return None
        now = self._monotonic()
        if now - state.iterated_at >= limit_seconds:
            return f"the loop {loop} has been stuck for {now - state.iterated_at:.0f} seconds"
        if state.failing_since is None or now - state.failing_since < limit_seconds:
            return None
        if isinstance(state.error, StoreUnavailable | StoreLocked):
            return None
        return f"the loop {loop} has failed for {now - state.failing_since:.0f} seconds: {type(state.error).__name__}"


class LoopRunner:
    """Runs a loop until it is stopped. A failed iteration is reported, and does not end the loop."""

    def __init__(self, loop: Loop, emit: Emit, loop_monitor: LoopMonitor) -> None:
        self._loop = loop
        self.name = loop.name
        self._emit = emit
        self._loop_monitor = loop_monitor
        self._is_stopping = False
        self._is_idle = False
        self._delay = _FIRST_DELAY
        self.task = asyncio.create_task(self._run(), name=loop.name)

    async def stop(self, timeout_seconds: float) -> None:
        """Stop the loop: immediately if it is waiting, otherwise after its current iteration or the timeout."""
        self._is_stopping = True
        if not self._is_idle:
            await asyncio.wait({self.task}, timeout=timeout_seconds)
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self._loop.close()

    async def _run(self) -> None:
        while not self._is_stopping:
            self._loop_monitor.note_iteration(self._loop.name, self._loop.deadline_seconds)
            more = await self._iterate()
            if not more and not self._is_stopping:
                self._is_idle = True
                await self._loop.wait()
                self._is_idle = False

    async def _iterate(self) -> bool:
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._loop.deadline_seconds):
                more = await self._loop.run_once()
        except Exception as error:
            self._loop_monitor.note_end(self._loop.name, error)
            self._emit(LoopFailed(self._loop.name, error, isinstance(error, EverbeatError | TimeoutError)))
            await asyncio.sleep(random.uniform(self._delay / 2, self._delay))
            self._delay = min(self._delay * 2, _MAX_DELAY)
            return True
        self._delay = _FIRST_DELAY
        self._loop_monitor.note_end(self._loop.name, None)
        self._emit(LoopRan(self._loop.name, time.perf_counter() - started))
        return more
