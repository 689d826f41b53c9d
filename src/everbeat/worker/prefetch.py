"""How much to claim ahead, tuned by itself to how fast this worker gets through its tasks; pure arithmetic.

Claims in batches are what makes short tasks cheap; but a long task must not wait in one worker while another has nothing to
do. Both follow from one rule: beside the free slots, claim what the next 20 ms need, if tasks are short at all, and the next
50 ms if they are so short that a claim costs more than they do. More than that, and whoever comes next would wait behind what
is in hand: a fleet's next tenant, or a more urgent task.
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
    """Tasks a second while there is work in hand, and what follows from it."""

    def __init__(self, concurrency: int, lease_seconds: float) -> None:
        # A task that has waited this long for a slot is better off with another worker; far below the lease in any case.
        self.max_wait_seconds = min(_MAX_WAIT_SECONDS, lease_seconds / 10)
        self.rate = 0.0
        self._concurrency = concurrency
        self._finished = 0
        self._since: float | None = None
        self._shortest_timeout = float("inf")

    @property
    def prefetch_count(self) -> int:
        """How many tasks to hold beyond the slots."""
        if self.rate * _SHORT_TASK_SECONDS < self._concurrency:
            return 0
        # The server counts an attempt's time from the claim on: waiting here must not use it up.
        is_tiny = self.rate * _TINY_TASK_SECONDS > self._concurrency
        ahead_seconds = _TINY_TASK_PREFETCH_SECONDS if is_tiny else _PREFETCH_SECONDS
        seconds = min(ahead_seconds, self.max_wait_seconds, self._shortest_timeout / 10)
        return min(int(self.rate * seconds), MAX_PREFETCH)

    @property
    def claim_below(self) -> int:
        """With fewer tasks than this in hand, a claim is worth a request."""
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
        """Learn from what was finished since the last sample."""
        if self._since is None:
            return
        seconds = now - self._since
        if seconds < _WINDOW_SECONDS and task_count:
            return
        seen = self._finished / max(seconds, 1e-4)
        if seen >= self.rate:
            self.rate = seen
        elif task_count >= self._concurrency:
            self.rate = (self.rate + seen) / 2
        # With free slots, it was the work that was missing: more may be possible than was seen.
        self._since, self._finished = (now if task_count else None), 0

    def stalled(self) -> None:
        """Tasks waited too long for a slot: whatever the rate was, it is over."""
        self.rate = 0.0
