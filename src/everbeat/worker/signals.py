"""Runs an event loop until a signal says stop; a second signal ends the process, even if a handler blocks the loop."""

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
ENDED_BY_FORCE = 130


class Stopping:
    """Set by the first signal; the second calls `in_haste`, which has a second, and ends the process."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.in_haste: Callable[[float], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._count = 0

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1
        if self._count == 1:
            self._loop.call_soon_threadsafe(self.asked.set)
        elif self._count == 2:
            # In a thread: the event loop may be what is stuck.
            threading.Thread(target=self._end, daemon=True).start()

    def _end(self) -> None:
        try:
            if self.in_haste is not None:
                self.in_haste(_RELEASE_SECONDS)
        finally:
            os._exit(ENDED_BY_FORCE)


def run_until_signalled(main: Callable[[Stopping], Coroutine[Any, Any, None]]) -> None:
    async def supervised() -> None:
        stopping = Stopping()
        # Not the event loop's own signal handlers: they wait for the loop.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stopping.on_signal)
        await main(stopping)

    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(supervised())
