"""The turnstile: requests share a few milliseconds of each round of the event loop, however many there are.

The tick loop lives in the same event loop. Between the moment a tick is due and the moment it is written lie a handful of
rounds, and each takes as long as all that is ready in it. With a hundred requests under way that would be a hundred steps a
round. So a step of a request that finds the share of its round used up waits for one of the next rounds, first come first
served. Nothing is lost by it: a round without other work ends at once, and the next one begins.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Generator
from time import perf_counter
from typing import Any

_ROUND_SECONDS = 0.002
_WEIGHT = 0.1


class FairScheduler:
    def __init__(self, round_seconds: float = _ROUND_SECONDS) -> None:
        self._share = round_seconds
        self._spent = 0.0
        self._usual = _ROUND_SECONDS / 10
        self._is_counting = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def paced(self, work: Coroutine[Any, Any, None]) -> _Paced:
        """The same work, step by step as there is room for it."""
        return _Paced(self, work)

    @property
    def is_used_up(self) -> bool:
        return self._spent >= self._share

    def spend(self, seconds: float) -> None:
        self._spent += seconds
        self._usual += (seconds - self._usual) * _WEIGHT
        self._count()

    def wait(self) -> asyncio.Future[None]:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._count()
        return turn

    def _count(self) -> None:
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        self._spent = 0.0
        for _ in range(min(len(self._waiting), max(1, int(self._share / self._usual)))):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
        self._is_counting = False
        if self._waiting:
            self._count()


class _Paced:
    """Drives a coroutine as a task would, and asks at the turnstile before each step."""

    __slots__ = ("_scheduler", "_work")

    def __init__(self, scheduler: FairScheduler, work: Coroutine[Any, Any, None]) -> None:
        self._scheduler = scheduler
        self._work = work

    def __await__(self) -> Generator[Any, None, None]:
        scheduler, work = self._scheduler, self._work
        thrown: BaseException | None = None
        try:
            while True:
                if thrown is None and scheduler.is_used_up:
                    try:
                        yield from scheduler.wait()
                    except BaseException as error:  # cancelled while it waited: for the work to know
                        thrown = error
                started = perf_counter()
                try:
                    awaited = work.send(None) if thrown is None else work.throw(thrown)
                except StopIteration:
                    return
                finally:
                    thrown = None
                    scheduler.spend(perf_counter() - started)
                try:
                    yield awaited
                except BaseException as error:
                    thrown = error
        finally:
            work.close()
