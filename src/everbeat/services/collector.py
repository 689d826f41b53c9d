"""The collector: removes payloads from the blob store that no task, finished task or dead letter refers to any more.

It goes through the blob store piece by piece and asks the database about what is older than a day: a younger payload may
belong to a task that is being written. A task that is done again takes over the reference of the old one; so that this cannot
happen in the moment between the look and the removal, a payload goes only after a second look, a while after the first.
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
        rest: timedelta = timedelta(hours=1),
        doubt: timedelta = timedelta(minutes=1),
        max_suspects: int = 10_000,
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._grace = grace
        self._rest = rest
        self._doubt = doubt
        self._most_suspects = max_suspects
        self._suspects: dict[str, datetime] = {}
        self._batches: AsyncIterator[list[Blob]] | None = None
        self._next_at: datetime | None = None

    async def collect(self, moment: datetime) -> tuple[int, bool]:
        """Remove what was found before, and look through one more piece; how many are gone, and whether to go on at once."""
        if not self._blobs.is_there:
            return 0, False
        removed = await self._remove(moment)
        if len(self._suspects) >= self._most_suspects:
            return removed, False
        if self._batches is None:
            if self._next_at is not None and moment < self._next_at:
                return removed, False
            self._batches = self._blobs.batches()
        try:
            batch = await anext(self._batches, None)
        except BaseException:
            await self._stop()
            raise
        if batch is None:
            await self._stop()
            self._next_at = moment + self._rest
            return removed, False
        old = [blob.ref for blob in batch if blob.modified_at < moment - self._grace]
        for ref in await self._store.blob_unused(old) if old else ():
            self._suspects.setdefault(ref, moment)
        return removed, True

    async def _remove(self, moment: datetime) -> int:
        ripe = [ref for ref, since in self._suspects.items() if moment - since >= self._doubt]
        removed = 0
        for start in range(0, len(ripe), _BATCH_SIZE):
            batch = ripe[start : start + _BATCH_SIZE]
            unused = await self._store.blob_unused(batch)
            if unused:
                await self._blobs.delete(unused)
            for ref in batch:
                del self._suspects[ref]
            removed += len(unused)
        return removed

    async def _stop(self) -> None:
        if self._batches is not None:
            await cast("AsyncGenerator[list[Blob]]", self._batches).aclose()
        self._batches = None
