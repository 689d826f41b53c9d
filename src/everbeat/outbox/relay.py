"""The relay: moves the rows of an outbox to Everbeat. docs/concepts/outbox.md explains the protocol.

Any number of relays can run. A relay has at most one batch in work. It can be killed at any time: the rows of its batch are
submitted again with the same idempotency keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from everbeat.client.base import ApiResponse
from everbeat.client.errors import ServerProblem
from everbeat.client.requests import MAX_BODY_BYTES
from everbeat.outbox.sender import SentRows, batch_body, send_rows
from everbeat.outbox.table import LockedBatch, OutboxRow, OutboxTable, OutboxUnavailable
from everbeat.outbox.telemetry import RelayTelemetry

DEFAULT_BATCH_SIZE = 1000
DEFAULT_POLL_SECONDS = 1.0
MAX_DELAY_SECONDS = 30.0
_FIRST_DELAY_SECONDS = 0.2
# Left of the time for which the shards are locked, to delete the rows and commit.
_COMMIT_SECONDS = 5.0


class RelayTransport(Protocol):
    """The part of a transport that a relay uses. It must not retry by itself, because the shards are locked meanwhile."""

    async def request(self, method: str, path: str, *, body: object = None) -> ApiResponse: ...


class Relay:
    """Moves the rows of one outbox. `run_once` moves one batch."""

    def __init__(
        self,
        table: OutboxTable,
        transport: RelayTransport,
        telemetry: RelayTelemetry,
        *,
        batch_size: int = DEFAULT_BATCH_SIZE,
        poll_seconds: float = DEFAULT_POLL_SECONDS,
        random_fraction: Callable[[], float] = random.random,
    ) -> None:
        self._table = table
        self._transport = transport
        self._telemetry = telemetry
        self._batch_size = batch_size
        self._poll_seconds = poll_seconds
        self._random_fraction = random_fraction
        self._failures = 0
        self._wait_seconds: float | None = None

    async def run(self, stopping: asyncio.Event) -> None:
        """Move rows until `stopping` is set. A batch in work is finished first."""
        while not stopping.is_set():
            if not await self.run_once() and not stopping.is_set():
                await self._wait(stopping)
        self._telemetry.stopped()
        await self._table.close()

    async def drain(self) -> int:
        """Move rows until there are none, and return their number. Raises the first problem that makes all rows wait."""
        count = 0
        while True:
            moved = await self._move_batch()
            if moved is None:
                await self._table.close()
                return count
            if moved.problem is not None:
                raise moved.problem
            count += len(moved.accepted) + len(moved.rejected)

    async def run_once(self) -> bool:
        """Move one batch. Returns whether there may be more rows, which can be moved at once."""
        self._wait_seconds = None
        try:
            moved = await self._move_batch()
        except OutboxUnavailable as error:
            self._delay(error)
            return False
        if moved is None:
            self._recovered()
            return False
        if moved.problem is not None:
            self._delay(moved.problem)
            return False
        self._recovered()
        return True

    async def _move_batch(self) -> SentRows | None:
        """Move the first rows of some shards. Returns None if there are none."""
        sent = None
        async with self._table.locked_batch(self._batch_size) as batch:
            if batch.rows:
                sent = await self._send(batch)
                await batch.remove(sent.accepted, sent.rejected)
        if sent is not None:
            self._telemetry.moved(len(sent.accepted), sent.rejected)
        return sent

    async def _send(self, batch: LockedBatch) -> SentRows:
        """Submit the rows while their shards are certainly locked."""
        send_until = batch.held_until - _COMMIT_SECONDS

        async def submit(tasks: Sequence[bytes]) -> None:
            # Not awaited for longer: a relay that no longer holds the shards must not continue with the next part.
            async with asyncio.timeout_at(send_until):
                await self._transport.request("POST", "/v1/tasks/batch", body=batch_body(tasks))

        return await send_rows(_first_rows(batch.rows), submit)

    async def _wait(self, stopping: asyncio.Event) -> None:
        stopped = asyncio.ensure_future(stopping.wait())
        seconds = self._wait_seconds
        waiting = asyncio.ensure_future(asyncio.sleep(seconds) if seconds is not None else self._wait_for_rows())
        await asyncio.wait({stopped, waiting}, return_when=asyncio.FIRST_COMPLETED)
        for task in (stopped, waiting):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting

    async def _wait_for_rows(self) -> None:
        try:
            await self._table.wait(self._poll_seconds)
        except OutboxUnavailable as error:
            self._delay(error)
            await asyncio.sleep(self._wait_seconds or 0)

    def _delay(self, error: Exception) -> None:
        """Wait for the time that the server has requested, or increasingly long, with jitter."""
        backoff = min(_FIRST_DELAY_SECONDS * 2.0 ** min(self._failures, 10), MAX_DELAY_SECONDS)
        self._failures += 1
        requested = error.retry_after_seconds if isinstance(error, ServerProblem) else None
        self._wait_seconds = (requested or 0.0) + backoff * self._random_fraction()
        self._telemetry.waiting(error, self._wait_seconds)

    def _recovered(self) -> None:
        self._failures = 0
        self._telemetry.recovered()


def _first_rows(rows: list[OutboxRow]) -> list[OutboxRow]:
    """Return the first rows that fit into one request, and at least one."""
    size = 0
    for index, row in enumerate(rows):
        size += len(row.task) + 1
        if size > MAX_BODY_BYTES and index:
            return rows[:index]
    return rows
