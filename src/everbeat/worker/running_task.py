"""A task that this worker has claimed, with the time until which its lease is certainly valid, and the reason to stop it.

The time is measured on the monotonic clock, from *before* the claim or heartbeat was sent. So it ends before the lease can
expire on the server, regardless of network delays and pauses of this process. Wall clocks are never compared.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from everbeat.client.registry import TaskDefinition
from everbeat.core.tasks import ClaimedTask
from everbeat.worker.context import Context


class StopReason(Enum):
    """Why a task must stop. `LOST`: the server reported the lease lost. `EXPIRED`: it may have expired during an outage."""

    CANCEL = "cancel"
    TIMEOUT = "timeout"
    LOST = "lost"
    EXPIRED = "expired"
    SHUTDOWN = "shutdown"


class RunningTask:
    """A task from its claim to its report. The heartbeat thread writes `renewed_at`, `lease_valid_until` and `stop`."""

    __slots__ = (
        "context",
        "deadline",
        "definition",
        "ends_at",
        "is_finished",
        "is_in_heartbeat",
        "key",
        "lease_valid_until",
        "received_at",
        "renewed_at",
        "runner",
        "stop",
        "task",
        "thread_id",
    )

    def __init__(self, task: ClaimedTask, definition: TaskDefinition, sent_at: float, received_at: float) -> None:
        self.task = task
        self.key = task.id.int
        self.definition = definition
        self.received_at = received_at
        self.renewed_at = sent_at
        self.lease_valid_until = sent_at + task.lease_seconds - margin_seconds(task.lease_seconds)
        self.ends_at = received_at + attempt_seconds(task.timeout_seconds)
        self.deadline = 0.0
        self.stop: StopReason | None = None
        self.runner: asyncio.Task[None] | None = None
        self.thread_id: int | None = None
        self.context: Context | None = None
        # The outcome has been passed to the reporter, or there is none to report. Nothing more is reported about this task.
        self.is_finished = False
        # A heartbeat with progress or log lines is in flight. They would be lost if a report arrived before it.
        self.is_in_heartbeat = False

    def renew(self, sent_at: float) -> None:
        self.renewed_at = sent_at
        self.lease_valid_until = sent_at + self.task.lease_seconds - margin_seconds(self.task.lease_seconds)

    def request_stop(self, reason: StopReason) -> bool:
        """Set the stop reason, and return whether it has changed. The first reason is kept, except that LOST replaces it.

        Can be called from any thread.
        """
        if self.stop is reason or (self.stop is not None and reason is not StopReason.LOST):
            return False
        self.stop = reason
        if self.context is not None:
            self.context.cancel()
        return True


# Keyed by the task id as an integer, because hashing a UUID would cost more than all other work per task here.
RunningTasks = dict[int, RunningTask]


def margin_seconds(lease_seconds: float) -> float:
    return min(1.0, lease_seconds / 10)


def attempt_seconds(timeout_seconds: float) -> float:
    """Return the timeout in the worker: a little shorter than on the server, which accepts no report after its own timeout."""
    return timeout_seconds - min(0.5, timeout_seconds / 20)


def heartbeat_seconds(lease_seconds: float) -> float:
    return lease_seconds / 3


def heartbeat_timeout_seconds(lease_seconds: float) -> float:
    """Return the timeout of a heartbeat, such that a lease covers one interval, two tries and the margin."""
    return min(5.0, (lease_seconds * 2 / 3 - margin_seconds(lease_seconds)) / 2)
