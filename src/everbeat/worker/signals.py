"""Runs an event loop until SIGINT or SIGTERM. A second signal exits the process, even if a handler blocks the loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

_RELEASE_SECONDS = 1.0
EXIT_CODE_FORCED = 130


class StopSignal:
    """The first signal sets `requested`. The second calls `on_second_signal`, which has one second, and exits the process."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.on_second_signal: Callable[[float], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._count = 0

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1
        if self._count == 1:
            self._loop.call_soon_threadsafe(self.requested.set)
        elif self._count == 2:
            # In a thread, because the event loop may be blocked.
            threading.Thread(target=self._exit, daemon=True).start()

    def _exit(self) -> None:
        try:
            if self.on_second_signal is not None:
                self.on_second_signal(_RELEASE_SECONDS)
        finally:
            os._exit(EXIT_CODE_FORCED)


def run_until_signalled(main: Callable[[StopSignal], Coroutine[Any, Any, None]]) -> None:
    async def run_main() -> None:
        stop_signal = StopSignal()
        # Not the event loop's signal handlers, which do not run while the loop is blocked.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop_signal.on_signal)
        await main(stop_signal)

    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run_main())
