"""Computes how many tasks to claim ahead, from the measured task rate of this worker. Does no I/O.

Short tasks are efficient only if they are claimed in batches. A long task must not wait in one worker while another is idle.
So a worker claims tasks for its free slots and, if tasks are short, for the next 20 ms, or for the next 50 ms if a task takes
less time than a claim. It does not claim more, because urgent tasks and tasks of other tenants would wait behind them.
"""

from __future__ import annotations

from everbeat.core.protocol import MAX_CLAIMED

MAX_PREFETCH = 1000
_PREFETCH_SECONDS = 0.02
_TINY_TASK_PREFETCH_SECONDS = 0.05
_TINY_TASK_SECONDS = 0.01
_SHORT_TASK_SECONDS = 0.5
_MAX_WAIT_SECONDS = 1.0
_WINDOW_SECONDS = 0.02


class Prefetch:
    """Measures the tasks per second while the worker has tasks, and computes how many to claim."""

    def __init__(self, concurrency: int, lease_seconds: float) -> None:
        # A task that has waited this long for a slot is released to other workers. Always far below the lease.
        self.max_wait_seconds = min(_MAX_WAIT_SECONDS, lease_seconds / 10)
        self.rate = 0.0
        self._concurrency = concurrency
        self._finished = 0
        self._since: float | None = None
        self._shortest_timeout = float("inf")

    @property
    def prefetch_count(self) -> int:
        """The number of tasks to claim beyond the number of slots."""
        if self.rate * _SHORT_TASK_SECONDS < self._concurrency:
            return 0
        # The timeout of an attempt starts at the claim, so waiting for a slot must take only a small part of it.
        is_tiny = self.rate * _TINY_TASK_SECONDS > self._concurrency
        ahead_seconds = _TINY_TASK_PREFETCH_SECONDS if is_tiny else _PREFETCH_SECONDS
        seconds = min(ahead_seconds, self.max_wait_seconds, self._shortest_timeout / 10)
        return min(int(self.rate * seconds), MAX_PREFETCH)

    @property
    def claim_below(self) -> int:
        """The number of tasks below which the worker claims more."""
        prefetch_count = self.prefetch_count
        return self._concurrency + prefetch_count - max(1, prefetch_count // 2) + 1

    def to_claim(self, task_count: int) -> int:
        return min(self._concurrency + self.prefetch_count - task_count, MAX_CLAIMED) if task_count < self.claim_below else 0

    def received(self, shortest_timeout: float, now: float) -> None:
        if self._since is None:
            self._since, self._finished = now, 0
        self._shortest_timeout = min(shortest_timeout, self._shortest_timeout * 2)

    def finished(self) -> None:
        self._finished += 1

    def sample(self, task_count: int, now: float) -> None:
        """Update the rate from the tasks finished since the last sample."""
        if self._since is None:
            return
        seconds = now - self._since
        if seconds < _WINDOW_SECONDS and task_count:
            return
        measured = self._finished / max(seconds, 1e-4)
        if measured >= self.rate:
            self.rate = measured
        elif task_count >= self._concurrency:
            self.rate = (self.rate + measured) / 2
        # With free slots, a lower rate means too few tasks, not a slower worker, so it is ignored.
        self._since, self._finished = (now if task_count else None), 0

    def stalled(self) -> None:
        """Reset the rate: tasks have waited too long for a slot, so the measured rate is no longer valid."""
        self.rate = 0.0
