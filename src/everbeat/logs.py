"""The logger of Everbeat inside a process of the user: it uses the logging configuration of that process."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any

from everbeat.core.errors import InvalidInput
from everbeat.core.tasks import ClaimedTask
from everbeat.core.tracing import parse_traceparent

NAME = "everbeat"
_LEVELS = ("debug", "info", "warning", "error")


# The task whose handler runs in this context.
current_task: ContextVar[ClaimedTask | None] = ContextVar("everbeat_current_task", default=None)


def task_ids() -> dict[str, str]:
    """Return what identifies the current task in a log line: `task`, `schedule` and `trace`. Empty outside of handlers."""
    task = current_task.get()
    return {} if task is None else ids_of(task)


def ids_of(task: ClaimedTask) -> dict[str, str]:
    ids = {"task": str(task.id)}
    if task.schedule is not None:
        ids["schedule"] = task.schedule
    if (context := parse_traceparent(task.traceparent)) is not None:
        ids["trace"] = f"{context.trace_id:032x}"
    return ids


def add_task_ids(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog that adds the ids of the current task to a line, unless it has them."""
    for name, value in task_ids().items():
        event.setdefault(name, value)
    return event


class TaskLogFilter(logging.Filter):
    """A filter of the module logging that gives records the ids of the current task: `task`, `schedule` and `trace`."""

    def filter(self, record: logging.LogRecord) -> bool:
        ids = task_ids()
        for name in ("task", "schedule", "trace"):
            setattr(record, name, ids.get(name, ""))
        return True


def get_logger() -> Any:
    """Return the structured logger of a command, or else the logger `everbeat` of the host process."""
    import structlog

    return structlog.get_logger(NAME) if structlog.is_configured() else library_logger()


def library_logger() -> Any:
    import structlog

    return structlog.wrap_logger(
        logging.getLogger(NAME),
        processors=[
            structlog.stdlib.filter_by_level,
            add_task_ids,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def set_library_level(level: str) -> None:
    """Set the level of the logger `everbeat`. If the process has not configured logging, its lines are written to stderr."""
    if level.lower() not in _LEVELS:
        raise InvalidInput.of("log_level", f"{level!r} is not one of {', '.join(_LEVELS)}")
    logger = logging.getLogger(NAME)
    logger.setLevel(level.upper())
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
