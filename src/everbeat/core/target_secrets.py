"""Secrets in targets: the values of certain headers, and the path of a Slack webhook, are written and never read back.

Responses show `***` in place of such a value. A request that sends `***` for a header keeps the stored value, so that a
definition can be read, changed and written again. The value is kept only for the same endpoint, or the same scheme, host and
port: otherwise a caller that may change a schedule could have its secrets sent to a server of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from everbeat.core.errors import FieldError
from everbeat.core.message_targets import SlackTarget, is_redacted_url, redacted_url
from everbeat.core.targets import HttpTarget, Target

REDACTED = "***"

_SECRET_WORDS = (
    *("auth", "token", "secret", "password", "passwd", "credential", "cookie", "session", "signature"),
    *("api-key", "api_key", "apikey", "access-key", "access_key", "private-key", "private_key", "jwt", "bearer"),
)


def is_secret_header(name: str) -> bool:
    """Return whether the value of a header with this name is taken for a secret."""
    lower = name.lower()
    return any(word in lower for word in _SECRET_WORDS) or lower.endswith(("-key", "_key"))


def shown_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers as responses show them."""
    return {name: REDACTED if is_secret_header(name) else value for name, value in headers.items()}


def shown_target(target: Target) -> Target:
    """Return the target as responses show it."""
    if isinstance(target, SlackTarget):
        return msgspec.structs.replace(target, url=redacted_url(target.url))
    if not isinstance(target, HttpTarget) or not any(map(is_secret_header, target.headers)):
        return target
    return msgspec.structs.replace(target, headers=shown_headers(target.headers))


def with_stored_secrets(target: Target, stored: Target | None) -> Target:
    """Return the target with the stored values of what is redacted, as far as there are any."""
    if isinstance(target, SlackTarget) and isinstance(stored, SlackTarget) and is_redacted_url(target.url):
        return stored if origin_of(stored.url) == origin_of(target.url) else target
    if not isinstance(target, HttpTarget) or REDACTED not in target.headers.values():
        return target
    known: dict[str, str] = {}
    if isinstance(stored, HttpTarget) and _destination(stored) == _destination(target):
        known = {name.lower(): value for name, value in stored.headers.items() if is_secret_header(name)}
    headers = {
        name: known.get(name.lower(), value) if value == REDACTED and is_secret_header(name) else value
        for name, value in target.headers.items()
    }
    return msgspec.structs.replace(target, headers=headers)


def redaction_errors(target: Target) -> list[FieldError]:
    """Return an error for each secret whose value is redacted, and not known."""
    if isinstance(target, SlackTarget) and is_redacted_url(target.url):
        return [
            FieldError("target.url", f"{REDACTED} stands for a stored path, but none is stored for this host; send the URL")
        ]
    if not isinstance(target, HttpTarget):
        return []
    message = f"{REDACTED} stands for a stored value, but none is stored for this header and this host; send the value"
    return [
        FieldError(f"target.headers.{name[:100]}", message)
        for name, value in target.headers.items()
        if value == REDACTED and is_secret_header(name)
    ]


def _destination(target: HttpTarget) -> tuple[str | None, str, str, int | None]:
    return target.endpoint, *origin_of(target.url or "")


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Return the scheme, the host and the port of a URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port
