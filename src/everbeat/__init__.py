"""Everbeat: a distributed cron and task scheduler. This module exports the public names of the SDK.

Names are imported on first use, so that `import everbeat` and the command line load only what they need.
"""

import importlib
import typing

from everbeat.version import __version__

if typing.TYPE_CHECKING:
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
        UnexpectedResult,
    )
    from everbeat.client.handles import TaskHandle
    from everbeat.core.errors import EverbeatError
    from everbeat.core.schedules import Retry, RetryKind
    from everbeat.core.shell import shell_command
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
    "UnexpectedResult",
    "__version__",
    "shell_command",
]

_MODULES = {
    "everbeat.app": ("Everbeat",),
    "everbeat.client.errors": (
        "ConflictProblem",
        "InvalidArguments",
        "NonRetryable",
        "NotFoundProblem",
        "NotReachable",
        "RegistrationError",
        "RetryLater",
        "ServerProblem",
        "TaskCancelled",
        "TaskFailed",
        "TaskNotFinished",
        "UnexpectedResult",
    ),
    "everbeat.client.handles": ("TaskHandle",),
    "everbeat.core.errors": ("EverbeatError",),
    "everbeat.core.schedules": ("Retry", "RetryKind"),
    "everbeat.core.shell": ("shell_command",),
    "everbeat.worker.context": ("Cancelled", "Context"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

# Type checkers use the imports above. If they saw __getattr__, they would accept any name.
if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(module), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_MODULE_OF})
