"""The logger of Everbeat inside a process of the user: it uses the logging configuration of that process."""

from __future__ import annotations

import logging
import sys
from typing import Any

from everbeat.core.errors import InvalidInput

NAME = "everbeat"
_LEVELS = ("debug", "info", "warning", "error")


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
