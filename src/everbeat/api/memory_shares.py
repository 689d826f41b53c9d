"""A limited amount of memory, shared fairly between keys and between addresses.

As long as memory is left, every holder gets what it asks for. When it is used up, a holder whose key or address has less than
another one takes memory from it: of that key or address, the holder that has grown least recently is interrupted. So a
caller can use all of the memory while others need none, and cannot keep it from them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable


class MemoryShare:
    """The memory of one holder. While `interrupt` is None, the holder cannot be interrupted."""

    __slots__ = ("_groups", "_owner", "interrupt", "size")

    def __init__(self, owner: MemoryShares, groups: tuple[_Group, ...]) -> None:
        self._owner = owner
        self._groups = groups
        self.size = 0
        self.interrupt: Callable[[], None] | None = None

    def grow(self, count: int, limit: int | None = None) -> bool:
        """Take more memory, so that all holders together have at most `limit`. Return False if that is not possible."""
        if not self._owner.free_memory(self._groups, count, limit):
            return False
        self._add(count)
        for group in self._groups:  # to the end: it has grown most recently
            group.shares.pop(self, None)
            group.shares[self] = None
        return True

    def release(self) -> None:
        """Return the memory. The share can be used again."""
        self._add(-self.size)
        self.interrupt = None
        for group in self._groups:
            group.shares.pop(self, None)
            if not group.shares:
                group.siblings.pop(group.name, None)

    def grow_anyway(self, count: int) -> None:
        """Take more memory, even if there is none left."""
        self._add(count)
        for group in self._groups:
            group.shares[self] = None

    def _add(self, count: int) -> None:
        self.size += count
        self._owner.bytes_held += count
        for group in self._groups:
            group.siblings.setdefault(group.name, group)
            group.size += count


class _Group:
    """The shares of one key or of one address, those that have grown most recently last."""

    __slots__ = ("name", "shares", "siblings", "size")

    def __init__(self, name: Hashable, siblings: dict[Hashable, _Group]) -> None:
        self.name = name
        self.siblings = siblings
        self.shares: dict[MemoryShare, None] = {}
        self.size = 0


class MemoryShares:
    def __init__(self, max_bytes: int) -> None:
        self.bytes_held = 0
        self._max_bytes = max_bytes
        self._by_key: dict[Hashable, _Group] = {}
        self._by_address: dict[Hashable, _Group] = {}

    def share(self, key: Hashable, address: Hashable) -> MemoryShare:
        """Return a share of a key and an address, which holds nothing yet."""
        groups = (self._by_key, key), (self._by_address, address)
        return MemoryShare(self, tuple(siblings.get(name) or _Group(name, siblings) for siblings, name in groups))

    def key_size(self, key: Hashable) -> int:
        """Return the size of all shares of a key."""
        group = self._by_key.get(key)
        return 0 if group is None else group.size

    def free_memory(self, groups: tuple[_Group, ...], count: int, limit: int | None = None) -> bool:
        """Interrupt holders of other groups until `count` more bytes fit. Return False if none holds more than these groups."""
        limit = self._max_bytes if limit is None else min(limit, self._max_bytes)
        while self.bytes_held + count > limit:
            victim = _victim(groups, count)
            if victim is None:
                return False
            interrupt = victim.interrupt
            victim.release()
            assert interrupt is not None
            interrupt()
        return True


def _victim(groups: tuple[_Group, ...], count: int) -> MemoryShare | None:
    for group in groups:
        largest = max(group.siblings.values(), key=lambda one: one.size, default=group)
        if largest.size > group.size + count:
            for share in largest.shares:
                if share.interrupt is not None and share.size:
                    return share
    return None
