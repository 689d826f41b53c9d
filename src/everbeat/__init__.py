"""Everbeat: a distributed cron and task scheduler. The public names, and nothing else."""

from everbeat.app import Everbeat
from everbeat.client.errors import (
    ConflictProblem,
    InvalidArguments,
    NonRetryable,
    NotFoundProblem,
    NotReachable,
    RegistrationError,
    RetryLater,
    ServerProblem,
    TaskCancelled,
    TaskFailed,
    TaskNotFinished,
)
from everbeat.client.handles import TaskHandle
from everbeat.core.errors import EverbeatError
from everbeat.core.schedules import Retry, RetryKind
from everbeat.version import __version__
from everbeat.worker.context import Cancelled, Context

__all__ = [
    "Cancelled",
    "ConflictProblem",
    "Context",
    "Everbeat",
    "EverbeatError",
    "InvalidArguments",
    "NonRetryable",
    "NotFoundProblem",
    "NotReachable",
    "RegistrationError",
    "Retry",
    "RetryKind",
    "RetryLater",
    "ServerProblem",
    "TaskCancelled",
    "TaskFailed",
    "TaskHandle",
    "TaskNotFinished",
    "__version__",
]
