"""How much of request bodies may be in memory at once, and how long one may take to arrive.

Every body has a limit of its own, but thousands of callers may send at the same time. What is small is taken as long as there
is any room; large bodies have less of it, so that those who send many of them are in the way of each other only. They also
share a rate: read as fast as a neighbour can send them, they would take the processor from the tick loop.
"""

from __future__ import annotations

import asyncio
import time

DEADLINE_SECONDS = 30.0

_MEGABYTE = 1024 * 1024
_SMALL_BYTES = 64 * 1024
_SHORTEST_PAUSE_SECONDS = 0.01


class BodyLimits:
    """The bodies that are being read by this node."""

    def __init__(
        self,
        deadline_seconds: float = DEADLINE_SECONDS,
        *,
        max_large_bytes: int = 64 * _MEGABYTE,
        max_bytes: int = 256 * _MEGABYTE,
        large_bytes_per_second: float = 64 * _MEGABYTE,
    ) -> None:
        self.deadline_seconds = deadline_seconds
        self.held = 0
        self._most_large = max_large_bytes
        self._most = max_bytes
        self._rate = large_bytes_per_second
        self._paced_until = 0.0

    def take(self, count: int, size: int) -> bool:
        """Room for so many more bytes of a body that has `size` with them, if there is any."""
        if self.held + count > (self._most if size <= _SMALL_BYTES else self._most_large):
            return False
        self.held += count
        return True

    async def pace(self, count: int, size: int) -> None:
        """Wait until so many bytes of a large body have had their time."""
        if size <= _SMALL_BYTES:
            return
        now = time.monotonic()
        self._paced_until = max(now, self._paced_until) + count / self._rate
        if self._paced_until - now > _SHORTEST_PAUSE_SECONDS:
            await asyncio.sleep(self._paced_until - now)

    def give_back(self, count: int) -> None:
        self.held -= count
