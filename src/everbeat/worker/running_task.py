"""A task in this worker's hands: until when it may trust its lease, and why it has to stop.

Trust is counted on the monotonic clock from *before* the claim or heartbeat was sent, so it ends before the lease can have
ended on the server, whatever the network did and however long this process stood still. Wall clocks are never compared.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from everbeat.client.registry import TaskDefinition
from everbeat.core.tasks import ClaimedTask
from everbeat.worker.context import Context


class StopReason(Enum):
    """Why a task has to stop. `LOST`: the server said so; `EXPIRED`: it may be so, for nobody could be asked."""

    CANCEL = "cancel"
    TIMEOUT = "timeout"
    LOST = "lost"
    EXPIRED = "expired"
    SHUTDOWN = "shutdown"


class RunningTask:
    """One task from claim to settlement. The heartbeat thread writes `renewed_at`, `trusted_until` and `stop`."""

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
        # An outcome was handed to the reporter, or there is none to report: nothing more may be said about this task.
        self.is_finished = False
        # A heartbeat with its news is under way: a completion that overtook it would lose them.
        self.is_in_heartbeat = False

    def renew(self, sent_at: float) -> None:
        self.renewed_at = sent_at
        self.trusted_until = sent_at + self.task.lease_seconds - margin_seconds(self.task.lease_seconds)

    def request_stop(self, reason: StopReason) -> bool:
        """The first reason counts, but that a task is lost outweighs all. From any thread. True if the reason is new."""
        if self.stop is reason or (self.stop is not None and reason is not StopReason.LOST):
            return False
        self.stop = reason
        if self.context is not None:
            self.context.cancel()
        return True


# By the id as a number: hashing a UUID costs more than all else that is done to keep a task in hand.
RunningTasks = dict[int, RunningTask]


def margin_seconds(lease_seconds: float) -> float:
    return min(1.0, lease_seconds / 10)


def attempt_seconds(timeout_seconds: float) -> float:
    """The server ends an attempt so long after the claim, and then listens no more: the worker has to be first to say so."""
    return timeout_seconds - min(0.5, timeout_seconds / 20)


def heartbeat_seconds(lease_seconds: float) -> float:
    return lease_seconds / 3


def heartbeat_timeout_seconds(lease_seconds: float) -> float:
    """How long one heartbeat may take: the lease holds an interval, two attempts and the margin."""
    return min(5.0, (lease_seconds * 2 / 3 - margin_seconds(lease_seconds)) / 2)
