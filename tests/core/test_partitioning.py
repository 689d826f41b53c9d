"""Partitions: stable, evenly distributed, and moved as little as possible when nodes join and leave."""

from __future__ import annotations

from collections import Counter
from uuid import UUID, uuid4

from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.core.partitioning import PARTITIONS, partition_of, partitions_of_node

NODES = st.sets(st.uuids(), min_size=1, max_size=8)


def test_the_partition_of_an_id_never_changes() -> None:
    """These values are stored in databases. A change of the hash would need a migration."""
    known = {UUID(int=0): 85, UUID(int=1): 195, UUID("0190d3a4-7b1e-7c3a-9f00-0123456789ab"): 105}
    assert {id_: partition_of(id_) for id_ in known} == known


def test_ids_are_spread_evenly() -> None:
    counts = Counter(partition_of(uuid4()) for _ in range(256 * 100))
    assert len(counts) == PARTITIONS
    assert max(counts.values()) < 170


@settings(max_examples=25, deadline=None)
@given(NODES)
def test_the_live_nodes_cover_every_partition_once(nodes: set[UUID]) -> None:
    shares = [partitions_of_node(node, nodes) for node in nodes]
    assert sum(len(share) for share in shares) == PARTITIONS
    assert frozenset().union(*shares) == frozenset(range(PARTITIONS))


@settings(max_examples=25, deadline=None)
@given(NODES, st.uuids())
def test_a_leaving_node_moves_only_its_own_partitions(nodes: set[UUID], leaving: UUID) -> None:
    nodes.discard(leaving)
    for node in nodes:
        assert partitions_of_node(node, nodes | {leaving}) <= partitions_of_node(node, nodes)


def test_a_node_counts_itself_as_live() -> None:
    node = uuid4()
    assert partitions_of_node(node, []) == frozenset(range(PARTITIONS))


def test_shares_are_roughly_equal() -> None:
    nodes = [UUID(int=number) for number in range(4)]
    assert all(40 <= len(partitions_of_node(node, nodes)) <= 90 for node in nodes)


@settings(max_examples=25, deadline=None)
@given(NODES, st.data())
def test_nodes_of_any_capacities_cover_every_partition_once(nodes: set[UUID], data: st.DataObject) -> None:
    capacities = {node: data.draw(st.sampled_from([0.0, 0.25, 1.0])) for node in nodes}
    shares = {node: partitions_of_node(node, nodes, capacities) for node in nodes}
    assert sum(map(len, shares.values())) == PARTITIONS
    assert frozenset().union(*shares.values()) == frozenset(range(PARTITIONS))
    if any(capacities.values()):
        assert all(shares[node] == frozenset() for node in nodes if capacities[node] == 0)


@settings(max_examples=25, deadline=None)
@given(NODES, st.uuids())
def test_a_lower_capacity_moves_only_partitions_of_its_node(nodes: set[UUID], slow: UUID) -> None:
    nodes.add(slow)
    for before, after in ((1.0, 0.25), (0.25, 0.0)):
        for node in nodes - {slow}:
            assert partitions_of_node(node, nodes, {slow: before}) <= partitions_of_node(node, nodes, {slow: after})


def test_a_node_with_a_quarter_of_the_capacity_gets_about_a_fifth_beside_another() -> None:
    one, two = UUID(int=1), UUID(int=2)
    assert 35 <= len(partitions_of_node(one, {one, two}, {one: 0.25, two: 1.0})) <= 70


def test_nodes_without_any_capacity_are_equal() -> None:
    nodes = {UUID(int=number) for number in range(4)}
    none = dict.fromkeys(nodes, 0.0)
    assert all(partitions_of_node(node, nodes, none) == partitions_of_node(node, nodes) for node in nodes)
