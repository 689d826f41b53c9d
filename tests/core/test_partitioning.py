"""Partitions: stable, even, and moved as little as possible when nodes come and go."""

from __future__ import annotations

from collections import Counter
from uuid import UUID, uuid4

from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.core.partitioning import PARTITIONS, partition_of, partitions_of_node

NODES = st.sets(st.uuids(), min_size=1, max_size=8)


def test_a_partition_never_moves() -> None:
    """These are in people's databases: a change of the hash would need a migration."""
    known = {UUID(int=0): 85, UUID(int=1): 195, UUID("0190d3a4-7b1e-7c3a-9f00-0123456789ab"): 105}
    assert {id_: partition_of(id_) for id_ in known} == known


def test_ids_spread_evenly() -> None:
    counts = Counter(partition_of(uuid4()) for _ in range(256 * 100))
    assert len(counts) == PARTITIONS
    assert max(counts.values()) < 170


@settings(max_examples=25, deadline=None)
@given(NODES)
def test_shares_of_the_live_nodes_cover_everything_once(nodes: set[UUID]) -> None:
    shares = [partitions_of_node(node, nodes) for node in nodes]
    assert sum(len(share) for share in shares) == PARTITIONS
    assert frozenset().union(*shares) == frozenset(range(PARTITIONS))


@settings(max_examples=25, deadline=None)
@given(NODES, st.uuids())
def test_a_node_that_leaves_gives_its_share_to_the_others_and_moves_nothing_else(nodes: set[UUID], leaver: UUID) -> None:
    nodes.discard(leaver)
    for node in nodes:
        assert partitions_of_node(node, nodes | {leaver}) <= partitions_of_node(node, nodes)


def test_a_node_counts_itself_among_the_living() -> None:
    alone = uuid4()
    assert partitions_of_node(alone, []) == frozenset(range(PARTITIONS))


def test_shares_are_roughly_equal() -> None:
    nodes = [UUID(int=number) for number in range(4)]
    assert all(40 <= len(partitions_of_node(node, nodes)) <= 90 for node in nodes)
