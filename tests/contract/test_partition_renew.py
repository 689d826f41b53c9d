"""partition_renew, partition_release and partition_list: leases and epochs; node_list and node_prune."""

from __future__ import annotations

import asyncio
from datetime import datetime
from uuid import UUID

import pytest

from everbeat.store.base import Store
from everbeat.store.values import NodeInfo, PartitionInfo
from tests.factories import ALL_PARTITIONS, NOW, apply_unknown_migration, minutes, node_heartbeat, open_second_store, seconds

ONE, TWO, THREE = UUID(int=1), UUID(int=2), UUID(int=3)
SOME = frozenset({0, 7, 255})


async def renew(store: Store, node: UUID, wanted: frozenset[int], at: float = 0, lease: float = 10) -> dict[int, int]:
    return dict((await store.partition_renew(node_heartbeat(node, lease_seconds=lease), wanted, now=NOW + seconds(at))).owned)


async def info(store: Store, partition: int) -> PartitionInfo:
    return (await store.partition_list())[partition]


async def test_partition_list_returns_free_partitions_at_first(store: Store) -> None:
    assert await store.partition_list() == [PartitionInfo(number, None, 0, None) for number in range(256)]


async def test_partition_renew_takes_free_partitions_with_epoch_one(store: Store) -> None:
    assert await renew(store, ONE, SOME) == {0: 1, 7: 1, 255: 1}
    assert await info(store, 7) == PartitionInfo(7, ONE, 1, NOW + seconds(10))
    assert await info(store, 8) == PartitionInfo(8, None, 0, None)


async def test_partition_renew_by_the_owner_extends_the_lease_and_keeps_the_epoch(store: Store) -> None:
    await renew(store, ONE, SOME)
    assert await renew(store, ONE, SOME, at=3) == {0: 1, 7: 1, 255: 1}
    assert await info(store, 7) == PartitionInfo(7, ONE, 1, NOW + seconds(13))


async def test_partition_renew_by_the_owner_after_expiry_keeps_the_epoch_if_still_owned(store: Store) -> None:
    await renew(store, ONE, SOME)
    assert await renew(store, ONE, SOME, at=60) == {0: 1, 7: 1, 255: 1}


async def test_partition_renew_does_not_take_a_live_lease(store: Store) -> None:
    await renew(store, ONE, SOME)
    assert await renew(store, TWO, SOME, at=9.999) == {}
    assert await info(store, 7) == PartitionInfo(7, ONE, 1, NOW + seconds(10))


async def test_partition_renew_takes_an_expired_lease_with_a_higher_epoch(store: Store) -> None:
    await renew(store, ONE, SOME)
    assert await renew(store, TWO, SOME, at=10) == {0: 2, 7: 2, 255: 2}
    assert await renew(store, ONE, SOME, at=11) == {}
    assert await renew(store, ONE, SOME, at=20) == {0: 3, 7: 3, 255: 3}


async def test_partition_renew_releases_unwanted_partitions(store: Store) -> None:
    await renew(store, ONE, SOME)
    assert await renew(store, ONE, frozenset({7}), at=1) == {7: 1}
    assert await info(store, 0) == PartitionInfo(0, None, 1, None)
    assert await renew(store, TWO, SOME, at=1) == {0: 2, 255: 2}


async def test_partition_renew_treats_an_impossibly_long_lease_as_expired(store: Store) -> None:
    """The clock was set back by an hour. Other nodes must not wait an hour for the lease."""
    await renew(store, ONE, SOME, at=3600)
    assert await renew(store, TWO, SOME) == {0: 2, 7: 2, 255: 2}


async def test_partition_renew_respects_a_lease_after_a_small_clock_step_back(store: Store) -> None:
    await renew(store, ONE, SOME)
    assert await renew(store, TWO, SOME, at=-4) == {}


async def test_partition_renew_uses_the_lease_length_of_each_owner(store: Store) -> None:
    await renew(store, ONE, SOME, lease=100)
    assert await renew(store, TWO, SOME, at=50, lease=10) == {}
    assert await renew(store, TWO, SOME, at=100, lease=10) == {0: 2, 7: 2, 255: 2}


