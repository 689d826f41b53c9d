"""Heartbeats, from a thread with an event loop and a connection of its own.

A handler that blocks the worker's event loop would otherwise lose every lease of the process in silence. This thread renews
leases, takes the server's word that a task is cancelled or lost, gives up tasks whose leases can have expired while nobody
could be asked, and says aloud when the worker's event loop stands still. With a transport that lives in the worker's event
loop (in process), heartbeats have to go through it; then a blocked loop does cost leases, and the log says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, TypeVar

from everbeat.client.base import Transport
from everbeat.core.protocol import MAX_LEASES_PER_REPORT, LeaseHeartbeat, LeaseHeartbeatResult, LeaseHeartbeatRequest, Lease, LeaseReleaseRequest
from everbeat.worker.context import News
from everbeat.worker.faults import Backoff, is_refusal
from everbeat.worker.held import Hand, Held, Stop, beat_seconds, patience_seconds
from everbeat.worker.journal import Journal
from everbeat.worker.outcomes import line_of_frame

T = TypeVar("T")

TransportFactory = Callable[[], Transport]

NEWS_SECONDS = 1.0
_TICK_SECONDS = 0.25
_BLOCKED_SECONDS = 2.0
_MOST_NEWS = 512 * 1024
_NOT_RENEWED = frozenset({Stop.CANCEL, Stop.LOST, Stop.EXPIRED})


class Heart:
    """Beats for all that is in `hand`. `on_stop` is called in the worker's event loop."""

    def __init__(
        self,
        worker: str,
        hand: Hand,
        journal: Journal,
        transport: Transport,
        connect: TransportFactory | None,
        *,
        lease_seconds: float,
        on_stop: Callable[[Held], None],
    ) -> None:
        self._worker = worker
        self._hand = hand
        self._journal = journal
        self._transport = transport
        self._connect = connect
        self._on_stop = on_stop
        self._lease_seconds = lease_seconds
        self._tick_seconds = min(_TICK_SECONDS, beat_seconds(lease_seconds) / 4)
        self._worker_loop = asyncio.get_running_loop()
        self._worker_thread = threading.get_ident()
        self._watch = _LoopWatch(self._worker_loop, self._worker_thread, journal, can_renew=connect is not None)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self._stopped = asyncio.Event()
        self._ended = asyncio.Event()
        self._backoff = Backoff(1.0)
        self._not_before = 0.0
        self._news_sent_at = 0.0
        self._thread = threading.Thread(target=self._live, name="everbeat-heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        # The thread looks at this after it has said which loop is its own: one of the two sees the other.
        self._is_stopping = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopped.set)
        await self._ended.wait()

    def release_everything(self, seconds: float) -> None:
        """The last act before the process is ended by force; blocks, from any thread but this one."""
        if self._loop is None or not self._thread.is_alive():
            return
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._release_all(), self._loop).result(seconds)

    # In the thread

    def _live(self) -> None:
        try:
            asyncio.run(self._beat_until_stopped())
        except Exception as error:
            self._journal.broken("heartbeats", error)
        finally:
            with contextlib.suppress(RuntimeError):
                self._worker_loop.call_soon_threadsafe(self._ended.set)

    async def _beat_until_stopped(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._is_stopping:
            return
        if self._connect is None:
            await self._rounds()
            return
        self._transport = self._connect()
        await self._transport.open()
        try:
            await self._rounds()
        finally:
            await self._transport.close()

    async def _rounds(self) -> None:
        beating: asyncio.Task[None] | None = None
        pause = self._tick_seconds
        while not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopped.wait()
            held = list(self._hand.values())
            self._watch.look(bool(held))
            pause = min(self._tick_seconds, self._give_up_expired(held))
            if beating is None or beating.done():
                due = self._due(held)
                beating = asyncio.create_task(self._beat(due)) if due else None
        if beating is not None:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    def _give_up_expired(self, held: Sequence[Held]) -> float:
        """In how many seconds the next one would expire."""
        now = monotonic()
        left = self._tick_seconds
        for one in held:
            if one.is_settled or one.stop in _NOT_RENEWED:
                continue
            if one.trusted_until <= now:
                self._tell_to_stop(one, Stop.EXPIRED)
            else:
                left = min(left, one.trusted_until - now)
        return left

    def _due(self, in_hand: Sequence[Held]) -> list[Held]:
        now = monotonic()
        if now < self._not_before:
            return []
        held = [one for one in in_hand if one.stop not in _NOT_RENEWED or _has_news(one)]
        interval = beat_seconds(min((one.task.lease_seconds for one in held), default=self._lease_seconds))
        if any(now - one.renewed_at >= interval - self._tick_seconds for one in held):
            return [one for one in held if now - one.renewed_at >= interval / 2 or _has_news(one)]
        if now - self._news_sent_at >= NEWS_SECONDS:
            return [one for one in held if _has_news(one)]
        return []

    async def _beat(self, due: list[Held]) -> None:
        for start in range(0, len(due), MAX_LEASES_PER_REPORT):
            batch = due[start : start + MAX_LEASES_PER_REPORT]
            news = self._collect_news(batch)
            try:
                await self._beat_without_the_refused(batch, news)
            except Exception as error:
                _return_news(news)
                self._journal.away("heartbeat", error)
                self._not_before = monotonic() + self._backoff.seconds(error)
                return
            finally:
                for held in batch:
                    held.is_beating = False
        self._journal.back()
        self._backoff.reset()

    async def _beat_without_the_refused(self, batch: list[Held], news: dict[Held, News]) -> None:
        try:
            await self._beat_batch(batch, news)
        except Exception as error:
            if not news or not is_refusal(error):
                raise
            # The leases matter more than what was said.
            self._journal.refused(next(iter(news)), "heartbeat", error)
            news.clear()
            await self._beat_batch(batch, news)

    def _collect_news(self, batch: list[Held]) -> dict[Held, News]:
        self._news_sent_at = monotonic()
        news: dict[Held, News] = {}
        size = 0
        for held in batch:
            # What does not fit into one request rides on the next.
            if held.is_settled or size > _MOST_NEWS or held.context is None:
                continue
            # Set first: a report that sees it waits, one that does not finds the news still there and takes them along.
            held.is_beating = True
            if (told := held.context.take_news()) is None:
                held.is_beating = False
            else:
                news[held] = told
                size += len(told.log or "")
        return news

    async def _beat_batch(self, batch: list[Held], news: dict[Held, News]) -> None:
        beats = []
        for held in batch:
            told = news.get(held)
            progress, log = (told.progress, told.log) if told is not None else (None, None)
            beats.append(LeaseHeartbeat(id=held.task.id, fence=held.task.fence, progress=progress, log=log))
        sent_at = monotonic()
        seconds = patience_seconds(min(held.task.lease_seconds for held in batch))
        async with asyncio.timeout(seconds):
            answers = await self._send(lambda: self._transport.heartbeat(LeaseHeartbeatRequest(worker=self._worker, leases=beats)))
        by_key = {held.key: held for held in batch}
        for answer in answers:
            if (one := by_key.get(answer.id.int)) is not None:
                self._heard(one, answer, sent_at)

    def _heard(self, held: Held, answer: LeaseHeartbeatResult, sent_at: float) -> None:
        if answer.status == "lost":
            # The answer to a report may be on its way: then it is no wonder that the lease is gone.
            if not held.is_settled:
                self._tell_to_stop(held, Stop.LOST)
            return
        if answer.status == "cancel":
            # Its lease is not renewed any more: what is left of it is for cleaning up.
            if not held.is_settled:
                self._tell_to_stop(held, Stop.CANCEL)
            return
        held.renew(sent_at)
        if held.context is not None and answer.lease_until is not None:
            held.context.lease_until = answer.lease_until

    def _tell_to_stop(self, held: Held, reason: Stop) -> None:
        if held.tell_to_stop(reason):
            with contextlib.suppress(RuntimeError):
                self._worker_loop.call_soon_threadsafe(self._on_stop, held)

    async def _release_all(self) -> None:
        leases = [Lease(id=held.task.id, fence=held.task.fence) for held in self._hand.values() if not held.is_settled]
        for start in range(0, len(leases), MAX_LEASES_PER_REPORT):
            release = LeaseReleaseRequest(worker=self._worker, leases=leases[start : start + MAX_LEASES_PER_REPORT])
            await self._send(lambda release=release: self._transport.release(release))  # type: ignore[misc]

    async def _send(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._connect is not None:
            return await call()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), self._worker_loop))


