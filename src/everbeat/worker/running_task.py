"""A task that this worker has claimed: until when its lease is surely valid, and why it has to stop.

The time counts on the monotonic clock, from *before* the claim or heartbeat was sent. So it ends before the lease can expire on
the server, whatever the network does and however long this process is paused. Wall clocks are never compared.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from everbeat.client.registry import TaskDefinition
from everbeat.core.tasks import ClaimedTask
from everbeat.worker.context import Context


class StopReason(Enum):
    """Why a task has to stop. `LOST`: the server reported it. `EXPIRED`: the lease may have expired during an outage."""

    CANCEL = "cancel"
    TIMEOUT = "timeout"
    LOST = "lost"
    EXPIRED = "expired"
    SHUTDOWN = "shutdown"


class RunningTask:
    """One task from its claim to its report. The heartbeat thread writes `renewed_at`, `trusted_until` and `stop`."""

    __slots__ = (
        "context",
        "deadline",
        "definition",
        "ends_at",
        "is_finished",
        "is_in_heartbeat",
        "key",
        "received_at",
        "renewed_at",
        "runner",
        "stop",
        "task",
        "thread_id",
        "trusted_until",
    )

    def __init__(self, task: ClaimedTask, definition: TaskDefinition, sent_at: float, received_at: float) -> None:
        self.task = task
        self.key = task.id.int
        self.definition = definition
        self.received_at = received_at
        self.renewed_at = sent_at
        self.trusted_until = sent_at + task.lease_seconds - margin_seconds(task.lease_seconds)
        self.ends_at = received_at + attempt_seconds(task.timeout_seconds)
        self.deadline = 0.0
        self.stop: StopReason | None = None
        self.runner: asyncio.Task[None] | None = None
        self.thread_id: int | None = None
        self.context: Context | None = None
        # Its outcome was given to the reporter, or there is none to report: nothing else is reported about this task.
        self.is_finished = False
        # A heartbeat with its progress or log is in flight. A completion that arrives before it would lose them.
        self.is_in_heartbeat = False

    def renew(self, sent_at: float) -> None:
        self.renewed_at = sent_at
        self.trusted_until = sent_at + self.task.lease_seconds - margin_seconds(self.task.lease_seconds)

    def request_stop(self, reason: StopReason) -> bool:
        """The first reason counts, but LOST replaces every other. Safe from any thread. True if the reason is new."""
        if self.stop is reason or (self.stop is not None and reason is not StopReason.LOST):
            return False
        self.stop = reason
        if self.context is not None:
            self.context.cancel()
        return True


# By the id as an integer: to hash a UUID costs more than everything else that is done for a task here.
RunningTasks = dict[int, RunningTask]


def margin_seconds(lease_seconds: float) -> float:
    return min(1.0, lease_seconds / 10)


def attempt_seconds(timeout_seconds: float) -> float:
    """The worker reports a timeout a little before the server ends the attempt; afterwards, the server takes no report."""
    return timeout_seconds - min(0.5, timeout_seconds / 20)


def heartbeat_seconds(lease_seconds: float) -> float:
    return lease_seconds / 3


def heartbeat_timeout_seconds(lease_seconds: float) -> float:
    """How long one heartbeat may take: a lease covers one interval, two tries and the margin."""
    return min(5.0, (lease_seconds * 2 / 3 - margin_seconds(lease_seconds)) / 2)
