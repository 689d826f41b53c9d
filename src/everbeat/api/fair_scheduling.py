"""Fair scheduling: all requests together use at most a few milliseconds of each iteration of the event loop.

The tick loop runs in the same event loop. It takes several iterations from the time a tick is due until it is written, and an
iteration lasts until everything that is ready in it has run. With a hundred concurrent requests, that would be a hundred steps
in each iteration. Therefore a step of a request waits for a later iteration if the time budget of the current one is used up,
in FIFO order. This wastes no time: an iteration without other work ends immediately, and the next one begins.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Generator
from time import perf_counter
from typing import Any

_BUDGET_SECONDS = 0.002
_SMOOTHING = 0.1


class FairScheduler:
    """Limits the time that requests use in each iteration of the event loop."""

    def __init__(self, budget_seconds: float = _BUDGET_SECONDS) -> None:
        self._budget_seconds = budget_seconds
        self._used_seconds = 0.0
        self._average_step_seconds = _BUDGET_SECONDS / 10
        self._is_reset_scheduled = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def run(self, work: Coroutine[Any, Any, None]) -> _ScheduledWork:
        """Return an awaitable that runs the coroutine step by step, within the budget."""
        return _ScheduledWork(self, work)

    @property
    def is_budget_used_up(self) -> bool:
        return self._used_seconds >= self._budget_seconds

    def record_step(self, seconds: float) -> None:
        self._used_seconds += seconds
        self._average_step_seconds += (seconds - self._average_step_seconds) * _SMOOTHING
        self._schedule_reset()

    def wait(self) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._schedule_reset()
        return waiter

    def _schedule_reset(self) -> None:
        if not self._is_reset_scheduled:
            self._is_reset_scheduled = True
            asyncio.get_running_loop().call_soon(self._reset)

    def _reset(self) -> None:
        """Start a new budget, and wake as many waiting steps as are likely to fit into it."""
        self._used_seconds = 0.0
        for _ in range(min(len(self._waiting), max(1, int(self._budget_seconds / self._average_step_seconds)))):
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
        self._is_reset_scheduled = False
        if self._waiting:
            self._schedule_reset()


class _ScheduledWork:
    """Runs a coroutine as an asyncio task would, but waits before each step if the budget is used up."""

    __slots__ = ("_scheduler", "_work")

    def __init__(self, scheduler: FairScheduler, work: Coroutine[Any, Any, None]) -> None:
        self._scheduler = scheduler
        self._work = work

    def __await__(self) -> Generator[Any, None, None]:
        scheduler, work = self._scheduler, self._work
        thrown: BaseException | None = None
        try:
            while True:
                if thrown is None and scheduler.is_budget_used_up:
                    try:
                        yield from scheduler.wait()
                    except BaseException as error:  # cancelled while waiting: pass it on to the coroutine
                        thrown = error
                started = perf_counter()
                try:
                    awaited = work.send(None) if thrown is None else work.throw(thrown)
                except StopIteration:
                    return
                finally:
                    thrown = None
                    scheduler.record_step(perf_counter() - started)
                try:
                    yield awaited
                except BaseException as error:
                    thrown = error
        finally:
            work.close()
