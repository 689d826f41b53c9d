"""Confirmation of actions on many things: above a limit, the number is typed. The server checks it, with or without scripts."""

from __future__ import annotations

from everbeat.core.errors import InvalidInput
from everbeat.web.forms import Form

# Actions on more than this need the number to be typed.
MAX_UNTYPED = 100


def check_confirmed(form: Form) -> int:
    """Return the number that the form was shown with. Raises InvalidInput if it has to be typed, and was not."""
    expected, typed = _number(form.text("expect_count")), form.text("typed_count").replace(",", "").replace(".", "")
    if (expected > MAX_UNTYPED or form.is_set("must_type")) and typed != str(expected):
        raise InvalidInput.of("typed_count", f"type {expected:,} to confirm; nothing was changed")
    return expected


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise InvalidInput.of("expect_count", "is missing; open the list again")
    return int(text)