async def test_partition_renew_returns_the_live_scheduler_nodes(store: Store) -> None:
    await store.partition_renew(node_heartbeat(ONE), frozenset(), now=NOW)
    await store.partition_renew(node_heartbeat(TWO, roles=("api",)), frozenset(), now=NOW)
    await store.partition_renew(node_heartbeat(THREE, roles=("api", "scheduler"), lease_seconds=30), frozenset(), now=NOW)

    async def live(at: float) -> frozenset[UUID]:
        api_node = node_heartbeat(UUID(int=9), roles=("api",))
        return (await store.partition_renew(api_node, frozenset(), now=NOW + seconds(at))).live

    assert await live(9.9) == {ONE, THREE}
    assert await live(10) == {THREE}
    assert await live(30) == frozenset()
    assert await live(-10) == {THREE}  # this heartbeat predates a step of the clock: it is further ahead than the lease
    assert await live(-30) == frozenset()


@pytest.mark.parametrize(("at", "back"), [(-3600.0, 3600.0), (5.0, -5.0)])
async def test_partition_renew_returns_how_far_the_clock_is_behind_an_earlier_heartbeat(
    store: Store, at: float, back: float
) -> None:
    first = await store.partition_renew(node_heartbeat(ONE), SOME, now=NOW)
    assert first.clock_back_seconds <= 0
    again = await store.partition_renew(node_heartbeat(ONE), SOME, now=NOW + seconds(at))
    assert again.clock_back_seconds == back
    assert again.now == NOW + seconds(at)


async def test_partition_renew_under_concurrency_gives_each_partition_to_one_node(store: Store) -> None:
    second_stores = [open_second_store(store) for _ in range(3)]
    nodes = [UUID(int=10 + number) for number in range(3)]
    renewals = await asyncio.gather(
        *(
            second_store.partition_renew(node_heartbeat(node), ALL_PARTITIONS, now=NOW)
            for second_store, node in zip(second_stores, nodes, strict=True)
        )
    )
    for second_store in second_stores:
        await second_store.close()
    owned = [set(renewal.owned) for renewal in renewals]
    assert sum(len(one) for one in owned) == 256
    assert set().union(*owned) == ALL_PARTITIONS


async def test_partition_release_frees_all_partitions_and_removes_the_node(store: Store) -> None:
    await renew(store, ONE, SOME)
    await renew(store, TWO, frozenset({1}))
    assert await store.partition_release(ONE) == 3
    assert await store.partition_release(ONE) == 0
    assert await info(store, 7) == PartitionInfo(7, None, 1, None)
    assert await info(store, 1) == PartitionInfo(1, TWO, 1, NOW + seconds(10))
    assert [node.id for node in (await store.node_list(now=NOW))[1]] == [TWO]
    assert await renew(store, TWO, SOME) == {0: 2, 7: 2, 255: 2}


async def test_node_list_shows_each_heartbeat(store: Store) -> None:
    first = node_heartbeat(ONE, roles=("api", "scheduler"))._replace(lag_seconds=0.5, fired_per_second=12.5)
    await store.partition_renew(first, frozenset(), now=NOW)
    await store.partition_renew(first._replace(lag_seconds=None), frozenset(), now=NOW + seconds(3))
    moment, nodes = await store.node_list(now=NOW + seconds(4))
    assert moment == NOW + seconds(4)
    assert nodes == [NodeInfo(ONE, "node", ("api", "scheduler"), "test", NOW, NOW + seconds(3), 10, None, 12.5)]


async def test_node_list_returns_the_time_even_without_nodes(store: Store) -> None:
    assert await store.node_list(now=NOW) == (NOW, [])
    moment, _ = await store.node_list()
    assert isinstance(moment, datetime)


async def test_node_prune_removes_nodes_without_a_recent_heartbeat(store: Store) -> None:
    await renew(store, ONE, frozenset())
    await renew(store, TWO, frozenset(), at=60)
    assert await store.node_prune(unseen_seconds=60, now=NOW + minutes(1)) == 0
    assert await store.node_prune(unseen_seconds=60, now=NOW + minutes(1) + seconds(1)) == 1
    assert [node.id for node in (await store.node_list())[1]] == [TWO]


async def test_partition_renew_gives_nothing_to_a_node_older_than_the_schema(store: Store) -> None:
    await renew(store, ONE, SOME)
    await apply_unknown_migration(store)
    assert await renew(store, ONE, SOME, at=1) == {}
    assert await renew(store, TWO, ALL_PARTITIONS, at=1) == {}
    assert {partition.owner for partition in await store.partition_list()} == {None}
