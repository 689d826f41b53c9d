"""Submits that are asked for while others are under way go together: many coroutines, few requests.

Alone, a task is sent at once. A batch is all or nothing, and its tasks come from callers that know nothing of each other: if
the server refuses it, each is sent by itself, and each caller hears what concerns its own. Every task has its key from the
beginning, so that no way of sending it twice makes two.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple
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
    """Belongs to one event loop. `send` submits tasks in one request."""

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
            sender = asyncio.create_task(self._send_waiting())
            self._in_flight.add(sender)
            sender.add_done_callback(self._in_flight.discard)
        return await waiting.id

    async def close(self) -> None:
        """Let go of what is still under way; whoever waits for it is told that it was cancelled."""
        for sender in list(self._in_flight):
            sender.cancel()
        await asyncio.gather(*self._in_flight, return_exceptions=True)
        while self._waiting:
            self._waiting.popleft().id.cancel()

    async def _send_waiting(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MAX_BATCH))]
            # Callers that have gone away meanwhile want nothing sent.
            wanted = [waiting for waiting in batch if not waiting.id.done()]
            if wanted:
                await self._send_batch(wanted)

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
