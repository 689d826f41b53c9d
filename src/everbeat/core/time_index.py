"""The time index: the schedules of a node that are due soon, in memory, ordered by due time.

An entry replaces the one with the same id. Stale heap items are removed when they reach the top or when they outnumber the
current ones (lazy deletion). Changes therefore take amortized O(log n), and memory is proportional to the number of entries.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from datetime import datetime
from typing import Generic, Protocol, TypeVar
from uuid import UUID

_MIN_STALE_ITEMS = 64


class HasDueAt(Protocol):
    @property
    def id(self) -> UUID: ...
    @property
    def due_at(self) -> datetime: ...


T = TypeVar("T", bound=HasDueAt)


class TimeIndex(Generic[T]):
    def __init__(self) -> None:
        self._entries: dict[UUID, tuple[int, T]] = {}
        # Equal due times are ordered by id: schedules created together are adjacent in the database, and then written together.
        self._heap: list[tuple[datetime, int, int, UUID]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id_: UUID) -> bool:
        return id_ in self._entries

    def get(self, id_: UUID) -> T | None:
        slot = self._entries.get(id_)
        return None if slot is None else slot[1]

    def put(self, entry: T) -> None:
        existing = self._entries.get(entry.id)
        if existing is not None and existing[1].due_at == entry.due_at:
            self._entries[entry.id] = (existing[0], entry)
            return
        self._sequence += 1
        self._entries[entry.id] = (self._sequence, entry)
        heapq.heappush(self._heap, (entry.due_at, entry.id.int, self._sequence, entry.id))
        if len(self._heap) > 2 * len(self._entries) + _MIN_STALE_ITEMS:
            self._heap = [(entry.due_at, id_.int, sequence, id_) for id_, (sequence, entry) in self._entries.items()]
            heapq.heapify(self._heap)

    def discard(self, ids: Iterable[UUID]) -> None:
        for id_ in ids:
            self._entries.pop(id_, None)

    def clear(self) -> None:
        self._entries.clear()
        self._heap.clear()

    def next_due_at(self) -> datetime | None:
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def take_due(self, now: datetime, limit: int) -> list[T]:
        """Remove and return up to `limit` entries that are due at or before `now`, oldest first."""
        taken: list[T] = []
        while len(taken) < limit and self._heap and self._heap[0][0] <= now:
            _, _, sequence, id_ = heapq.heappop(self._heap)
            slot = self._entries.get(id_)
            if slot is not None and slot[0] == sequence:
                taken.append(slot[1])
                del self._entries[id_]
        return taken

    def values(self) -> list[T]:
        return [entry for _, entry in self._entries.values()]

    def _drop_stale(self) -> None:
        while self._heap:
            _, _, sequence, id_ = self._heap[0]
            slot = self._entries.get(id_)
            if slot is not None and slot[0] == sequence:
                return
            heapq.heappop(self._heap)
