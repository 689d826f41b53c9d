"""Combines concurrent submits: those that arrive while requests are in flight are sent as one batch.

A submit is sent immediately while fewer than `_MAX_IN_FLIGHT` requests are in flight. A batch is atomic, but its tasks come
from independent callers. If the server rejects a batch, each task is sent separately, and each caller gets the result of its
own task. Tasks without an idempotency key of their own share the key of their request, which costs the server much less. So
they are sent separately only if it is certain that no earlier try of the request has created them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, cast
from uuid import UUID

from everbeat.client.errors import ServerProblem
from everbeat.core.protocol import TaskInput

_MAX_BATCH = 1000
_MAX_IN_FLIGHT = 4


class _PendingSubmit(NamedTuple):
    task: TaskInput
    id: asyncio.Future[UUID]


class Coalescer:
    """Combines the submits of one event loop. `send` submits a batch of tasks."""

    def __init__(self, send: Callable[[Sequence[TaskInput]], Awaitable[list[UUID]]]) -> None:
        self._send = send
        self._waiting: deque[_PendingSubmit] = deque()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def submit(self, task: TaskInput) -> UUID:
        loop = self._loop or asyncio.get_running_loop()
        self._loop = loop
        waiting = _PendingSubmit(task, loop.create_future())
        self._waiting.append(waiting)
        if len(self._in_flight) < _MAX_IN_FLIGHT:
            self._in_flight.add(loop.create_task(self._send_waiting()))
        return await waiting.id

    async def close(self) -> None:
        """Cancel the requests in flight and the submits that wait for them."""
        for sender in list(self._in_flight):
            sender.cancel()
        await asyncio.gather(*self._in_flight, return_exceptions=True)
        self._in_flight.clear()  # a sender that was cancelled before it started has not removed itself
        while self._waiting:
            self._waiting.popleft().id.cancel()

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                # Without the tasks of callers that have been cancelled.
                pending = [waiting for waiting in self._take() if not waiting.id.done()]
                if pending:
                    await self._send_batch(pending)
        finally:
            # Not in a done callback: a submit could run before the callback, count this sender as in flight, and wait for a
            # sender that has stopped reading the queue.
            self._in_flight.discard(cast(asyncio.Task[None], asyncio.current_task()))

    def _take(self) -> list[_PendingSubmit]:
        """Take the next submits that all have an idempotency key of their own, or all have none."""
        waiting = self._waiting
        has_key = waiting[0].task.idempotency_key is not None
        batch = [waiting.popleft()]
        while waiting and len(batch) < _MAX_BATCH and (waiting[0].task.idempotency_key is not None) == has_key:
            batch.append(waiting.popleft())
        return batch

    async def _send_batch(self, batch: list[_PendingSubmit]) -> None:
        try:
            ids = await self._send([waiting.task for waiting in batch])
        except ServerProblem as problem:
            has_keys = batch[0].task.idempotency_key is not None
            if len(batch) > 1 and 400 <= problem.status < 500 and (has_keys or problem.is_certain):
                await asyncio.gather(*(self._send_batch([waiting]) for waiting in batch))
            else:
                _fail_all(batch, problem)
        except Exception as error:
            _fail_all(batch, error)
        except asyncio.CancelledError:
            for waiting in batch:
                waiting.id.cancel()
            raise
        else:
            for waiting, id_ in zip(batch, ids, strict=True):
                if not waiting.id.done():
                    waiting.id.set_result(id_)


def _fail_all(batch: list[_PendingSubmit], error: Exception) -> None:
    for waiting in batch:
        if not waiting.id.done():
            waiting.id.set_exception(error)
