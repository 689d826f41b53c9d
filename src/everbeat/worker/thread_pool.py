"""The threads of sync handlers. Started as needed; daemon threads, so that a handler that never ends cannot block the exit."""

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
    """Runs `call` in threads, and passes the outcomes in batches to `collect` in the event loop."""

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
        """Call it in the event loop. The caller does not start more tasks than the size."""
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
            # A copy for each: context variables that a handler sets do not affect the next one.
            outcome = self._context.copy().run(self._call, running_task)
            running_task.thread_id = None
            self._done.append((running_task, outcome))
            del running_task, outcome
            if not self._has_changed:
                self._has_changed = True
                try:
                    self._loop.call_soon_threadsafe(self._collect_done)
                except RuntimeError:  # the event loop is closed, so nothing waits for this outcome
                    return

    def _collect_done(self) -> None:
        # First: what is appended after this schedules another call.
        self._has_changed = False
        done = []
        while self._done:
            done.append(self._done.popleft())
        self._busy -= len(done)
        self._collect(done)
