"""Names that users give: one alphabet for schedules, queues, types, calendars and labels."""

from __future__ import annotations

import re

NAME_LENGTH = 200
NAME_MESSAGE = "must be 1 to 200 of the letters A-Z a-z, digits and . _ : -"

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def has_control_characters(text: str) -> bool:
    """Control characters other than tab and newline; databases and terminals choke on them."""
    return _CONTROL.search(text) is not None


def is_encodable(text: str) -> bool:
    """False for lone surrogates, which JSON can smuggle in and UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
