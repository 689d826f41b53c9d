"""Group commit: requests that arrive while a write is in progress are written together by the next one.

Requests share a commit, and each waits until its commit is done. Their order is kept. If the database rejects a batch, the
halves are written separately, so that only the invalid request fails. If a row is locked, each request is written alone and
without delaying later ones, so that only the request with the locked row waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from everbeat.core.errors import StoreLocked, StoreRefused
from everbeat.services.locked_writes import retry_while_locked

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")


class GroupCommit(Generic[I, R]):
    """Writes items in batches, one batch at a time. `count_rows` returns the number of rows of an item.

    `on_batch` is called with the number of rows of each batch.
    """

    def __init__(
        self,
        write: Callable[[list[I]], Awaitable[list[R]]],
        *,
        max_rows: int,
        count_rows: Callable[[I], int],
        on_batch: Callable[[int], None] = lambda _rows: None,
    ) -> None:
        self._write = write
        self._max_rows = max_rows
        self._count_rows = count_rows
        self._on_batch = on_batch
        self._waiting: deque[tuple[I, asyncio.Future[R]]] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._writing_alone: set[asyncio.Task[None]] = set()

    async def add(self, item: I) -> R:
        """Write an item durably and return its result."""
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._run())
        return await done

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._write_batch(self._take())
        except BaseException as error:  # cancelled: the items behind it would wait forever
            _fail([self._waiting.popleft() for _ in range(len(self._waiting))], error)
            raise
        finally:
            self._writing = None

    def _take(self) -> list[tuple[I, asyncio.Future[R]]]:
        batch, rows = [self._waiting.popleft()], 0
        rows = self._count_rows(batch[0][0])
        while self._waiting and rows + self._count_rows(self._waiting[0][0]) <= self._max_rows:
            rows += self._count_rows(self._waiting[0][0])
            batch.append(self._waiting.popleft())
        self._on_batch(rows)
        return batch

    async def _write_batch(self, batch: list[tuple[I, asyncio.Future[R]]]) -> None:
        try:
            results = await self._write([item for item, _ in batch])
            written = list(zip(batch, results, strict=True))
        except StoreRefused as error:
            if len(batch) == 1:
                _fail(batch, error)
                return
            middle = len(batch) // 2
            await self._write_batch(batch[:middle])
            await self._write_batch(batch[middle:])
        except StoreLocked:
            for item, done in batch:
                task = asyncio.create_task(self._write_alone(item, done))
                self._writing_alone.add(task)
                task.add_done_callback(self._writing_alone.discard)
        except BaseException as error:
            _fail(batch, error)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, done), result in written:
                if not done.done():
                    done.set_result(result)

    async def _write_alone(self, item: I, done: asyncio.Future[R]) -> None:
        try:
            (result,) = await retry_while_locked(lambda: self._write([item]))
        except BaseException as error:
            _fail([(item, done)], error)
            if not isinstance(error, Exception):
                raise
        else:
            if not done.done():
                done.set_result(result)


def _fail(batch: list[tuple[I, asyncio.Future[R]]], error: BaseException) -> None:
    for _, done in batch:
        if not done.done():
            done.set_exception(error)
