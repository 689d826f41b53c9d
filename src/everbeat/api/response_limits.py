"""Limits on responses that their clients have not read yet.

A response stays in memory until its client has read most of it. Small responses are not counted: a connection buffers one of
them at most. The memory for larger ones is limited for each key and in total, and shared fairly between keys and addresses
(`memory_shares.py`): if it is used up, the connection of a slow reader is closed in favor of a caller that holds less.
"""

from __future__ import annotations

from collections.abc import Hashable

from everbeat.api.memory_shares import MemoryShare, MemoryShares

LARGE_BYTES = 64 * 1024

_MEGABYTE = 1024 * 1024


class ResponseLimits:
    """The limits for the large responses that this node is sending."""

    def __init__(self, *, max_bytes: int = 128 * _MEGABYTE, max_bytes_per_key: int = 32 * _MEGABYTE) -> None:
        self._shares = MemoryShares(max_bytes)
        self.max_bytes_per_key = max_bytes_per_key

    @property
    def bytes_in_memory(self) -> int:
        return self._shares.bytes_held

    def share(self, key: Hashable, address: Hashable) -> MemoryShare:
        return self._shares.share(key, address)

    def fits_key(self, share: MemoryShare, count: int) -> bool:
        """Whether the key may hold `count` more bytes. A single response may be larger than the limit."""
        return share.key_size == 0 or share.key_size + count <= self.max_bytes_per_key
