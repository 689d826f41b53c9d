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

_MOST_TOGETHER = 1000
_MOST_UNDER_WAY = 4


class _Waiting(NamedTuple):
    task: TaskInput
    id: asyncio.Future[UUID]


class Coalescer:
    """Belongs to one event loop. `send` submits tasks in one request."""

    def __init__(self, send: Callable[[Sequence[TaskInput]], Awaitable[list[UUID]]]) -> None:
        self._send = send
        self._waiting: deque[_Waiting] = deque()
        self._under_way: set[asyncio.Task[None]] = set()

    async def submit(self, task: TaskInput) -> UUID:
        if task.idempotency_key is None:
            task = msgspec.structs.replace(task, idempotency_key=new_key())
        waiting = _Waiting(task, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if len(self._under_way) < _MOST_UNDER_WAY:
            sender = asyncio.create_task(self._send_waiting())
            self._under_way.add(sender)
            sender.add_done_callback(self._under_way.discard)
        return await waiting.id

    async def close(self) -> None:
        """Let go of what is still under way; whoever waits for it is told that it was cancelled."""
        for sender in list(self._under_way):
            sender.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        while self._waiting:
            self._waiting.popleft().id.cancel()

    async def _send_waiting(self) -> None:
        while self._waiting:
            together = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST_TOGETHER))]
            # Callers that have gone away meanwhile want nothing sent.
            wanted = [waiting for waiting in together if not waiting.id.done()]
            if wanted:
                await self._send_together(wanted)

    async def _send_together(self, together: list[_Waiting]) -> None:
        try:
            ids = await self._send([waiting.task for waiting in together])
        except ServerProblem as problem:
            if len(together) > 1 and 400 <= problem.status < 500:
                await asyncio.gather(*(self._send_together([waiting]) for waiting in together))
            else:
                _tell_all(together, problem)
        except Exception as error:
            _tell_all(together, error)
        except asyncio.CancelledError:
            for waiting in together:
                waiting.id.cancel()
            raise
        else:
            for waiting, id_ in zip(together, ids, strict=True):
                if not waiting.id.done():
                    waiting.id.set_result(id_)


def _tell_all(together: list[_Waiting], error: Exception) -> None:
    for waiting in together:
        if not waiting.id.done():
            waiting.id.set_exception(error)
