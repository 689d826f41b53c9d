"""What a client's idempotency key stands for: the request it came with, and the answer that was given."""

from __future__ import annotations

from typing import NamedTuple

from everbeat.core.errors import InvalidInput
from everbeat.store.values import IdempotentResponse


class Idempotency(NamedTuple):
    """The key a client sent, and a fingerprint of the request it came with."""

    key: str
    fingerprint: bytes


class EncodedResponse(NamedTuple):
    status: int
    body: bytes


def check_same(fingerprint: bytes, idempotency: Idempotency) -> None:
    if fingerprint != idempotency.fingerprint:
        raise InvalidInput.of("Idempotency-Key", "was used before with another request; use a new key")


def repeated(response: IdempotentResponse, idempotency: Idempotency) -> EncodedResponse:
    """The answer of before; a key that came with another request is refused."""
    check_same(response.fingerprint, idempotency)
    return EncodedResponse(response.status, response.body)
