"""A thread that detects when the event loop is blocked. Code in the event loop cannot."""

from __future__ import annotations

import asyncio
import threading
import time

from everbeat.services.events import Emit, EventLoopBlocked

_BLOCKED_AFTER_SECONDS = 2.0


class Watchdog:
    """Emits EventLoopBlocked while the event loop in which it was created is blocked."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._last_progress = time.monotonic()
        self._stopped = threading.Event()
        self._record_progress()
        threading.Thread(target=self._watch, name="everbeat-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _record_progress(self) -> None:
        self._last_progress = time.monotonic()
        if not self._stopped.is_set():
            self._loop.call_later(0.25, self._record_progress)

    def _watch(self) -> None:
        reported = 0.0
        while not self._stopped.wait(0.5):
            age = time.monotonic() - self._last_progress
            if age > _BLOCKED_AFTER_SECONDS and age - reported > _BLOCKED_AFTER_SECONDS:
                self._emit(EventLoopBlocked(age - reported))
                reported = age
            elif age < _BLOCKED_AFTER_SECONDS:
                reported = 0.0
