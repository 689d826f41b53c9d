"""Webhooks: signatures (Standard Webhooks 1.0), and what a response means. Pure; the time is an argument."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

SECRET_PREFIX = "whsec_"
SECRET_BYTES = 32
MAX_RETRY_AFTER_SECONDS = 86_400.0
DEFAULT_RETRY_ON = "408,409,425,429,5xx"
STATUS_LIST = re.compile(r"[1-5](xx|\d\d)(,[1-5](xx|\d\d)){0,19}")
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
MAX_HEADERS = 50
MAX_HEADER_CHARACTERS = 4096

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DENIED_HEADERS = frozenset(
    [
        "host",
        "content-length",
        "content-encoding",
        "accept-encoding",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "upgrade",
        "te",
        "trailer",
        "expect",
    ]
)
_DENIED_PREFIXES = ("webhook-", "everbeat-", "proxy-", "sec-")


class EndpointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How a named endpoint is called: resolved when a task is delivered. `secrets`: the valid ones, newest first."""

    url: str
    method: str | None = None
    headers: Mapping[str, str] = {}
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"EndpointRequest(url={self.url!r})"  # headers and secrets are confidential


def secret_text(random_bytes: bytes) -> str:
    return SECRET_PREFIX + base64.b64encode(random_bytes).decode()


def signature_headers(message_id: str, sent_at: int, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """Return the headers of a signed message: one signature for each secret that is valid during a rotation."""
    headers = {"webhook-id": message_id, "webhook-timestamp": str(sent_at)}
    content = f"{message_id}.{sent_at}.".encode() + body
    if secrets:
        headers["webhook-signature"] = " ".join(_signature(secret, content) for secret in secrets)
    return headers


def _signature(secret: str, content: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    return f"v1,{base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()}"


def is_secret(text: str) -> bool:
    """Whether the text is a signing secret of 24 to 64 bytes."""
    try:
        return text.startswith(SECRET_PREFIX) and 24 <= len(base64.b64decode(text[len(SECRET_PREFIX) :], validate=True)) <= 64
    except binascii.Error:
        return False


def header_message(name: str, value: str) -> str | None:
    """Return what is wrong with a header that a user wants to send, or None."""
    lower = name.lower()
    if not HEADER_NAME.fullmatch(name) or lower in _DENIED_HEADERS or lower.startswith(_DENIED_PREFIXES):
        return f"{name[:100]!r} cannot be set as a header"
    if len(value) > MAX_HEADER_CHARACTERS or _CONTROL.search(value) or not value.isascii():
        return f"{name}: must be at most {MAX_HEADER_CHARACTERS} ASCII characters, without control characters"
    return None


@functools.lru_cache(maxsize=1024)
def matches_status(statuses: str, status: int) -> bool:
    """Return whether a list such as "2xx,304" contains the status."""
    return any(one == str(status) or (one.endswith("xx") and one[0] == str(status)[0]) for one in statuses.split(","))


def retry_after_seconds(value: str | None, now: datetime) -> float | None:
    """Return the seconds that a Retry-After header asks for: a number, or a date. None: there is none, or it is not valid."""
    if value is None:
        return None
    text = value.strip()
    if re.fullmatch(r"\d{1,10}", text, re.ASCII):
        return min(float(text), MAX_RETRY_AFTER_SECONDS)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return min(max(0.0, (at - now).total_seconds()), MAX_RETRY_AFTER_SECONDS)
