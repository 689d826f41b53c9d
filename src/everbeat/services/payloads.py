"""Large payloads on their way: into the blob store before a task is written, and out of it when a task is claimed or read.

No call to the blob store is made inside a database transaction. What was put there for a task that was not written after all
is removed at once where that is certain, and else found by the collector.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar
from uuid import UUID

import msgspec

from everbeat.core.definitions import MAX_ROW_PAYLOAD_BYTES
from everbeat.core.errors import BlobMissing, BlobsUnavailable, TooLarge
from everbeat.core.tasks import ClaimedTask, ClaimedTaskWithoutPayload, DeadLetter, NewTask, TaskRecord
from everbeat.services.blobs import BlobStore, bytes_at

MAX_CLAIMED_BYTES = 32 * 1024 * 1024
_AT_ONCE = 8
_CERTAINLY_SMALL = MAX_ROW_PAYLOAD_BYTES // 4  # characters: none takes more than four bytes
_MAX_FILL_SECONDS = 10.0

T = TypeVar("T", TaskRecord, DeadLetter)


class FilledTasks(NamedTuple):
    """Of claimed tasks: those to hand out, those that were too much for one claim, and those whose payload is away or gone."""

    tasks: list[ClaimedTask]
    over: list[ClaimedTaskWithoutPayload]
    away: list[ClaimedTaskWithoutPayload]
    missing: list[ClaimedTaskWithoutPayload]


class LargePayloads:
    def __init__(self, blobs: BlobStore, *, max_bytes: int = MAX_CLAIMED_BYTES) -> None:
        self._blobs = blobs
        self._budget_bytes = max_bytes

    # In

    def check(self, task: NewTask) -> None:
        """Refuse what this server has no place for."""
        if not self._blobs.is_there and is_large(task):
            size = len(task.payload.encode())
            raise TooLarge.of(
                "payload", f"is {size} bytes; this server takes at most {MAX_ROW_PAYLOAD_BYTES}, for it has no blob store"
            )

    async def keep(self, tasks: Sequence[NewTask]) -> list[NewTask]:
        """The tasks as they are to be written, with large payloads in the blob store."""
        places = [place for place, task in enumerate(tasks) if is_large(task)]
        kept = list(tasks)
        if not places:
            return kept
        for place in places:
            self.check(tasks[place])
        semaphore = asyncio.Semaphore(_AT_ONCE)

        async def put(place: int) -> None:
            task = tasks[place]
            async with semaphore:
                ref = await self._blobs.put(task.tenant_id, task.payload.encode())
            kept[place] = task._replace(payload="null", payload_ref=ref)

        try:
            async with asyncio.TaskGroup() as group:
                for place in places:
                    group.create_task(put(place))
        except ExceptionGroup as errors:
            await self.discard(kept[place] for place in places)
            raise errors.exceptions[0] from None
        return kept

    async def discard(self, tasks: Iterable[NewTask]) -> None:
        """Payloads of tasks that were certainly not written; what cannot be removed now the collector finds."""
        refs = [task.payload_ref for task in tasks if task.payload_ref is not None]
        if refs:
            with contextlib.suppress(BlobsUnavailable):
                await self._blobs.delete(refs)

    # Out

    async def read(self, task: T) -> T:
        """With its payload, if that is still there."""
        if task.payload_ref is None:
            return task
        try:
            payload = await self._blobs.get(task.payload_ref)
        except BlobMissing:
            return task
        return msgspec.structs.replace(task, payload=payload, payload_ref=None)

    async def fill(self, tasks: Sequence[ClaimedTask]) -> FilledTasks:
        """Fetch what is missing, together, while the leases are young; the first always fits."""
        filled = FilledTasks([], [], [], [])
        wanted: list[ClaimedTaskWithoutPayload] = []
        left = self._budget_bytes
        for task in tasks:
            if not isinstance(task, ClaimedTaskWithoutPayload):
                continue
            left -= bytes_at(task.payload_ref)
            (wanted if left >= 0 or not wanted else filled.over).append(task)
        found = await self._fetched(wanted)
        for task in tasks:
            if not isinstance(task, ClaimedTaskWithoutPayload):
                filled.tasks.append(task)
                continue
            match found.get(task.id):
                case bytes() as payload:
                    filled.tasks.append(_whole(task, payload))
                case BlobMissing():
                    filled.missing.append(task)
                case BlobsUnavailable():
                    filled.away.append(task)
        return filled

    async def _fetched(self, tasks: Sequence[ClaimedTaskWithoutPayload]) -> dict[UUID, bytes | BlobMissing | BlobsUnavailable]:
        found: dict[UUID, bytes | BlobMissing | BlobsUnavailable] = {
            task.id: BlobsUnavailable("the payload did not come in time") for task in tasks
        }
        semaphore = asyncio.Semaphore(_AT_ONCE)

        async def get(task: ClaimedTaskWithoutPayload) -> None:
            try:
                async with semaphore:
                    found[task.id] = await self._blobs.get(task.payload_ref)
            except (BlobMissing, BlobsUnavailable) as error:
                found[task.id] = error

        # Half a lease is left to the worker, whatever the blob store does.
        seconds = min((_MAX_FILL_SECONDS, *(task.lease_seconds / 2 for task in tasks)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for task in tasks:
                    group.create_task(get(task))
        return found


def is_large(task: NewTask) -> bool:
    """Whether the payload is too large for a row."""
    return len(task.payload) > _CERTAINLY_SMALL and len(task.payload.encode()) > MAX_ROW_PAYLOAD_BYTES


def _whole(task: ClaimedTaskWithoutPayload, payload: bytes) -> ClaimedTask:
    fields = msgspec.structs.asdict(task)
    del fields["payload_ref"]
    return ClaimedTask(**{**fields, "payload": msgspec.Raw(payload)})
