"""Idempotency keys of clients, and the stored responses to their requests."""

from __future__ import annotations

from typing import NamedTuple

from everbeat.core.errors import InvalidInput
from everbeat.store.values import IdempotentResponse


class Idempotency(NamedTuple):
    """An idempotency key, and a fingerprint of the request that it was sent with."""

    key: str
    fingerprint: bytes


class EncodedResponse(NamedTuple):
    status: int
    body: bytes


def check_same(fingerprint: bytes, idempotency: Idempotency) -> None:
    if fingerprint != idempotency.fingerprint:
        raise InvalidInput.of("Idempotency-Key", "was used before with another request; use a new key")


def repeated(response: IdempotentResponse, idempotency: Idempotency) -> EncodedResponse:
    """Return the stored response. Raises InvalidInput if the key was used with a different request."""
    check_same(response.fingerprint, idempotency)
    return EncodedResponse(response.status, response.body)
