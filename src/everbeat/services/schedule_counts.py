"""Numbers of schedules by status, for the dashboard. Counting reads every schedule of a tenant; pages do not wait for it."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple
from uuid import UUID

from everbeat.store.base import Store

# A count is used for this many times as long as it took: counting takes at most a tenth of the time.
_USED_FACTOR = 10
_MAX_KEPT = 1000


class _Kept(NamedTuple):
    until: float
    counts: dict[str, int]


class ScheduleCounts:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[UUID, _Kept] = {}
        self._counting: dict[UUID, asyncio.Task[dict[str, int]]] = {}

    async def within(self, tenant_id: UUID, seconds: float) -> dict[str, int] | None:
        """Return the counts; if they are not known in time, those before them, or None. Counting then continues."""
        kept = self._kept.get(tenant_id)
        if kept is not None and time.monotonic() < kept.until:
            return kept.counts
        counting = self._counting.get(tenant_id)
        if counting is None:
            counting = self._counting[tenant_id] = asyncio.create_task(self._count(tenant_id))
            # Also if nobody waits any more, an error counts as seen.
            counting.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.wait({counting}, timeout=seconds)
        if counting.done():
            return counting.result()
        return None if kept is None else kept.counts

    async def _count(self, tenant_id: UUID) -> dict[str, int]:
        began = time.monotonic()
        try:
            counts = await self._store.schedule_count(tenant_id)
        finally:
            del self._counting[tenant_id]
        if len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
        ended = time.monotonic()
        self._kept[tenant_id] = _Kept(ended + _USED_FACTOR * (ended - began), counts)
        return counts
