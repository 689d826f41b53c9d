"""The collector: deletes payloads from the blob store that no task, finished task or dead letter refers to any more.

It lists the blob store in batches and checks payloads that are older than a day; a younger one may belong to a task that is
being written. A retried or replayed task refers to the payload of the old one. This must not happen between the check and the
deletion, so a payload is only deleted after a second check, some time after the first.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from datetime import datetime, timedelta
from typing import cast

from everbeat.services.blobs import Blob, BlobStore
from everbeat.store.base import Store

_BATCH_SIZE = 1000


class Collector:
    def __init__(
        self,
        store: Store,
        blobs: BlobStore,
        *,
        grace: timedelta = timedelta(days=1),
        interval: timedelta = timedelta(hours=1),
        recheck_delay: timedelta = timedelta(minutes=1),
        max_candidates: int = 10_000,
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._grace = grace
        self._interval = interval
        self._recheck_delay = recheck_delay
        self._max_candidates = max_candidates
        self._candidates: dict[str, datetime] = {}
        self._batches: AsyncIterator[list[Blob]] | None = None
        self._next_at: datetime | None = None

    async def collect(self, moment: datetime) -> tuple[int, bool]:
        """Delete unused payloads found earlier, and scan one more batch.

        Returns the number of deleted payloads, and whether to continue immediately.
        """
        if not self._blobs.is_configured:
            return 0, False
        deleted = await self._delete_unused(moment)
        if len(self._candidates) >= self._max_candidates:
            return deleted, False
        if self._batches is None:
            if self._next_at is not None and moment < self._next_at:
                return deleted, False
            self._batches = self._blobs.batches()
        try:
            batch = await anext(self._batches, None)
        except BaseException:
            await self._end_scan()
            raise
        if batch is None:
            await self._end_scan()
            self._next_at = moment + self._interval
            return deleted, False
        old = [blob.ref for blob in batch if blob.modified_at < moment - self._grace]
        for ref in await self._store.blob_unused(old) if old else ():
            self._candidates.setdefault(ref, moment)
        return deleted, True

    async def _delete_unused(self, moment: datetime) -> int:
        due = [ref for ref, since in self._candidates.items() if moment - since >= self._recheck_delay]
        deleted = 0
        for start in range(0, len(due), _BATCH_SIZE):
            batch = due[start : start + _BATCH_SIZE]
            unused = await self._store.blob_unused(batch)
            if unused:
                await self._blobs.delete(unused)
            for ref in batch:
                del self._candidates[ref]
            deleted += len(unused)
        return deleted

    async def _end_scan(self) -> None:
        if self._batches is not None:
            await cast("AsyncGenerator[list[Blob]]", self._batches).aclose()
        self._batches = None
