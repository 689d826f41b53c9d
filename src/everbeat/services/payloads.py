"""Large payloads: written to the blob store before their task is written, and fetched when a task is claimed or read.

No call to the blob store is made inside a database transaction. If a task was certainly not written, its payload is deleted
immediately; otherwise the collector finds it.
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
from everbeat.services.blobs import BlobStore, payload_size

MAX_CLAIMED_BYTES = 16 * 1024 * 1024
_MAX_CONCURRENT_CALLS = 8
_MAX_FILL_SECONDS = 10.0

T = TypeVar("T", TaskRecord, DeadLetter)


class FilledTasks(NamedTuple):
    """Claimed tasks by what became of their payload.

    `tasks` are complete. `postponed` did not fit into one claim. For `unavailable` the blob store could not be reached in
    time. The payloads of `missing` no longer exist.
    """

    tasks: list[ClaimedTask]
    postponed: list[ClaimedTaskWithoutPayload]
    unavailable: list[ClaimedTaskWithoutPayload]
    missing: list[ClaimedTaskWithoutPayload]


class LargePayloads:
    def __init__(self, blobs: BlobStore, *, max_bytes: int = MAX_CLAIMED_BYTES) -> None:
        self._blobs = blobs
        self._max_claimed_bytes = max_bytes

    # Writing

    def check(self, task: NewTask) -> None:
        """Raise TooLarge if the payload needs a blob store and this server has none."""
        if not self._blobs.is_configured and is_large(task):
            size = len(task.payload)
            raise TooLarge.of(
                "payload", f"is {size} bytes; at most {MAX_ROW_PAYLOAD_BYTES} without a blob store (setting blob_url)"
            )

    async def keep(self, tasks: Sequence[NewTask]) -> list[NewTask]:
        """Put large payloads into the blob store, and return the tasks with references to them."""
        indexes = [index for index, task in enumerate(tasks) if is_large(task)]
        stored = list(tasks)
        if not indexes:
            return stored
        for index in indexes:
            self.check(tasks[index])
        semaphore = asyncio.Semaphore(_MAX_CONCURRENT_CALLS)

        async def put(index: int) -> None:
            task = tasks[index]
            async with semaphore:
                ref = await self._blobs.put(task.tenant_id, task.payload)
            stored[index] = task._replace(payload=b"null", payload_ref=ref)

        try:
            async with asyncio.TaskGroup() as group:
                for index in indexes:
                    group.create_task(put(index))
        except ExceptionGroup as errors:
            await self.discard(stored[index] for index in indexes)
            raise errors.exceptions[0] from None
        return stored

    async def discard(self, tasks: Iterable[NewTask]) -> None:
        """Delete payloads of tasks that were certainly not written. The collector finds those that cannot be deleted now."""
        refs = [task.payload_ref for task in tasks if task.payload_ref is not None]
        if refs:
            with contextlib.suppress(BlobsUnavailable):
                await self._blobs.delete(refs)

    # Reading

    async def read(self, task: T) -> T:
        """Return the task with its payload, if that still exists."""
        if task.payload_ref is None:
            return task
        try:
            payload = await self._blobs.get(task.payload_ref)
        except BlobMissing:
            return task
        return msgspec.structs.replace(task, payload=payload, payload_ref=None)

    async def fill(self, tasks: Sequence[ClaimedTask]) -> FilledTasks:
        """Fetch the missing payloads, several at a time. Their total size is limited, but the first one is always fetched."""
        filled = FilledTasks([], [], [], [])
        to_fetch: list[ClaimedTaskWithoutPayload] = []
        left = self._max_claimed_bytes
        for task in tasks:
            if not isinstance(task, ClaimedTaskWithoutPayload):
                continue
            left -= payload_size(task.payload_ref)
            (to_fetch if left >= 0 or not to_fetch else filled.postponed).append(task)
        found = await self._fetch(to_fetch)
        for task in tasks:
            if not isinstance(task, ClaimedTaskWithoutPayload):
                filled.tasks.append(task)
                continue
            match found.get(task.id):
                case bytes() as payload:
                    filled.tasks.append(_with_payload(task, payload))
                case BlobMissing():
                    filled.missing.append(task)
                case BlobsUnavailable():
                    filled.unavailable.append(task)
        return filled

    async def _fetch(self, tasks: Sequence[ClaimedTaskWithoutPayload]) -> dict[UUID, bytes | BlobMissing | BlobsUnavailable]:
        found: dict[UUID, bytes | BlobMissing | BlobsUnavailable] = {
            task.id: BlobsUnavailable("the payload was not fetched in time") for task in tasks
        }
        semaphore = asyncio.Semaphore(_MAX_CONCURRENT_CALLS)

        async def get(task: ClaimedTaskWithoutPayload) -> None:
            try:
                async with semaphore:
                    found[task.id] = await self._blobs.get(task.payload_ref)
            except (BlobMissing, BlobsUnavailable) as error:
                found[task.id] = error

        # However slow the blob store is, the worker has at least half of its lease left.
        seconds = min((_MAX_FILL_SECONDS, *(task.lease_seconds / 2 for task in tasks)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for task in tasks:
                    group.create_task(get(task))
        return found


def split_by_size(tasks: list[ClaimedTask]) -> tuple[list[ClaimedTask], list[ClaimedTask]]:
    """Return the tasks whose payloads fit into one claim, and the rest. Payloads in the blob store are not counted."""
    size = 0
    for index, task in enumerate(tasks):
        size += len(bytes(task.payload))
        if index and size > MAX_CLAIMED_BYTES:
            return tasks[:index], tasks[index:]
    return tasks, []


def is_large(task: NewTask) -> bool:
    """Whether the payload is too large for a row."""
    return len(task.payload) > MAX_ROW_PAYLOAD_BYTES


def _with_payload(task: ClaimedTaskWithoutPayload, payload: bytes) -> ClaimedTask:
    fields = msgspec.structs.asdict(task)
    del fields["payload_ref"]
    return ClaimedTask(**{**fields, "payload": msgspec.Raw(payload)})
