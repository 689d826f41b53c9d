"""Limits on responses that their clients have not read yet.

A response stays in memory until its client has read most of it. Small responses are not counted: a connection buffers one of
them at most. The memory for larger ones is limited for each key and in total, and shared fairly between keys and addresses
(`memory_shares.py`): if it is used up, the connection of a slow reader is closed in favor of a caller that holds less.
"""

from __future__ import annotations

from collections.abc import Hashable

from everbeat.api.memory_shares import MemoryShare, MemoryShares
from everbeat.core.errors import TooManyRequests

LARGE_BYTES = 64 * 1024

_MEGABYTE = 1024 * 1024
_RETRY_SECONDS = 5.0


class ResponseLimits:
    """The limits for the large responses that this node is sending."""

    def __init__(self, *, max_bytes: int = 128 * _MEGABYTE, max_bytes_per_key: int = 32 * _MEGABYTE) -> None:
        self._shares = MemoryShares(max_bytes)
        self._max_bytes_per_key = max_bytes_per_key

    @property
    def bytes_in_memory(self) -> int:
        return self._shares.bytes_held

    def share(self, key: Hashable, address: Hashable) -> MemoryShare:
        return self._shares.share(key, address)

    def check_key(self, key: Hashable, count: int = 0) -> None:
        """Raise TooManyRequests if the key may not hold `count` more bytes. A single response may be larger than the limit."""
        size = self._shares.key_size(key)
        if size and size + count > self._max_bytes_per_key:
            message = f"this key has {size} bytes of responses that were not read yet; read them first"
            raise TooManyRequests(message, _RETRY_SECONDS)