class _LoopWatch:
    """Sends a ping through the worker's event loop, and complains while it does not come back."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread_id: int, journal: Journal, *, can_renew: bool) -> None:
        self._loop = loop
        self._thread_id = thread_id
        self._journal = journal
        self._can_renew = can_renew
        self._sent_at: float | None = None
        self._complain_after = _BLOCKED_SECONDS

    def look(self, has_work: bool) -> None:
        if self._sent_at is None:
            if has_work:
                self._sent_at = monotonic()
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._came_back)
            return
        seconds = monotonic() - self._sent_at
        if seconds >= self._complain_after:
            self._complain_after = seconds * 2
            frame = sys._current_frames().get(self._thread_id)
            self._journal.blocked(seconds, None if frame is None else line_of_frame(frame), self._can_renew)

    def _came_back(self) -> None:
        if self._sent_at is not None and self._complain_after > _BLOCKED_SECONDS:
            self._journal.unblocked(monotonic() - self._sent_at)
        self._sent_at, self._complain_after = None, _BLOCKED_SECONDS


def _has_news(held: Held) -> bool:
    return held.context is not None and held.context.has_news and not held.is_settled


def _return_news(news: dict[Held, News]) -> None:
    for held, told in news.items():
        if held.context is not None:
            held.context.return_news(told)
