"""Limits on request bodies: their total memory, their total rate, and the time that one may take to arrive.

The size of each body is limited, but thousands of clients may send at the same time. Small bodies may use all of the memory.
Large bodies may use only a part of it, so that clients that send many of them affect only each other. Large bodies also share
a maximum rate: read at the full speed of a local network, they would leave too little CPU time for the tick loop.
"""

from __future__ import annotations

import asyncio
import time

DEADLINE_SECONDS = 30.0

_MEGABYTE = 1024 * 1024
_SMALL_BYTES = 64 * 1024
_MIN_PAUSE_SECONDS = 0.01


class BodyLimits:
    """The limits for the bodies that this node is reading."""

    def __init__(
        self,
        deadline_seconds: float = DEADLINE_SECONDS,
        *,
        max_large_bytes: int = 64 * _MEGABYTE,
        max_bytes: int = 256 * _MEGABYTE,
        large_bytes_per_second: float = 64 * _MEGABYTE,
    ) -> None:
        self.deadline_seconds = deadline_seconds
        self.bytes_in_memory = 0
        self._max_large_bytes = max_large_bytes
        self._max_bytes = max_bytes
        self._large_bytes_per_second = large_bytes_per_second
        self._throttled_until = 0.0

    def reserve(self, count: int, size: int) -> bool:
        """Reserve memory for `count` more bytes of a body, which then has `size` bytes. Return False if they do not fit."""
        if self.bytes_in_memory + count > (self._max_bytes if size <= _SMALL_BYTES else self._max_large_bytes):
            return False
        self.bytes_in_memory += count
        return True

    async def throttle(self, count: int, size: int) -> None:
        """Wait as long as the maximum rate requires after `count` bytes of a large body."""
        if size <= _SMALL_BYTES:
            return
        now = time.monotonic()
        self._throttled_until = max(now, self._throttled_until) + count / self._large_bytes_per_second
        if self._throttled_until - now > _MIN_PAUSE_SECONDS:
            await asyncio.sleep(self._throttled_until - now)

    def free(self, count: int) -> None:
        self.bytes_in_memory -= count
