"""Tells the server how tasks ended: in batches, again after lost replies, never later than their leases can hold.

An idle worker's report leaves at once. While more tasks wait, reports gather for some milliseconds, and those that end while
a request is under way go with the next one, so batches grow with the load by themselves. Repeating a report is harmless: the
server answers the same. One that the server refuses is taken out of its batch, so that it does not stop the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import monotonic
from typing import Generic, NamedTuple, TypeVar

import msgspec

from everbeat.client.base import Transport
from everbeat.core.protocol import (
    MAX_LEASES_PER_REPORT,
    LeaseHeartbeat,
    LeaseCompleteRequest,
    ErrorInput,
    LeaseFailure,
    LeaseFailRequest,
    LeaseHeartbeatRequest,
    Lease,
    LeaseReleaseRequest,
    LeaseCompletion,
    LeaseResult,
)
from everbeat.worker.context import News
from everbeat.worker.faults import Backoff, is_refusal
from everbeat.worker.held import Hand, Held, Stop
from everbeat.worker.journal import Journal
from everbeat.worker.outcomes import refused_of

_GATHER_SECONDS = 0.01
_ENOUGH = 500
_MOST_UNDER_WAY = 2
_MOST_BYTES = 4 * 1024 * 1024
_REQUEST_SECONDS = 10.0
_OVERTAKING_SECONDS = 0.005

Item = TypeVar("Item", bound=LeaseCompletion | LeaseFailure | Lease)


class _Entry(NamedTuple, Generic[Item]):
    held: Held
    item: Item
    size: int


class _Lane(Generic[Item]):
    """One kind of report on its way."""

    def __init__(
        self,
        verb: str,
        reporter: Reporter,
        send: Callable[[list[Item]], Awaitable[Sequence[LeaseResult]]],
        refused: Callable[[Held, Item, Exception], None],
    ) -> None:
        self._verb = verb
        self._reporter = reporter
        self._send = send
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._buffer: list[_Entry[Item]] = []
        self._bytes = 0
        self._under_way: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None
        self._is_soon = False
        self.unsettled = 0

    def add(self, held: Held, item: Item, size: int) -> None:
        self.unsettled += 1
        self._buffer.append(_Entry(held, item, size))
        self._bytes += size
        if len(self._buffer) >= _ENOUGH or self._bytes >= _MOST_BYTES:
            self._flush()
        elif not self._is_soon:
            self._plan()

    def _plan(self) -> None:
        if self._reporter.is_busy():
            if self._timer is None:
                self._timer = self._loop.call_later(_GATHER_SECONDS, self._flush)
            return
        if self._timer is not None:
            self._timer.cancel()
        self._is_soon = True
        self._timer = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._is_soon = None, False
        while self._buffer and self._may_send():
            task = self._loop.create_task(self._deliver(self._batch()))
            self._under_way.add(task)
            task.add_done_callback(self._delivered)

    def _may_send(self) -> bool:
        if not self._under_way:
            return True
        is_full = len(self._buffer) >= MAX_LEASES_PER_REPORT or self._bytes >= _MOST_BYTES
        return is_full and len(self._under_way) < _MOST_UNDER_WAY

    def _batch(self) -> list[_Entry[Item]]:
        count = size = 0
        for entry in self._buffer[:MAX_LEASES_PER_REPORT]:
            if count and size + entry.size > _MOST_BYTES:
                break
            count += 1
            size += entry.size
        batch, self._buffer = self._buffer[:count], self._buffer[count:]
        self._bytes -= size
        return batch

    def _delivered(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._reporter.journal.broken(f"reporting {self._verb}", error)
        self._flush()

    async def _deliver(self, batch: list[_Entry[Item]]) -> None:
        backoff = Backoff()
        while batch:
            try:
                async with asyncio.timeout(_REQUEST_SECONDS):
                    await self._reporter.send_news([entry.held for entry in batch])
                    answers = await self._send([entry.item for entry in batch])
            except Exception as error:
                if is_refusal(error):
                    await self._without_the_refused(batch, error)
                    return
                self._reporter.journal.away(self._verb, error)
                batch = self._still_ours(batch)
                await asyncio.sleep(backoff.seconds(error))
                batch = self._still_ours(batch)
                continue
            self._reporter.journal.back()
            self._settle(batch, answers)
            return

    async def _without_the_refused(self, batch: list[_Entry[Item]], error: Exception) -> None:
        if len(batch) > 1:
            middle = len(batch) // 2
            await self._deliver(batch[:middle])
            await self._deliver(batch[middle:])
            return
        self._forget(batch)
        self._refused(batch[0].held, batch[0].item, error)

    def _still_ours(self, batch: list[_Entry[Item]]) -> list[_Entry[Item]]:
        now = monotonic()
        ours = [entry for entry in batch if entry.held.trusted_until > now and entry.held.stop is not Stop.LOST]
        if len(ours) < len(batch):
            gone = [entry for entry in batch if entry.held.trusted_until <= now or entry.held.stop is Stop.LOST]
            self._forget(gone)
            self._reporter.journal.unreported([entry.held for entry in gone], self._verb)
        return ours

    def _settle(self, batch: list[_Entry[Item]], answers: Sequence[LeaseResult]) -> None:
        self._forget(batch)
        stale = {answer.id for answer in answers if answer.status == "stale"}
        if stale:
            self._reporter.journal.stale([entry.held for entry in batch if entry.held.task.id in stale], self._verb)

    def _forget(self, batch: list[_Entry[Item]]) -> None:
        self.unsettled -= len(batch)
        self._reporter.forget([entry.held for entry in batch])


class Reporter:
    """Completions, failures and releases, each in a lane of its own. Belongs to one event loop."""

    def __init__(
        self,
        transport: Transport,
        worker: str,
        hand: Hand,
        journal: Journal,
        is_busy: Callable[[], bool],
        freed: Callable[[], None],
    ) -> None:
        self.journal = journal
        self.is_busy = is_busy
        self._transport = transport
        self._worker = worker
        self._hand = hand
        self._freed = freed
        self._drained = asyncio.Event()
        self._completions = _Lane[LeaseCompletion]("complete", self, self._send_results, self._result_refused)
        self._failures = _Lane[LeaseFailure]("fail", self, self._send_failures, self._failure_refused)
        self._releases = _Lane[Lease]("release", self, self._send_releases, self._release_refused)

    @property
    def backlog(self) -> int:
        return self._completions.unsettled + self._failures.unsettled + self._releases.unsettled

    def complete(self, held: Held, result: LeaseCompletion) -> None:
        self.journal.stats.completed += 1
        body = result.result
        self._completions.add(held, result, 100 if body is None else 100 + len(memoryview(body)))

    def fail(self, held: Held, failure: LeaseFailure) -> None:
        self.journal.stats.failed += 1
        error = failure.error
        self._failures.add(held, failure, 200 + len(error.message) + len(error.trace or ""))

    def release(self, given: Iterable[Held]) -> None:
        for held in given:
            self.journal.stats.released += 1
            self._releases.add(held, Lease(id=held.task.id, fence=held.task.fence), 100)

    async def drain(self, seconds: float) -> bool:
        """Until everything is told or forgotten; false if the time did not do."""
        if self.backlog:
            self._drained.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._drained.wait()
        return not self.backlog

    def forget(self, batch: list[Held]) -> None:
        hand = self._hand
        for held in batch:
            # The same task may have come back under a new fence meanwhile.
            if hand.get(held.key) is held:
                del hand[held.key]
        if not self.backlog:
            self._drained.set()
        self._freed()

    async def send_news(self, batch: list[Held]) -> None:
        """What handlers said last goes before their reports, since afterwards nobody would take it."""
        talkers = [held for held in batch if held.context is not None]
        while any(held.is_beating for held in talkers):  # noqa: ASYNC110 - another thread ends it
            await asyncio.sleep(_OVERTAKING_SECONDS)
        news = [(held, held.context.take_news()) for held in talkers if held.context is not None]
        told = [(held, one) for held, one in news if one is not None]
        if not told:
            return
        beats = [LeaseHeartbeat(id=held.task.id, fence=held.task.fence, progress=one.progress, log=one.log) for held, one in told]
        try:
            await self._transport.heartbeat(LeaseHeartbeatRequest(worker=self._worker, leases=beats))
        except BaseException as error:
            if not is_refusal(error):
                _release_unclaimed(told)
                raise
            self.journal.refused(told[0][0], "heartbeat", _as_exception(error))

    async def _send_results(self, results: list[LeaseCompletion]) -> Sequence[LeaseResult]:
        return await self._transport.complete(LeaseCompleteRequest(worker=self._worker, results=results))

    async def _send_failures(self, failures: list[LeaseFailure]) -> Sequence[LeaseResult]:
        return await self._transport.fail(LeaseFailRequest(worker=self._worker, failures=failures))

    async def _send_releases(self, leases: list[Lease]) -> Sequence[LeaseResult]:
        return await self._transport.release(LeaseReleaseRequest(worker=self._worker, leases=leases))

    def _result_refused(self, held: Held, result: LeaseCompletion, error: Exception) -> None:
        self.journal.refused(held, "complete", error)
        self.journal.stats.completed -= 1
        self.fail(held, refused_of(held.task, str(error)))

    def _failure_refused(self, held: Held, failure: LeaseFailure, error: Exception) -> None:
        """Once more with what no server refuses; if this one does, the lease runs out and the attempts bound it."""
        self.journal.refused(held, "fail", error)
        self.journal.stats.failed -= 1
        bare = ErrorInput(message="the server refused the error that the handler raised", kind="refused")
        if failure.error != bare:
            self.fail(held, msgspec.structs.replace(failure, error=bare, retry_in_seconds=None))

    def _release_refused(self, held: Held, lease: Lease, error: Exception) -> None:
        self.journal.refused(held, "release", error)


def _release_unclaimed(told: list[tuple[Held, News]]) -> None:
    for held, one in told:
        if held.context is not None:
            held.context.return_news(one)


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(str(error))
