"""Names that users choose. Schedules, queues, types, calendars and labels allow the same characters."""

from __future__ import annotations

import re
from collections.abc import Mapping

from everbeat.core.errors import FieldError

NAME_LENGTH = 200
NAME_MESSAGE = "must be 1 to 200 characters: letters A-Z and a-z, digits, and . _ : -"

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def has_control_characters(text: str) -> bool:
    """Whether the text has control characters other than tab and newline, which databases and terminals mishandle."""
    return _CONTROL.search(text) is not None


def is_encodable(text: str) -> bool:
    """Whether the text can be encoded as UTF-8; False for lone surrogates, which JSON escapes allow."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def label_errors(labels: Mapping[str, str]) -> list[FieldError]:
    """Return the errors of the labels of a schedule, a task, a check or an alert rule."""
    errors = []
    if len(labels) > 32:
        errors.append(FieldError("labels", "must have at most 32 labels"))
    for key, value in labels.items():
        if not is_name(key) or len(value) > 256 or has_control_characters(value) or not is_encodable(value):
            errors.append(
                FieldError(f"labels.{key[:40]!r}", "names must be valid schedule names; values must be at most 256 characters")
            )
    return errors
