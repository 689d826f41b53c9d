"""Change notices inside a process, and the pacing of those that leave it: many that come together are sent as one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from everbeat.store.values import Listener, Notice

Send = Callable[[Notice], Awaitable[None]]


class Notices:
    """Tells local listeners at once and, through `send`, the rest of the world at most once per interval and kind."""

    def __init__(self, send: Send | None = None, *, interval_seconds: float = 0.1) -> None:
        self._send = send
        self._interval = interval_seconds
        self._listeners: list[Listener] = []
        self._sending: dict[Notice, asyncio.Task[None]] = {}
        self._waiting: set[Notice] = set()

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def notify_local(self, notice: Notice) -> None:
        for listener in self._listeners:
            listener(notice)

    def publish(self, notice: Notice) -> None:
        self.notify_local(notice)
        if self._send is None:
            return
        self._waiting.add(notice)
        if notice not in self._sending:
            self._sending[notice] = asyncio.create_task(self._send_paced(self._send, notice))

    async def close(self) -> None:
        """Send what is still waiting to be sent, without its pause."""
        tasks, self._sending = list(self._sending.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while self._send is not None and self._waiting:
            await self._send(self._waiting.pop())

    async def _send_paced(self, send: Send, notice: Notice) -> None:
        try:
            while notice in self._waiting:
                self._waiting.discard(notice)
                try:
                    await send(notice)
                except asyncio.CancelledError:  # whether it was sent is unknown; said twice does no harm
                    self._waiting.add(notice)
                    raise
                await asyncio.sleep(self._interval)
        finally:
            self._sending.pop(notice, None)
