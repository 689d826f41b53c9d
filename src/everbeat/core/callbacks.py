"""Callback tokens: the right to report on one attempt of one task, without an API key.

A token contains the tenant and the fence, and a MAC over them and the id of the task. It needs no row in the database, and is
worth nothing after the attempt has ended, because every report is checked against the fence.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import NamedTuple
from uuid import UUID

PREFIX = "ebcb_"
KEY_BYTES = 32
SECRET_NAME = "callbacks"
_CONTEXT = b"everbeat callback 1"
_FENCE_BYTES = 8
_CLAIMS_BYTES = 16 + _FENCE_BYTES


class CallbackClaims(NamedTuple):
    """What a valid token says."""

    tenant_id: UUID
    task_id: UUID
    fence: int


def make_token(key: bytes, claims: CallbackClaims) -> str:
    encoded = claims.tenant_id.bytes + claims.fence.to_bytes(_FENCE_BYTES, "big")
    return PREFIX + base64.urlsafe_b64encode(encoded + _mac(key, claims.task_id, encoded)).rstrip(b"=").decode()


def read_token(key: bytes, task_id: UUID, token: str) -> CallbackClaims | None:
    """Return what the token says, or None if it was not made with this key for this task."""
    if not token.startswith(PREFIX) or len(token) > 200:
        return None
    text = token.removeprefix(PREFIX)
    try:
        decoded = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    encoded, mac = decoded[:_CLAIMS_BYTES], decoded[_CLAIMS_BYTES:]
    if len(encoded) < _CLAIMS_BYTES or not hmac.compare_digest(mac, _mac(key, task_id, encoded)):
        return None
    return CallbackClaims(UUID(bytes=encoded[:16]), task_id, int.from_bytes(encoded[16:], "big"))


def _mac(key: bytes, task_id: UUID, encoded: bytes) -> bytes:
    return hmac.digest(key, _CONTEXT + task_id.bytes + encoded, hashlib.sha256)
