"""A thread that detects when the event loop or a loop of the node is blocked; code in it cannot. And the delay of timers."""

from __future__ import annotations

import asyncio
import threading
import time

from everbeat.services.events import Emit, EventLoopBlocked, EventLoopDelayed, LoopBlocked
from everbeat.services.loops import LoopMonitor

_BLOCKED_AFTER_SECONDS = 2.0
_PROGRESS_SECONDS = 0.25
_LOOP_REPORT_SECONDS = 30.0


class Watchdog:
    """Emits EventLoopBlocked while the event loop in which it was created is blocked, and LoopBlocked for each blocked loop."""

    def __init__(self, emit: Emit, loop_monitor: LoopMonitor | None = None) -> None:
        self._emit = emit
        self._loop_monitor = loop_monitor or LoopMonitor()
        self._loops_reported: dict[str, float] = {}
        self._loop = asyncio.get_running_loop()
        self._last_progress = time.monotonic()
        self._planned: float | None = None
        self._stopped = threading.Event()
        self._record_progress()
        threading.Thread(target=self._watch, name="everbeat-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _record_progress(self) -> None:
        self._last_progress = time.monotonic()
        if self._planned is not None:
            self._emit(EventLoopDelayed(max(0.0, self._loop.time() - self._planned)))
        if not self._stopped.is_set():
            self._planned = self._loop.time() + _PROGRESS_SECONDS
            self._loop.call_at(self._planned, self._record_progress)

    def _watch(self) -> None:
        reported = 0.0
        while not self._stopped.wait(0.5):
            age = time.monotonic() - self._last_progress
            if age > _BLOCKED_AFTER_SECONDS and age - reported > _BLOCKED_AFTER_SECONDS:
                self._emit(EventLoopBlocked(age - reported))
                reported = age
            elif age < _BLOCKED_AFTER_SECONDS:
                reported = 0.0
            self._watch_loops()

    def _watch_loops(self) -> None:
        overdue = self._loop_monitor.overdue()
        self._loops_reported = {loop: at for loop, at in self._loops_reported.items() if loop in overdue}
        for loop, seconds in overdue.items():
            if seconds - self._loops_reported.get(loop, float("-inf")) >= _LOOP_REPORT_SECONDS:
                self._loops_reported[loop] = seconds
                self._emit(LoopBlocked(loop, seconds))
