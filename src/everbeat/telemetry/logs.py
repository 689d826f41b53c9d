"""The format of log lines, and the log lines of libraries."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from everbeat.logs import add_task_ids


def configure_logging(level: str, form: str) -> None:
    """Configure logging to stderr, as console or JSON lines. Both escape line breaks, so that values cannot forge a line."""
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if form == "console" else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            add_task_ids,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([] if form == "console" else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


class _LibraryLogs(logging.Handler):
    """Writes what libraries and asyncio log, such as an exception in a task that is not awaited, in the format of the node."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        structlog.get_logger("everbeat").log(
            record.levelno, "library_log", logger=record.name, message=text, exc_info=record.exc_info or None
        )


def capture_library_logs() -> None:
    """Write the warnings of libraries as structured lines too. For a process that runs no code of users."""
    logging.basicConfig(handlers=[_LibraryLogs(logging.WARNING)], level=logging.WARNING, force=True)
    logging.captureWarnings(True)
