"""Reports the outcomes of attempts to the server, in batches, with retries until the leases may have expired.

The report of an idle worker is sent immediately. While tasks wait for a slot, reports are collected for some milliseconds.
Reports added during a request are sent with the next one, so batches grow with the load. Reports are idempotent: the server
returns the same response again. A batch that the server rejects is split to isolate the invalid report.
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
    ErrorInput,
    Lease,
    LeaseCompleteRequest,
    LeaseCompletion,
    LeaseFailRequest,
    LeaseFailure,
    LeaseHeartbeat,
    LeaseHeartbeatRequest,
    LeaseReleaseRequest,
    LeaseResult,
)
from everbeat.worker.backoff import Backoff, is_rejection
from everbeat.worker.context import TaskUpdate
from everbeat.worker.outcomes import rejected_of
from everbeat.worker.running_task import RunningTask, RunningTasks, StopReason
from everbeat.worker.telemetry import WorkerTelemetry

_COLLECT_SECONDS = 0.01
_FLUSH_COUNT = 500
_MAX_IN_FLIGHT = 2
_MAX_BYTES = 4 * 1024 * 1024
_REQUEST_SECONDS = 10.0
_HEARTBEAT_POLL_SECONDS = 0.005

Item = TypeVar("Item", bound=LeaseCompletion | LeaseFailure | Lease)


class _Report(NamedTuple, Generic[Item]):
    running_task: RunningTask
    item: Item
    size: int


class _ReportQueue(Generic[Item]):
    """The unconfirmed reports of one kind."""

    def __init__(
        self,
        verb: str,
        reporter: Reporter,
        send: Callable[[list[Item]], Awaitable[Sequence[LeaseResult]]],
        rejected: Callable[[RunningTask, Item, Exception], None],
    ) -> None:
        self._verb = verb
        self._reporter = reporter
        self._send = send
        self._rejected = rejected
        self._loop = asyncio.get_running_loop()
        self._buffer: list[_Report[Item]] = []
        self._bytes = 0
        self._in_flight: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None
        self._is_flush_scheduled = False
        self.unconfirmed = 0

    def add(self, running_task: RunningTask, item: Item, size: int) -> None:
        self.unconfirmed += 1
        self._buffer.append(_Report(running_task, item, size))
        self._bytes += size
        if len(self._buffer) >= _FLUSH_COUNT or self._bytes >= _MAX_BYTES:
            self._flush()
        elif not self._is_flush_scheduled:
            self._schedule_flush()

    def _schedule_flush(self) -> None:
        if self._reporter.is_busy():
            if self._timer is None:
                self._timer = self._loop.call_later(_COLLECT_SECONDS, self._flush)
            return
        if self._timer is not None:
            self._timer.cancel()
        self._is_flush_scheduled = True
        self._timer = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._is_flush_scheduled = None, False
        while self._buffer and self._may_send():
            task = self._loop.create_task(self._deliver(self._batch()))
            self._in_flight.add(task)
            task.add_done_callback(self._delivered)

    def _may_send(self) -> bool:
        if not self._in_flight:
            return True
        is_full = len(self._buffer) >= MAX_LEASES_PER_REPORT or self._bytes >= _MAX_BYTES
        return is_full and len(self._in_flight) < _MAX_IN_FLIGHT

    def _batch(self) -> list[_Report[Item]]:
        count = size = 0
        for entry in self._buffer[:MAX_LEASES_PER_REPORT]:
            if count and size + entry.size > _MAX_BYTES:
                break
            count += 1
            size += entry.size
        batch, self._buffer = self._buffer[:count], self._buffer[count:]
        self._bytes -= size
        return batch

    def _delivered(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._reporter.telemetry.internal_error(f"reporting {self._verb}", error)
        self._flush()

    async def _deliver(self, batch: list[_Report[Item]]) -> None:
        backoff = Backoff()
        while batch:
            try:
                async with asyncio.timeout(_REQUEST_SECONDS):
                    await self._reporter.send_updates([entry.running_task for entry in batch])
                    results = await self._send([entry.item for entry in batch])
            except Exception as error:
                if is_rejection(error):
                    await self._isolate_rejected(batch, error)
                    return
                self._reporter.telemetry.server_unavailable(self._verb, error)
                batch = self._still_leased(batch)
                await asyncio.sleep(backoff.seconds(error))
                batch = self._still_leased(batch)
                continue
            self._reporter.telemetry.server_available()
            self._confirm(batch, results)
            return

    async def _isolate_rejected(self, batch: list[_Report[Item]], error: Exception) -> None:
        if len(batch) > 1:
            middle = len(batch) // 2
            await self._deliver(batch[:middle])
            await self._deliver(batch[middle:])
            return
        self._forget(batch)
        self._rejected(batch[0].running_task, batch[0].item, error)

    def _still_leased(self, batch: list[_Report[Item]]) -> list[_Report[Item]]:
        now = monotonic()
        leased = [
            entry
            for entry in batch
            if entry.running_task.lease_valid_until > now and entry.running_task.stop is not StopReason.LOST
        ]
        if len(leased) < len(batch):
            lost = [
                entry
                for entry in batch
                if entry.running_task.lease_valid_until <= now or entry.running_task.stop is StopReason.LOST
            ]
            self._forget(lost)
            self._reporter.telemetry.unreported([entry.running_task for entry in lost], self._verb)
        return leased

    def _confirm(self, batch: list[_Report[Item]], results: Sequence[LeaseResult]) -> None:
        self._forget(batch)
        stale = {result.id for result in results if result.status == "stale"}
        if stale:
            self._reporter.telemetry.stale(
                [entry.running_task for entry in batch if entry.running_task.task.id in stale], self._verb
            )

    def _forget(self, batch: list[_Report[Item]]) -> None:
        self.unconfirmed -= len(batch)
        self._reporter.forget([entry.running_task for entry in batch])


class Reporter:
    """Sends completions, failures and releases, from one queue each. Belongs to one event loop."""

    def __init__(
        self,
        transport: Transport,
        worker: str,
        running_tasks: RunningTasks,
        telemetry: WorkerTelemetry,
        is_busy: Callable[[], bool],
        on_capacity_freed: Callable[[], None],
    ) -> None:
        self.telemetry = telemetry
        self.is_busy = is_busy
        self._transport = transport
        self._worker = worker
        self._running_tasks = running_tasks
        self._on_capacity_freed = on_capacity_freed
        self._drained = asyncio.Event()
        self._completions = _ReportQueue[LeaseCompletion]("complete", self, self._send_results, self._result_rejected)
        self._failures = _ReportQueue[LeaseFailure]("fail", self, self._send_failures, self._failure_rejected)
        self._releases = _ReportQueue[Lease]("release", self, self._send_releases, self._release_rejected)

    @property
    def backlog(self) -> int:
        return self._completions.unconfirmed + self._failures.unconfirmed + self._releases.unconfirmed

    def complete(self, running_task: RunningTask, result: LeaseCompletion) -> None:
        self.telemetry.stats.completed += 1
        body = result.result
        self._completions.add(running_task, result, 100 if body is None else 100 + len(memoryview(body)))

    def fail(self, running_task: RunningTask, failure: LeaseFailure) -> None:
        self.telemetry.stats.failed += 1
        error = failure.error
        self._failures.add(running_task, failure, 200 + len(error.message) + len(error.trace or ""))

    def release(self, running_tasks: Iterable[RunningTask]) -> None:
        for running_task in running_tasks:
            self.telemetry.stats.released += 1
            self._releases.add(running_task, Lease(id=running_task.task.id, fence=running_task.task.fence), 100)

    async def drain(self, seconds: float) -> bool:
        """Wait until all reports are confirmed or dropped. Returns False if that takes longer than `seconds`."""
        if self.backlog:
            self._drained.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._drained.wait()
        return not self.backlog

    def forget(self, batch: list[RunningTask]) -> None:
        running_tasks = self._running_tasks
        for running_task in batch:
            # The same task may have been claimed again, with a new fence.
            if running_tasks.get(running_task.key) is running_task:
                del running_tasks[running_task.key]
        if not self.backlog:
            self._drained.set()
        self._on_capacity_freed()

    async def send_updates(self, batch: list[RunningTask]) -> None:
        """Send the last progress and log lines before the reports, because the server rejects them afterwards."""
        with_context = [running_task for running_task in batch if running_task.context is not None]
        while any(running_task.is_in_heartbeat for running_task in with_context):  # noqa: ASYNC110 - cleared by another thread
            await asyncio.sleep(_HEARTBEAT_POLL_SECONDS)
        updates = [
            (running_task, running_task.context.take_update())
            for running_task in with_context
            if running_task.context is not None
        ]
        updates_sent = [(running_task, update) for running_task, update in updates if update is not None]
        if not updates_sent:
            return
        heartbeats = [
            LeaseHeartbeat(id=running_task.task.id, fence=running_task.task.fence, progress=update.progress, log=update.log)
            for running_task, update in updates_sent
        ]
        try:
            await self._transport.heartbeat(LeaseHeartbeatRequest(worker=self._worker, leases=heartbeats))
        except BaseException as error:
            if not is_rejection(error):
                _return_updates(updates_sent)
                raise
            self.telemetry.rejected(updates_sent[0][0], "heartbeat", _as_exception(error))

    async def _send_results(self, results: list[LeaseCompletion]) -> Sequence[LeaseResult]:
        return await self._transport.complete(LeaseCompleteRequest(worker=self._worker, results=results))

    async def _send_failures(self, failures: list[LeaseFailure]) -> Sequence[LeaseResult]:
        return await self._transport.fail(LeaseFailRequest(worker=self._worker, failures=failures))

    async def _send_releases(self, leases: list[Lease]) -> Sequence[LeaseResult]:
        return await self._transport.release(LeaseReleaseRequest(worker=self._worker, leases=leases))

    def _result_rejected(self, running_task: RunningTask, result: LeaseCompletion, error: Exception) -> None:
        self.telemetry.rejected(running_task, "complete", error)
        self.telemetry.stats.completed -= 1
        self.fail(running_task, rejected_of(running_task.task, str(error)))

    def _failure_rejected(self, running_task: RunningTask, failure: LeaseFailure, error: Exception) -> None:
        """Report a generic error instead. If that is rejected too, the lease expires, and max_attempts limits the retries."""
        self.telemetry.rejected(running_task, "fail", error)
        self.telemetry.stats.failed -= 1
        generic = ErrorInput(message="the server rejected the report of the handler's error", kind="refused")
        if failure.error != generic:
            self.fail(running_task, msgspec.structs.replace(failure, error=generic, retry_in_seconds=None))

    def _release_rejected(self, running_task: RunningTask, lease: Lease, error: Exception) -> None:
        self.telemetry.rejected(running_task, "release", error)


def _return_updates(updates_sent: list[tuple[RunningTask, TaskUpdate]]) -> None:
    for running_task, update in updates_sent:
        if running_task.context is not None:
            running_task.context.return_update(update)


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(str(error))
