"""Runs loops: iterates while there is work, waits as the loop defines, and backs off after a failure instead of ending."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import datetime
from typing import Protocol

from everbeat.core.errors import EverbeatError
from everbeat.services.events import Emit, LoopFailed, LoopRan

_FIRST_DELAY, _MAX_DELAY = 0.1, 2.0


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


class LoopMonitor:
    """The time of the last iteration of each loop, so that health checks can detect a stuck loop."""

    def __init__(self) -> None:
        self._iterated_at: dict[str, float] = {}

    def note_iteration(self, loop: str) -> None:
        self._iterated_at[loop] = time.monotonic()

    def ages(self) -> dict[str, float]:
        now = time.monotonic()
        return {loop: now - at for loop, at in self._iterated_at.items()}


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
            self._loop_monitor.note_iteration(self._loop.name)
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
            self._emit(LoopFailed(self._loop.name, error, isinstance(error, EverbeatError | TimeoutError)))
            await asyncio.sleep(random.uniform(self._delay / 2, self._delay))
            self._delay = min(self._delay * 2, _MAX_DELAY)
            return True
        self._delay = _FIRST_DELAY
        self._emit(LoopRan(self._loop.name, time.perf_counter() - started))
        return more
