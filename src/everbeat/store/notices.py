"""Change notices: delivered immediately inside a process, and coalesced between processes.

PostgreSQL takes a database-wide lock for the commit of each NOTIFY. Each process therefore limits its rate for each kind of
notice: it sends a notice immediately if none was sent recently, then pauses, and then sends one notice for all that arrived
during the pause. The length of the pause depends on the measured duration of the send, so that notices take only a small part
of the time on a busy database and arrive quickly on an idle one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from everbeat.store.values import Listener, Notice

Send = Callable[[Notice], Awaitable[None]]

_MIN_PAUSE_SECONDS = 0.02
_MAX_PAUSE_SECONDS = 0.1
_PAUSE_PER_SEND = 8.0


def pause_after(send_seconds: float) -> float:
    """Seconds to wait after a send that took `send_seconds`, before the next notice of the same kind is sent."""
    return min(_MAX_PAUSE_SECONDS, max(_MIN_PAUSE_SECONDS, _PAUSE_PER_SEND * send_seconds))


class Notices:
    """Delivers notices to local listeners immediately, and passes them to `send`, coalesced, for other processes."""

    def __init__(self, send: Send | None = None) -> None:
        self._send = send
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
        self.publish_to_others(notice)

    def publish_to_others(self, notice: Notice) -> None:
        if self._send is None:
            return
        self._waiting.add(notice)
        if notice not in self._sending:
            self._sending[notice] = asyncio.create_task(self._send_paced(self._send, notice))

    async def close(self) -> None:
        """Send all pending notices without a pause."""
        tasks, self._sending = list(self._sending.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while self._send is not None and self._waiting:
            await self._send(self._waiting.pop())

    async def _send_paced(self, send: Send, notice: Notice) -> None:
        monotonic = asyncio.get_running_loop().time
        try:
            while notice in self._waiting:
                self._waiting.discard(notice)
                started = monotonic()
                try:
                    await send(notice)
                except asyncio.CancelledError:  # It may have been sent. A duplicate is harmless.
                    self._waiting.add(notice)
                    raise
                await asyncio.sleep(pause_after(monotonic() - started))
        finally:
            self._sending.pop(notice, None)
