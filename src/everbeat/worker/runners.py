"""Runs what was claimed: async handlers in a few reused coroutines, sync ones in threads, each within its time.

A runner goes from task to task without a new asyncio.Task each, which is most of what a short task would cost. What one
handler leaves behind must not reach the next one: a runner whose context variables were changed, or that was cancelled,
is replaced by a fresh one.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

from everbeat.worker.calls import Caller, Interrupted, Outcome
from everbeat.worker.crew import Crew
from everbeat.worker.held import Held, Stop
from everbeat.worker.journal import Journal
from everbeat.worker.outcomes import frame_of_thread, stack_of, timeout_of

# How long runners keep the event loop to themselves while handlers do not wait for anything.
_SLICE_SECONDS = 0.002
# How long an async handler may clean up after it was cancelled before its end is reported without it.
CLEANUP_SECONDS = 10.0


def in_turns(ready: Iterable[Held]) -> Iterator[Held]:
    """One of each tenant after the other: in a fleet's hand, one tenant's task need not wait behind all of another's."""
    by_tenant: dict[int, deque[Held]] = {}
    for held in ready:
        by_tenant.setdefault(held.task.tenant_id.int, deque()).append(held)
    while by_tenant:
        for tenant in list(by_tenant):
            yield by_tenant[tenant].popleft()
            if not by_tenant[tenant]:
                del by_tenant[tenant]


class Runners:
    """`ready` is what waits for a slot, in order; `running` what has one. Belongs to one event loop."""

    def __init__(
        self,
        caller: Caller,
        concurrency: int,
        loop: asyncio.AbstractEventLoop,
        journal: Journal,
        *,
        finish: Callable[[Held, Outcome], None],
        freed: Callable[[], None],
    ) -> None:
        self.ready: deque[Held] = deque()
        self.running: set[Held] = set()
        self._caller = caller
        self._concurrency = concurrency
        self._loop = loop
        self._journal = journal
        self._finish = finish
        self._freed = freed
        self._crew = Crew(concurrency, caller.call_in_thread, self._collect, loop)
        self._context = contextvars.copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = 0
        self._slice_ends = 0.0
        self._is_breathing = False
        self._next_check = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    @property
    def in_hand(self) -> int:
        return len(self.ready) + len(self.running)

    def put(self, held: Iterable[Held]) -> None:
        self.ready.extend(held)
        if self.ready and any(one.task.tenant_id != self.ready[0].task.tenant_id for one in self.ready):
            turns = list(in_turns(self.ready))
            self.ready.clear()  # in place: runners hold on to it
            self.ready.extend(turns)
        self.pump()

    def take_ready(self) -> list[Held]:
        """What has not begun, removed from here."""
        waiting = [held for held in self.ready if not held.is_settled]
        self.ready.clear()
        return waiting

    def interrupt(self, held: Held) -> None:
        """It was told to stop: an async handler is cancelled and may clean up, a sync one can only look at its context."""
        if held.runner is not None:
            held.runner.cancel()
            self._watch(held, monotonic() + CLEANUP_SECONDS)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._crew.close()

    # Starting

    def pump(self) -> None:
        """Fill free slots from what is ready."""
        ready = self.ready
        while ready and len(self.running) + self._starting < self._concurrency:
            head = ready[0]
            if head.stop is not None:
                ready.popleft()
            elif head.definition.is_async:
                if not self._starting:
                    self._spawn()
                return
            else:
                self._crew.start(self._begin(ready.popleft()))

    def _spawn(self) -> None:
        self._starting += 1
        task = self._loop.create_task(self._run(), context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        self._starting -= 1
        if self._is_breathing:
            return  # another one is about to go on, and handlers do not seem to wait for anything
        # One more is always on its way while there is more to do: it begins as soon as a handler in this one waits.
        if len(self.ready) > 1:
            self.pump()
        while (held := self._next()) is not None:
            held.runner = me
            outcome = await self._caller.call(held)
            held.runner = None
            self._end(held, outcome)
            if me.cancelling() or contextvars.copy_context() != self._context:
                self.pump()
                return
            if monotonic() > self._slice_ends:
                await self._breathe()

    def _next(self) -> Held | None:
        """The next async task to run here; sync ones before it go to their threads."""
        ready, running = self.ready, self.running
        while ready and len(running) < self._concurrency:
            held = ready.popleft()
            if held.stop is not None:
                continue
            self._begin(held)
            if held.definition.is_async:
                return held
            self._crew.start(held)
        return None

    def _begin(self, held: Held) -> Held:
        self.running.add(held)
        self._watch(held, held.ends_at)
        return held

    async def _breathe(self) -> None:
        if not self._is_breathing:
            self._is_breathing = True
            self._loop.call_soon(self._new_slice)
        await asyncio.sleep(0)

    def _new_slice(self) -> None:
        self._is_breathing = False
        self._slice_ends = monotonic() + _SLICE_SECONDS
        self.pump()

    # Ending

    def _end(self, held: Held, outcome: Outcome) -> None:
        self.running.discard(held)
        if not held.is_settled:
            self._finish(held, outcome)
        self._freed()

    def _collect(self, done: list[tuple[Held, Outcome]]) -> None:
        for held, outcome in done:
            self._end(held, outcome)
        self.pump()

    # Time

    def _watch(self, held: Held, deadline: float) -> None:
        held.deadline = deadline
        if deadline < self._next_check:
            self._arm(deadline)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_check = at
        self._timer = self._loop.call_later(max(0.0, at - monotonic()), self._check) if at < float("inf") else None

    def _check(self) -> None:
        now = monotonic()
        for held in [held for held in self.running if held.deadline <= now]:
            self._time_is_up(held)
        self._arm(min((held.deadline for held in self.running), default=float("inf")))

    def _time_is_up(self, held: Held) -> None:
        held.deadline = float("inf")
        if held.is_settled:
            return
        is_new = held.tell_to_stop(Stop.TIMEOUT)
        if held.runner is not None and is_new:
            self.interrupt(held)
            return
        # A thread cannot be stopped, and this coroutine would not be: report without it; its slot stays taken.
        frame = frame_of_thread(held.thread_id)
        trace = None if frame is None else stack_of(frame)
        if held.stop is Stop.TIMEOUT:
            failure = timeout_of(held.task, trace)
            self._journal.failed(held.task, failure.error.message, "it goes on and keeps its slot")
            self._finish(held, failure)
        else:
            self._finish(held, Interrupted(trace))
