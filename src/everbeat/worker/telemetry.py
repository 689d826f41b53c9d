"""The counters and log lines of a worker. A server outage is logged once when it begins and once when it ends."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from everbeat.core.tasks import ClaimedTask
from everbeat.logs import get_logger, ids_of
from everbeat.worker.running_task import RunningTask

_MAX_LINES_PER_SECOND = 20
_QUIET_SECONDS = 10.0


@dataclass
class Stats:
    """The counters of a worker. `stale`: late reports. `lost`: tasks dropped because their lease ended or may have ended."""

    claimed: int = 0
    completed: int = 0
    failed: int = 0
    released: int = 0
    stale: int = 0
    lost: int = 0


class WorkerTelemetry:
    """Counts and logs. Called from the event loop, from handler threads and from the heartbeat thread."""

    def __init__(self, worker: str) -> None:
        self.stats = Stats()
        self._log = get_logger().bind(worker=worker)
        self._lock = threading.Lock()
        self._unavailable_since: float | None = None
        self._is_outage_logged = False
        self._quiet_until = 0.0
        self._second = 0
        self._lines = 0

    def started(self, *, queues: Sequence[str], types: int, concurrency: int, server: str) -> None:
        self._log.info("worker_started", queues=list(queues), types=types, concurrency=concurrency, server=server)

    def stopping(self, *, running: int, grace_seconds: float) -> None:
        self._log.info("worker_stopping", running=running, grace_seconds=grace_seconds)

    def stopped(self) -> None:
        stats = self.stats
        self._log.info("worker_stopped", completed=stats.completed, failed=stats.failed, released=stats.released)

    # Tasks

    def failed(self, task: ClaimedTask, error: str, location: str | None) -> None:
        if self._may_log():
            attempts = f"{task.attempt}/{task.max_attempts}"
            self._log.warning("task_failed", **ids_of(task), type=task.type, attempt=attempts, error=error, at=location)

    def stale(self, stale: Sequence[RunningTask], verb: str) -> None:
        with self._lock:
            self.stats.stale += len(stale)
        meaning = "another worker has claimed the task, or it has ended; the report had no effect"
        self._log.warning("report_stale", report=verb, count=len(stale), **_example(stale), meaning=meaning)

    def lost(self, running_task: RunningTask, reason: str) -> None:
        with self._lock:
            self.stats.lost += 1
        if self._may_log():
            self._log.warning("task_lost", **ids_of(running_task.task), type=running_task.task.type, reason=reason)

    def unreported(self, running_tasks: Sequence[RunningTask], verb: str) -> None:
        with self._lock:
            self.stats.lost += len(running_tasks)
        meaning = "the leases may have expired before the report reached the server; the tasks will be retried"
        self._log.error("report_dropped", report=verb, count=len(running_tasks), **_example(running_tasks), meaning=meaning)

    def rejected(self, running_task: RunningTask, verb: str, error: Exception) -> None:
        self._log.error(
            "report_rejected", report=verb, task=str(running_task.task.id), type=running_task.task.type, error=str(error)
        )

    def released_waiting(self, count: int) -> None:
        self._log.debug("waiting_tasks_released", count=count)

    def hook_failed(self, hook: str, task: ClaimedTask, error: BaseException) -> None:
        self._log.error("hook_failed", hook=hook, **ids_of(task), type=task.type, exc_info=error)

    def internal_error(self, what: str, error: BaseException) -> None:
        self._log.error("worker_internal_error", what=what, exc_info=error)

    # The server and this process

    def server_unavailable(self, verb: str, error: BaseException) -> None:
        now = monotonic()
        with self._lock:
            if self._unavailable_since is not None:
                return
            self._unavailable_since = now
            self._is_outage_logged = now >= self._quiet_until
        if self._is_outage_logged:
            self._log.warning("server_unavailable", request=verb, error=str(error) or type(error).__name__, meaning="retrying")

    def server_available(self) -> None:
        """Record that a request succeeded, and log the end of an outage."""
        if self._unavailable_since is None:
            return
        with self._lock:
            since, self._unavailable_since = self._unavailable_since, None
            # Do not fill the log if the server rejects one kind of request and accepts another.
            if self._is_outage_logged:
                self._quiet_until = monotonic() + _QUIET_SECONDS
        if since is not None and self._is_outage_logged:
            self._log.warning("server_available", unavailable_seconds=round(monotonic() - since, 1))

    def blocked(self, seconds: float, location: str | None, can_renew: bool) -> None:
        meaning = "a handler blocks the event loop; make it a sync function, or run blocking calls in a thread"
        if not can_renew:
            meaning += "; leases are not renewed while the event loop is blocked"
        self._log.error(f"event loop blocked for {seconds:.1f} s", at=location, meaning=meaning)

    def unblocked(self, seconds: float) -> None:
        self._log.warning(f"event loop was blocked for {seconds:.1f} s")

    def _may_log(self) -> bool:
        """Limit the log lines per second."""
        with self._lock:
            second = int(monotonic())
            if second != self._second:
                dropped, self._second, self._lines = self._lines - _MAX_LINES_PER_SECOND, second, 0
                if dropped > 0:
                    self._log.warning("log_lines_dropped", count=dropped)
            self._lines += 1
            return self._lines <= _MAX_LINES_PER_SECOND


def _example(running_tasks: Sequence[RunningTask]) -> dict[str, str]:
    return {"task": str(running_tasks[0].task.id), "type": running_tasks[0].task.type}
