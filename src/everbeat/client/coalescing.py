"""Combines concurrent submits: those that arrive while requests are in flight are sent as one batch.

A submit is sent immediately while fewer than `_MAX_IN_FLIGHT` requests are in flight. A batch is atomic, but its tasks come
from independent callers. If the server rejects a batch, each task is sent separately, and each caller gets the result of its
own task. Each task gets its idempotency key before the first request, so that sending it again does not create a second task.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, cast
from uuid import UUID

import msgspec

from everbeat.client.errors import ServerProblem
from everbeat.client.requests import new_key
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

    async def submit(self, task: TaskInput) -> UUID:
        if task.idempotency_key is None:
            task = msgspec.structs.replace(task, idempotency_key=new_key())
        waiting = _PendingSubmit(task, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if len(self._in_flight) < _MAX_IN_FLIGHT:
            self._in_flight.add(asyncio.create_task(self._send_waiting()))
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
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MAX_BATCH))]
                # Skip the tasks of callers that have been cancelled.
                pending = [waiting for waiting in batch if not waiting.id.done()]
                if pending:
                    await self._send_batch(pending)
        finally:
            # Not in a done callback: a submit could run before the callback, count this sender as in flight, and wait for a
            # sender that has stopped reading the queue.
            self._in_flight.discard(cast(asyncio.Task[None], asyncio.current_task()))

    async def _send_batch(self, batch: list[_PendingSubmit]) -> None:
        try:
            ids = await self._send([waiting.task for waiting in batch])
        except ServerProblem as problem:
            if len(batch) > 1 and 400 <= problem.status < 500:
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
