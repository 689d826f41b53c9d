"""Sends heartbeats from a thread with its own event loop and connection.

Without the thread, a handler that blocks the worker's event loop would make the process lose all its leases. The thread
renews leases, stops tasks that the server reports as cancelled or lost, stops tasks whose leases may have expired while the
server was unreachable, and logs when the worker's event loop is blocked. An in-process transport belongs to the worker's
event loop, so its heartbeats run on that loop. In that case a blocked loop does lose leases, and this is logged.
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
from everbeat.core.protocol import (
    MAX_LEASES_PER_REPORT,
    Lease,
    LeaseHeartbeat,
    LeaseHeartbeatRequest,
    LeaseHeartbeatResult,
    LeaseReleaseRequest,
)
from everbeat.worker.backoff import Backoff, is_rejection
from everbeat.worker.context import TaskUpdate
from everbeat.worker.outcomes import line_of_frame
from everbeat.worker.running_task import RunningTask, RunningTasks, StopReason, heartbeat_seconds, heartbeat_timeout_seconds
from everbeat.worker.telemetry import WorkerTelemetry

T = TypeVar("T")

TransportFactory = Callable[[], Transport]

UPDATE_SECONDS = 1.0
_TICK_SECONDS = 0.25
_BLOCKED_SECONDS = 2.0
_MAX_UPDATE_BYTES = 512 * 1024
_NOT_RENEWED = frozenset({StopReason.CANCEL, StopReason.LOST, StopReason.EXPIRED})


class HeartbeatThread:
    """Renews the leases of `running_tasks`. Calls `on_stop` on the worker's event loop for each task that must stop."""

    def __init__(
        self,
        worker: str,
        running_tasks: RunningTasks,
        telemetry: WorkerTelemetry,
        transport: Transport,
        connect: TransportFactory | None,
        *,
        lease_seconds: float,
        on_stop: Callable[[RunningTask], None],
    ) -> None:
        self._worker = worker
        self._running_tasks = running_tasks
        self._telemetry = telemetry
        self._transport = transport
        self._connect = connect
        self._on_stop = on_stop
        self._lease_seconds = lease_seconds
        self._tick_seconds = min(_TICK_SECONDS, heartbeat_seconds(lease_seconds) / 4)
        self._worker_loop = asyncio.get_running_loop()
        self._worker_thread = threading.get_ident()
        self._loop_monitor = _LoopMonitor(self._worker_loop, self._worker_thread, telemetry, can_renew=connect is not None)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self._stopped = asyncio.Event()
        self._ended = asyncio.Event()
        self._backoff = Backoff(1.0)
        self._retry_at = 0.0
        self._updates_sent_at = 0.0
        self._thread = threading.Thread(target=self._thread_main, name="everbeat-heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        # The thread sets `_loop` before it reads `_is_stopping`. So either the thread sees the flag, or `_loop` is set below.
        self._is_stopping = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopped.set)
        await self._ended.wait()

    def release_all_leases(self, seconds: float) -> None:
        """Release all leases before the process exits. Blocks. Call it from any thread except the heartbeat thread."""
        if self._loop is None or not self._thread.is_alive():
            return
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._send_releases(), self._loop).result(seconds)

    # In the heartbeat thread

    def _thread_main(self) -> None:
        try:
            asyncio.run(self._run_until_stopped())
        except Exception as error:
            self._telemetry.internal_error("heartbeats", error)
        finally:
            with contextlib.suppress(RuntimeError):
                self._worker_loop.call_soon_threadsafe(self._ended.set)

    async def _run_until_stopped(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._is_stopping:
            return
        if self._connect is None:
            await self._heartbeat_loop()
            return
        self._transport = self._connect()
        await self._transport.open()
        try:
            await self._heartbeat_loop()
        finally:
            await self._transport.close()

    async def _heartbeat_loop(self) -> None:
        sending: asyncio.Task[None] | None = None
        wait_seconds = self._tick_seconds
        while not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._stopped.wait()
            running_tasks = list(self._running_tasks.values())
            self._loop_monitor.check(bool(running_tasks))
            wait_seconds = min(self._tick_seconds, self._stop_expired(running_tasks))
            if sending is None or sending.done():
                due = self._due(running_tasks)
                sending = asyncio.create_task(self._send_heartbeats(due)) if due else None
        if sending is not None:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def _stop_expired(self, running_tasks: Sequence[RunningTask]) -> float:
        """Stop tasks whose leases may have expired. Returns the seconds until the next lease may expire."""
        now = monotonic()
        seconds = self._tick_seconds
        for running_task in running_tasks:
            if running_task.is_finished or running_task.stop in _NOT_RENEWED:
                continue
            if running_task.lease_valid_until <= now:
                self._request_stop(running_task, StopReason.EXPIRED)
            else:
                seconds = min(seconds, running_task.lease_valid_until - now)
        return seconds

    def _due(self, running_tasks: Sequence[RunningTask]) -> list[RunningTask]:
        now = monotonic()
        if now < self._retry_at:
            return []
        entries = [entry for entry in running_tasks if entry.stop not in _NOT_RENEWED or _has_update(entry)]
        interval = heartbeat_seconds(min((entry.task.lease_seconds for entry in entries), default=self._lease_seconds))
        if any(now - entry.renewed_at >= interval - self._tick_seconds for entry in entries):
            return [entry for entry in entries if now - entry.renewed_at >= interval / 2 or _has_update(entry)]
        if now - self._updates_sent_at >= UPDATE_SECONDS:
            return [entry for entry in entries if _has_update(entry)]
        return []

    async def _send_heartbeats(self, due: list[RunningTask]) -> None:
        for start in range(0, len(due), MAX_LEASES_PER_REPORT):
            batch = due[start : start + MAX_LEASES_PER_REPORT]
            updates = self._collect_updates(batch)
            try:
                await self._send_batch_or_leases_only(batch, updates)
            except Exception as error:
                _return_updates(updates)
                self._telemetry.server_unavailable("heartbeat", error)
                self._retry_at = monotonic() + self._backoff.seconds(error)
                return
            finally:
                for running_task in batch:
                    running_task.is_in_heartbeat = False
        self._telemetry.server_available()
        self._backoff.reset()

    async def _send_batch_or_leases_only(self, batch: list[RunningTask], updates: dict[RunningTask, TaskUpdate]) -> None:
        try:
            await self._send_batch(batch, updates)
        except Exception as error:
            if not updates or not is_rejection(error):
                raise
            # Renewing the leases matters more than progress and log lines.
            self._telemetry.rejected(next(iter(updates)), "heartbeat", error)
            updates.clear()
            await self._send_batch(batch, updates)

    def _collect_updates(self, batch: list[RunningTask]) -> dict[RunningTask, TaskUpdate]:
        self._updates_sent_at = monotonic()
        updates: dict[RunningTask, TaskUpdate] = {}
        size = 0
        for running_task in batch:
            # Updates that do not fit into this request are sent with the next one.
            if running_task.is_finished or size > _MAX_UPDATE_BYTES or running_task.context is None:
                continue
            # Set the flag before taking the update. A report that sees the flag waits for this heartbeat; a report that does
            # not see it still finds the update and sends it.
            running_task.is_in_heartbeat = True
            if (update := running_task.context.take_update()) is None:
                running_task.is_in_heartbeat = False
            else:
                updates[running_task] = update
                size += len(update.log or "")
        return updates

    async def _send_batch(self, batch: list[RunningTask], updates: dict[RunningTask, TaskUpdate]) -> None:
        heartbeats = []
        for running_task in batch:
            update = updates.get(running_task)
            progress, log = (update.progress, update.log) if update is not None else (None, None)
            heartbeats.append(
                LeaseHeartbeat(id=running_task.task.id, fence=running_task.task.fence, progress=progress, log=log)
            )
        sent_at = monotonic()
        seconds = heartbeat_timeout_seconds(min(running_task.task.lease_seconds for running_task in batch))
        async with asyncio.timeout(seconds):
            statuses = await self._send(
                lambda: self._transport.heartbeat(LeaseHeartbeatRequest(worker=self._worker, leases=heartbeats))
            )
        by_key = {running_task.key: running_task for running_task in batch}
        for status in statuses:
            if (matching := by_key.get(status.id.int)) is not None:
                self._apply_status(matching, status, sent_at)

    def _apply_status(self, running_task: RunningTask, result: LeaseHeartbeatResult, sent_at: float) -> None:
        if result.status == "lost":
            # If the task is finished, its own report has ended the lease.
            if not running_task.is_finished:
                self._request_stop(running_task, StopReason.LOST)
            return
        if result.status == "cancel":
            # The lease is no longer renewed. The handler can clean up until it expires.
            if not running_task.is_finished:
                self._request_stop(running_task, StopReason.CANCEL)
            return
        running_task.renew(sent_at)
        if running_task.context is not None and result.lease_until is not None:
            running_task.context.lease_until = result.lease_until

    def _request_stop(self, running_task: RunningTask, reason: StopReason) -> None:
        if running_task.request_stop(reason):
            with contextlib.suppress(RuntimeError):
                self._worker_loop.call_soon_threadsafe(self._on_stop, running_task)

    async def _send_releases(self) -> None:
        leases = [
            Lease(id=running_task.task.id, fence=running_task.task.fence)
            for running_task in self._running_tasks.values()
            if not running_task.is_finished
        ]
        for start in range(0, len(leases), MAX_LEASES_PER_REPORT):
            release = LeaseReleaseRequest(worker=self._worker, leases=leases[start : start + MAX_LEASES_PER_REPORT])
            await self._send(lambda release=release: self._transport.release(release))  # type: ignore[misc]

    async def _send(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._connect is not None:
            return await call()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), self._worker_loop))


