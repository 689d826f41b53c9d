"""The writer thread of an SQLite file: one write at a time, urgent ones first.

An SQLite file has one writer. Without an order, a firing would wait for all batches of submits that were sent before it.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

# Late firings and lost leases affect all tenants. They wait for the write in progress only.
_URGENT_VERBS = frozenset({"tick_fire", "partition_renew"})


class SqliteWriter:
    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: queue.PriorityQueue[tuple[int, int, Future[Any] | None, Callable[[], Any]]] = queue.PriorityQueue()
        self._sequence = itertools.count()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def submit(self, verb: str, work: Callable[[], T]) -> Future[T]:
        """Run work on the thread: urgent verbs before the others, and otherwise in order."""
        done: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the writer is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._waiting.put((0 if verb in _URGENT_VERBS else 1, next(self._sequence), done, work))
        return done

    def shutdown(self) -> None:
        """Finish what waits, and end the thread."""
        with self._lock:
            self._is_closed = True
            self._waiting.put((2, next(self._sequence), None, lambda: None))
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            _, _, done, work = self._waiting.get()
            if done is None:
                return
            if not done.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(result)
            # The next work may come late. Until then, this frame must not keep the last one alive.
            del done, work
