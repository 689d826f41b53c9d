"""Partitions: which one a schedule or task belongs to, and which node should own it. Both follow from stable hashes."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from uuid import UUID

PARTITIONS = 256


def partition_of(id_: UUID) -> int:
    return zlib.crc32(id_.bytes) % PARTITIONS


def _score(node: UUID, partition: int) -> bytes:
    return hashlib.blake2b(node.bytes + partition.to_bytes(2, "big"), digest_size=8).digest()


def partitions_of_node(node: UUID, live: Iterable[UUID]) -> frozenset[int]:
    """Return the partitions that a node should own. Rendezvous hashing moves few of them when a node joins or leaves."""
    nodes = sorted(set(live) | {node})
    return frozenset(p for p in range(PARTITIONS) if max(nodes, key=lambda n: _score(n, p)) == node)
