"""The threads that sync handlers run in: started as needed; daemons, since a handler without end must not keep a process."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from everbeat.worker.calls import Outcome
from everbeat.worker.running_task import RunningTask


class HandlerThreadPool:
    """Runs `call` in threads and hands the outcomes to `collect` in the event loop, all that are there at once."""

    def __init__(
        self,
        size: int,
        call: Callable[[RunningTask], Outcome],
        collect: Callable[[list[tuple[RunningTask, Outcome]]], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._size = size
        self._call = call
        self._collect = collect
        self._loop = loop
        self._context = contextvars.copy_context()
        self._waiting: SimpleQueue[RunningTask | None] = SimpleQueue()
        self._done: deque[tuple[RunningTask, Outcome]] = deque()
        self._threads = 0
        self._busy = 0
        self._has_changed = False

    def start(self, running_task: RunningTask) -> None:
        """In the event loop; the caller keeps to the size."""
        self._busy += 1
        if self._busy > self._threads and self._threads < self._size:
            self._threads += 1
            threading.Thread(target=self._work, name=f"everbeat-handler-{self._threads}", daemon=True).start()
        self._waiting.put(running_task)

    def close(self) -> None:
        for _ in range(self._threads):
            self._waiting.put(None)

    def _work(self) -> None:
        me = threading.get_ident()
        while (running_task := self._waiting.get()) is not None:
            running_task.thread_id = me
            # A copy each: what a handler sets in context variables is not the next one's business.
            outcome = self._context.copy().run(self._call, running_task)
            running_task.thread_id = None
            self._done.append((running_task, outcome))
            del running_task, outcome
            if not self._has_changed:
                self._has_changed = True
                try:
                    self._loop.call_soon_threadsafe(self._collect_done)
                except RuntimeError:  # the event loop is closed: nobody waits for this any more
                    return

    def _collect_done(self) -> None:
        # First: what is appended from here on asks for another round.
        self._has_changed = False
        done = []
        while self._done:
            done.append(self._done.popleft())
        self._busy -= len(done)
        self._collect(done)
