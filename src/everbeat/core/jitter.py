"""Jitter: the delay between a tick and its firing. It is the same for all ticks of a schedule."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from uuid import UUID

_HASH_BITS = 64


def jitter_of(schedule_id: UUID, jitter_seconds: float) -> timedelta:
    """Return a stable delay in [0, jitter_seconds), in whole microseconds. Delays are distributed evenly over schedules."""
    span = int(jitter_seconds * 1_000_000)
    if span <= 0:
        return timedelta(0)
    # The hash key makes the delay independent of the partition and of H in cron, which are hashes of the same id.
    digest = hashlib.blake2b(schedule_id.bytes, digest_size=_HASH_BITS // 8, key=b"everbeat jitter").digest()
    return timedelta(microseconds=(int.from_bytes(digest, "big") * span) >> _HASH_BITS)
