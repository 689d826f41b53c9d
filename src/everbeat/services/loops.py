"""The one way a loop runs: iterate while there is work, wait as the loop says, back off when it fails, never die."""

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
    """A service that works in iterations. `deadline_seconds` bounds one of them."""

    name: str
    deadline_seconds: float

    async def run_once(self, now: datetime | None = None) -> bool:
        """One iteration; true if there is more to do at once."""

    async def wait(self) -> None:
        """Until the next iteration makes sense."""

    async def close(self) -> None:
        """Let go of what still runs on the side."""


class Periodic:
    """The waiting of loops that simply run every so often, and can be woken."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval = interval_seconds
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def wait(self) -> None:
        await wait_for_event(self._woken, self._interval)

    async def close(self) -> None:
        """Nothing runs on the side."""


async def wait_for_event(event: asyncio.Event, timeout_seconds: float) -> None:
    """Until the event or the timeout; the event is cleared."""
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
    """When each loop last went round, so that a stuck one can be seen from outside."""

    def __init__(self) -> None:
        self._beats: dict[str, float] = {}

    def beat(self, loop: str) -> None:
        self._beats[loop] = time.monotonic()

    def ages(self) -> dict[str, float]:
        now = time.monotonic()
        return {loop: now - beat for loop, beat in self._beats.items()}


class LoopRunner:
    """Runs one loop until told to stop. Any failure is told and survived: one bad iteration must not end the engine."""

    def __init__(self, loop: Loop, emit: Emit, loop_monitor: LoopMonitor) -> None:
        self._loop = loop
        self._emit = emit
        self._pulse = loop_monitor
        self._is_stopping = False
        self._is_idle = False
        self._delay = _FIRST_DELAY
        self.task = asyncio.create_task(self._run(), name=loop.name)

    async def stop(self, heartbeat_timeout_seconds: float) -> None:
        """Let the iteration under way end; a loop that only waits ends at once."""
        self._is_stopping = True
        if not self._is_idle:
            await asyncio.wait({self.task}, timeout=heartbeat_timeout_seconds)
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self._loop.close()

    async def _run(self) -> None:
        while not self._is_stopping:
            self._pulse.beat(self._loop.name)
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
