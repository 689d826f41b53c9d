"""Partitions: which one a schedule or task belongs to, and which node should own it. Both follow from stable hashes."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterable, Mapping
from uuid import UUID

PARTITIONS = 256


def partition_of(id_: UUID) -> int:
    return zlib.crc32(id_.bytes) % PARTITIONS


def _score(node: UUID, partition: int) -> bytes:
    return hashlib.blake2b(node.bytes + partition.to_bytes(2, "big"), digest_size=8).digest()


def _weighted_score(node: UUID, partition: int, weight: float) -> tuple[float, bytes]:
    score = _score(node, partition)
    fraction = (int.from_bytes(score, "big") + 1) / (2**64 + 1)
    return weight / -math.log(fraction), score


def partitions_of_node(node: UUID, live: Iterable[UUID], capacities: Mapping[UUID, float] | None = None) -> frozenset[int]:
    """Return the partitions that a node should own. Rendezvous hashing moves few of them when a node joins or leaves.

    Each node gets a part in proportion to its capacity, which is 1 unless it is given. A change of a capacity moves only the
    partitions by which this part grows or shrinks. If no node has any capacity, all are equal.
    """
    nodes = sorted(set(live) | {node})
    weights = {one: (capacities or {}).get(one, 1.0) for one in nodes}
    if len(set(weights.values())) == 1:
        return frozenset(p for p in range(PARTITIONS) if max(nodes, key=lambda n: _score(n, p)) == node)
    able = [one for one in nodes if weights[one] > 0]
    return frozenset(p for p in range(PARTITIONS) if max(able, key=lambda n: _weighted_score(n, p, weights[n])) == node)
