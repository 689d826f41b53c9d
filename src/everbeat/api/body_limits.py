"""Limits on request bodies: their total memory, their total rate, and the time that one may take to arrive.

The size of each body is limited, but thousands of clients may send at the same time. Small bodies may use all of the memory.
Large bodies may use only a part of it, so that clients that send many of them affect only each other. The memory is shared
fairly between keys and addresses (`memory_shares.py`): bodies that stall give theirs to others. Large bodies also share
a maximum rate, in equal parts for the keys that send them: read at the full speed of a local network, they would leave too
little CPU time for the tick loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable

from everbeat.api.memory_shares import MemoryShare, MemoryShares

DEADLINE_SECONDS = 30.0
LARGE_BYTES = 64 * 1024

_MEGABYTE = 1024 * 1024
_MIN_PAUSE_SECONDS = 0.01


class BodyLimits:
    """The limits for the bodies that this node is reading and checking."""

    def __init__(
        self,
        deadline_seconds: float = DEADLINE_SECONDS,
        *,
        max_large_bytes: int = 64 * _MEGABYTE,
        max_bytes: int = 256 * _MEGABYTE,
        large_bytes_per_second: float = 64 * _MEGABYTE,
    ) -> None:
        self.deadline_seconds = deadline_seconds
        self._shares = MemoryShares(max_bytes)
        self._max_large_bytes = max_large_bytes
        self._large_bytes_per_second = large_bytes_per_second
        self._throttled_until: dict[Hashable, float] = {}

    @property
    def bytes_in_memory(self) -> int:
        return self._shares.bytes_held

    def share(self, key: Hashable, address: Hashable) -> MemoryShare:
        return self._shares.share(key, address)

    def reserve(self, share: MemoryShare, count: int) -> bool:
        """Reserve memory for `count` more bytes of a body. Return False if they do not fit."""
        return share.grow(count, None if share.size + count <= LARGE_BYTES else self._max_large_bytes)

    async def throttle(self, key: Hashable, count: int, size: int) -> None:
        """Wait as long as the maximum rate requires after `count` bytes of a large body."""
        if size <= LARGE_BYTES:
            return
        now = time.monotonic()
        self._throttled_until = {one: until for one, until in self._throttled_until.items() if until > now or one == key}
        self._throttled_until.setdefault(key, now)
        seconds = count * len(self._throttled_until) / self._large_bytes_per_second
        until = self._throttled_until[key] = max(now, self._throttled_until[key]) + seconds
        if until - now > _MIN_PAUSE_SECONDS:
            await asyncio.sleep(until - now)
