"""Group commit: requests that arrive while a write is under way are written together by the next one.

A request costs no commit of its own, and its answer still waits for the commit that holds it. Order is kept. If the database
refuses a batch for what is in it, the halves are tried apart, so that only the request at fault is told.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from everbeat.core.errors import StoreRefused

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")


class GroupCommit(Generic[I, R]):
    """Writes items in batches, one batch at a time; `weigh` says how many rows an item has."""

    def __init__(
        self, write: Callable[[list[I]], Awaitable[list[R]]], *, max_rows: int, count_rows: Callable[[I], int]
    ) -> None:
        self._write = write
        self._max_rows = max_rows
        self._weigh = count_rows
        self._waiting: deque[tuple[I, asyncio.Future[R]]] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def add(self, item: I) -> R:
        """Written, durable: what became of the item."""
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._run())
        return await done

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._settle(self._take())
        except BaseException as error:  # broken off: whoever waits behind it would wait for ever
            _fail([self._waiting.popleft() for _ in range(len(self._waiting))], error)
            raise
        finally:
            self._writing = None

    def _take(self) -> list[tuple[I, asyncio.Future[R]]]:
        batch, weight = [self._waiting.popleft()], 0
        weight = self._weigh(batch[0][0])
        while self._waiting and weight + self._weigh(self._waiting[0][0]) <= self._max_rows:
            weight += self._weigh(self._waiting[0][0])
            batch.append(self._waiting.popleft())
        return batch

    async def _settle(self, batch: list[tuple[I, asyncio.Future[R]]]) -> None:
        try:
            results = await self._write([item for item, _ in batch])
            answers = list(zip(batch, results, strict=True))
        except StoreRefused as error:
            if len(batch) == 1:
                _fail(batch, error)
                return
            middle = len(batch) // 2
            await self._settle(batch[:middle])
            await self._settle(batch[middle:])
        except BaseException as error:
            _fail(batch, error)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, done), result in answers:
                if not done.done():
                    done.set_result(result)


def _fail(batch: list[tuple[I, asyncio.Future[R]]], error: BaseException) -> None:
    for _, done in batch:
        if not done.done():
            done.set_exception(error)