class _LoopMonitor:
    """Schedules callbacks on the worker's event loop, and logs if one does not run in time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread_id: int, telemetry: WorkerTelemetry, *, can_renew: bool) -> None:
        self._loop = loop
        self._thread_id = thread_id
        self._telemetry = telemetry
        self._can_renew = can_renew
        self._sent_at: float | None = None
        self._log_after = _BLOCKED_SECONDS

    def check(self, has_work: bool) -> None:
        if self._sent_at is None:
            if has_work:
                self._sent_at = monotonic()
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._on_callback)
            return
        seconds = monotonic() - self._sent_at
        if seconds >= self._log_after:
            self._log_after = seconds * 2
            frame = sys._current_frames().get(self._thread_id)
            self._telemetry.blocked(seconds, None if frame is None else line_of_frame(frame), self._can_renew)

    def _on_callback(self) -> None:
        if self._sent_at is not None and self._log_after > _BLOCKED_SECONDS:
            self._telemetry.unblocked(monotonic() - self._sent_at)
        self._sent_at, self._log_after = None, _BLOCKED_SECONDS


def _has_update(running_task: RunningTask) -> bool:
    return running_task.context is not None and running_task.context.has_update and not running_task.is_finished


def _return_updates(updates: dict[RunningTask, TaskUpdate]) -> None:
    for running_task, update in updates.items():
        if running_task.context is not None:
            running_task.context.return_update(update)
