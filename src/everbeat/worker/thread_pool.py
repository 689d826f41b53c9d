"""The threads of sync handlers. Daemon threads, so that a handler that never ends cannot block the exit of the process."""

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
    """Runs `call` in threads, started as needed, and passes the outcomes in batches to `collect` on the event loop."""

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
        self._is_collect_scheduled = False

    def start(self, running_task: RunningTask) -> None:
        """Start a task. Call this on the event loop, with at most `size` tasks running."""
        self._busy += 1
        if self._busy > self._threads and self._threads < self._size:
            self._threads += 1
            threading.Thread(target=self._work, name=f"everbeat-handler-{self._threads}", daemon=True).start()
        self._waiting.put(running_task)

    def close(self) -> None:
        for _ in range(self._threads):
            self._waiting.put(None)

    def _work(self) -> None:
        thread_id = threading.get_ident()
        while (running_task := self._waiting.get()) is not None:
            running_task.thread_id = thread_id
            # One copy per task, so that context variables set by a handler do not affect the next one.
            outcome = self._context.copy().run(self._call, running_task)
            running_task.thread_id = None
            self._done.append((running_task, outcome))
            del running_task, outcome
            if not self._is_collect_scheduled:
                self._is_collect_scheduled = True
                try:
                    self._loop.call_soon_threadsafe(self._collect_done)
                except RuntimeError:  # the event loop is closed, so the outcome is no longer needed
                    return

    def _collect_done(self) -> None:
        # Reset the flag first, so that an outcome appended from now on schedules another call.
        self._is_collect_scheduled = False
        done = []
        while self._done:
            done.append(self._done.popleft())
        self._busy -= len(done)
        self._collect(done)
