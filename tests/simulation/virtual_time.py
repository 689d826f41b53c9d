"""Simulated time and chance: an event loop that jumps to the next timer, and processes that can be stopped or killed.

Nothing here waits. `install` replaces the clocks and the random ids of Python, so that a run depends on its seed alone. It must
be called before `everbeat` is imported, because default arguments keep the functions that they have seen.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from enum import Enum
from typing import Any, TypeVar, TypeVarTuple

import uuid_utils.compat

T = TypeVar("T")
_Ts = TypeVarTuple("_Ts")

# 2026-03-02 12:00:00 UTC
START_MICROSECONDS = 1_772_452_800_000_000

real_perf_counter = time.perf_counter
real_process_time = time.process_time


class ProcessState(Enum):
    RUNNING = "running"
    FROZEN = "frozen"
    DEAD = "dead"


class Process:
    """A simulated process. What runs in its context is held back while it is frozen, and never runs after it is dead."""

    def __init__(self, name: str, seed: str) -> None:
        self.name = name
        self.random = random.Random(seed)
        self.state = ProcessState.RUNNING
        self.wall_skew_seconds = 0.0
        self.clock_rate = 1.0
        self.held: list[asyncio.Handle] = []
        # The tasks of the process, so that those of a dead process are not collected: that would run their `finally` blocks.
        self.tasks: list[asyncio.Task[Any]] = []
        self._next_purge = 256
        self.context = copy_context()
        self.context.run(PROCESS.set, self)

    def monotonic(self) -> float:
        return sources.loop_time() * self.clock_rate

    def note_task(self, task: asyncio.Task[Any]) -> None:
        self.tasks.append(task)
        if len(self.tasks) > self._next_purge:
            self.tasks = [one for one in self.tasks if not one.done()]
            self._next_purge = 2 * len(self.tasks) + 256


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
# Messages in flight belong to no process: they arrive even if their sender is dead.
NETWORK: Context = copy_context()


class Deadlock(Exception):
    """No callback is left that could wake anything."""


class _Handle(asyncio.Handle):
    """A handle that does not ask the loop for its debug mode, because there are millions of them."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], loop: VirtualLoop, context: Context | None
    ) -> None:
        fields: Any = self
        fields._callback, fields._args, fields._loop = callback, args, loop
        fields._context = copy_context() if context is None else context
        fields._cancelled, fields._repr, fields._source_traceback = False, None, None


class _TimerHandle(asyncio.TimerHandle):
    __slots__ = ()

    def __init__(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], loop: VirtualLoop, context: Context | None
    ) -> None:
        fields: Any = self
        fields._callback, fields._args, fields._loop = callback, args, loop
        fields._context = copy_context() if context is None else context
        fields._cancelled, fields._repr, fields._source_traceback = False, None, None
        fields._when, fields._scheduled = when, True


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop on simulated time. Timers of the same instant run in a random order that the seed determines."""

    def __init__(self, seed: str) -> None:
        super().__init__()
        self._now = 0.0
        self._random = random.Random(f"{seed}/timers").random
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._sequence = itertools.count()
        self._cancelled_timers = 0
        self.step_count = 0
        self.set_task_factory(_create_task)

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        when += self._random() * 1e-6
        timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._sequence), timer))
        return timer

    def _timer_handle_cancelled(self, _handle: asyncio.TimerHandle) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers > 500 and self._cancelled_timers * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def run_in_executor(self, executor: Any, func: Callable[[*_Ts], T], *args: *_Ts) -> asyncio.Future[T]:
        """Run the function immediately: a simulated process has no threads."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def release(self, process: Process) -> None:
        """Let a frozen process continue with everything that has arrived meanwhile."""
        process.state = ProcessState.RUNNING
        held, process.held = process.held, []
        self._ready.extend(held)

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        while not self._stopping:  # type: ignore[attr-defined]
            if not ready:
                timers = self._timers
                if not timers:
                    raise Deadlock
                when, _, timer = heapq.heappop(timers)
                timer._scheduled = False  # type: ignore[attr-defined]
                if timer.cancelled():
                    self._cancelled_timers -= 1
                    continue
                self._now = max(self._now, when)
                ready.append(timer)
            handle = ready.popleft()
            if handle.cancelled():
                continue
            process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
            if process is not None and process.state is not ProcessState.RUNNING:
                if process.state is ProcessState.FROZEN:
                    process.held.append(handle)
                continue
            self.step_count += 1
            handle._run()

    def _process_events(self, _events: Any) -> None:
        """There are no events of a selector."""

    def _write_to_self(self) -> None:
        """Nothing has to be woken: there are no threads."""


def _create_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **more)
    context = more.get("context")
    process = PROCESS.get() if context is None else context.get(PROCESS)
    if process is not None:
        process.note_task(task)
    return task


class _Sources:
    """Where the replaced functions of `install` read the time and random bits. One run at a time."""

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.wall_microseconds: Callable[[], int] = lambda: START_MICROSECONDS
        self.loop_time: Callable[[], float] = lambda: 0.0

    def monotonic(self) -> float:
        return self.loop_time()

    def wall(self) -> float:
        process = PROCESS.get()
        skew = 0.0 if process is None else process.wall_skew_seconds
        return self.wall_microseconds() / 1e6 + skew

    def bits(self, count: int) -> int:
        process = PROCESS.get()
        return (self.random if process is None else process.random).getrandbits(count)

    def uuid7(self) -> uuid.UUID:
        milliseconds = max(0, int(self.wall() * 1000)) & (2**48 - 1)
        bits = self.bits(74)
        return uuid.UUID(int=milliseconds << 80 | 7 << 76 | (bits >> 62) << 64 | 2 << 62 | bits & (2**62 - 1))

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=self.bits(128), version=4)


sources = _Sources()


def install() -> None:
    """Replace the clocks and random ids of this interpreter."""
    if "everbeat.clock" in sys.modules:
        raise RuntimeError("the simulated clocks must be installed before everbeat is imported")
    time.monotonic = sources.monotonic
    time.perf_counter = sources.monotonic
    time.time = sources.wall
    time.time_ns = lambda: int(sources.wall() * 1e6) * 1000
    uuid.uuid4 = sources.uuid4
    uuid_utils.compat.uuid7 = sources.uuid7  # type: ignore[assignment]


def begin_run(seed: str, loop: VirtualLoop, wall_microseconds: Callable[[], int]) -> None:
    """Start all random sources from the seed."""
    random.seed(f"{seed}/module")
    sources.random = random.Random(f"{seed}/ids")
    sources.wall_microseconds, sources.loop_time = wall_microseconds, loop.time
