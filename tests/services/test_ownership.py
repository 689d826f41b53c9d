"""Ownership among nodes of one store: shares, deaths, pauses, hand-overs, and clocks that go wrong."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from everbeat.clock import DatabaseClock
from everbeat.core.errors import StoreUnavailable
from everbeat.services.events import ClockSetBack, OwnershipChanged, OwnershipLost
from everbeat.services.ownership import Ownership
from everbeat.store.base import Store
from everbeat.store.values import Notice, PartitionRenewal
from tests.factories import EVERYTHING, NOW, SteppedNode, StoreOverride, node_heartbeat, seconds


async def settle(*nodes: SteppedNode) -> None:
    """Let every node beat until all agree."""
    for _ in range(4):
        for node in nodes:
            await node.renew()


async def pass_time(number: float, *nodes: SteppedNode) -> None:
    """Seconds pass, and the nodes given renew every third second."""
    while number > 0:
        step = min(number, 3.0)
        for node in nodes:
            await node.renew(node.now + seconds(step))
        number -= step


def assert_shared(*nodes: SteppedNode) -> None:
    assert sum(len(node.owned) for node in nodes) == 256
    assert frozenset().union(*(node.owned for node in nodes)) == EVERYTHING


async def test_a_single_node_owns_everything_after_its_second_beat(store: Store) -> None:
    node = SteppedNode(store)
    assert await node.ownership.run_once(NOW)
    assert node.owned == frozenset()
    assert not await node.ownership.run_once(NOW)
    assert node.owned == EVERYTHING
    assert node.events_of(OwnershipChanged)[-1] == OwnershipChanged(owned=256, gained=256, lost=0, live_nodes=1)


async def test_three_nodes_share_the_partitions(store: Store) -> None:
    nodes = [SteppedNode(store) for _ in range(3)]
    await settle(*nodes)
    assert_shared(*nodes)
    assert all(node.owned for node in nodes)


async def test_a_second_node_takes_its_share_without_anything_owned_twice(store: Store) -> None:
    first, second = SteppedNode(store), SteppedNode(store)
    await first.renew()
    for _ in range(3):
        for node in (second, first):
            await node.ownership.run_once(NOW)
            assert not first.owned & second.owned
    await settle(first, second)
    assert_shared(first, second)


async def test_a_dead_nodes_share_is_taken_once_its_lease_is_over(store: Store) -> None:
    dead, living = SteppedNode(store), SteppedNode(store)
    await settle(dead, living)
    await pass_time(9, living)
    assert len(living.owned) < 256
    await pass_time(3, living)
    assert living.owned == EVERYTHING


async def test_a_paused_node_stops_trusting_its_lease_before_the_database_does(store: Store) -> None:
    node = SteppedNode(store, lease_seconds=10)
    await node.renew()
    node.move_to(NOW + seconds(8.9))
    assert node.owned == EVERYTHING
    node.move_to(NOW + seconds(9))
    assert node.owned == frozenset()
    assert not node.ownership.has_fresh_lease
    partitions = await store.partition_list()
    assert all(one.lease_until is not None and one.lease_until > node.now for one in partitions)


async def test_trust_begins_when_the_renewal_was_sent_not_when_it_was_answered(store: Store) -> None:
    class Slow(StoreOverride):
        async def partition_renew(self, *args: Any, **more: Any) -> PartitionRenewal:
            renewal: PartitionRenewal = await self.inner.partition_renew(*args, **more)
            node.monotonic += 5
            return renewal

    node = SteppedNode(Slow(store))
    await node.ownership.run_once(NOW)
    await node.ownership.run_once(NOW)
    node.monotonic += 3.9
    assert node.owned == EVERYTHING
    node.monotonic += 0.1
    assert node.owned == frozenset()


async def test_a_woken_node_says_that_it_lost_its_lease_and_takes_it_again(store: Store) -> None:
    node = SteppedNode(store)
    await node.renew()
    await node.renew(NOW + seconds(60))
    assert node.events_of(OwnershipLost) == [OwnershipLost(256)]
    assert node.owned == EVERYTHING


async def test_a_woken_node_finds_that_another_took_over(store: Store) -> None:
    sleeper, other = SteppedNode(store), SteppedNode(store)
    await sleeper.renew()
    await pass_time(12, other)
    assert other.owned == EVERYTHING
    sleeper.move_to(other.now)
    await sleeper.ownership.run_once(sleeper.now)
    assert sleeper.owned == frozenset()
    await settle(sleeper, other)
    assert_shared(sleeper, other)


async def test_a_clean_stop_hands_over_at_once_and_says_so(store: Store) -> None:
    leaver, stayer = SteppedNode(store), SteppedNode(store)
    await settle(leaver, stayer)
    heard: list[Notice] = []
    store.subscribe(heard.append)
    await leaver.ownership.stop()
    assert heard == [Notice.OWNERSHIP]
    assert leaver.owned == frozenset()
    await stayer.renew()
    assert stayer.owned == EVERYTHING


async def test_a_stopped_node_never_beats_again(store: Store) -> None:
    node = SteppedNode(store)
    await node.renew()
    await node.ownership.stop()
    assert not await node.ownership.run_once(NOW)
    assert node.owned == frozenset()
    assert (await store.node_list(now=NOW))[1] == []


async def test_a_notice_of_ownership_wakes_the_loop(store: Store) -> None:
    node = SteppedNode(store, lease_seconds=600)
    await node.renew()
    store.publish(Notice.OWNERSHIP)
    await node.ownership.wait()  # would be 200 seconds


async def test_a_renewal_that_fails_costs_nothing_until_trust_ends(store: Store) -> None:
    class Flaky(StoreOverride):
        is_away = False

        async def partition_renew(self, *args: Any, **more: Any) -> PartitionRenewal:
            if self.is_away:
                raise StoreUnavailable("away")
            renewal: PartitionRenewal = await self.inner.partition_renew(*args, **more)
            return renewal

    flaky = Flaky(store)
    node = SteppedNode(flaky)
    await node.renew()
    flaky.is_away = True
    for at, owned in ((3, 256), (6, 256), (8.9, 256), (9, 0)):
        node.move_to(NOW + seconds(at))
        assert len(node.owned) == owned
        with pytest.raises(StoreUnavailable):
            await node.ownership.run_once(node.now)
    flaky.is_away = False
    await node.renew()
    assert node.owned == EVERYTHING


async def test_a_renewal_whose_answer_was_lost_is_simply_sent_again(store: Store) -> None:
    class Deaf(StoreOverride):
        lost = 0

        async def partition_renew(self, *args: Any, **more: Any) -> PartitionRenewal:
            renewal: PartitionRenewal = await self.inner.partition_renew(*args, **more)
            if self.lost:
                self.lost -= 1
                raise StoreUnavailable("the answer never came")
            return renewal

    deaf = Deaf(store)
    node = SteppedNode(deaf)
    await node.renew()
    epochs = dict(node.ownership.current())
    deaf.lost = 1
    with pytest.raises(StoreUnavailable):
        await node.renew(NOW + seconds(3))
    await node.renew(NOW + seconds(4))
    assert dict(node.ownership.current()) == epochs


async def test_two_nodes_with_the_same_name_are_two_nodes(store: Store) -> None:
    twins = [SteppedNode(store, name="same") for _ in range(2)]
    await settle(*twins)
    assert_shared(*twins)


async def test_a_node_without_the_scheduler_role_is_not_counted_on(store: Store) -> None:
    node = SteppedNode(store)
    node.ownership._beat = node.ownership._beat._replace(roles=("api",))
    scheduler = SteppedNode(store)
    await node.ownership.run_once(NOW)
    await scheduler.renew()
    assert scheduler.owned == EVERYTHING


async def test_a_clock_set_back_is_told_and_survived(store: Store) -> None:
    node, other = SteppedNode(store), SteppedNode(store)
    await settle(node, other)
    for one in (node, other):
        one.now = NOW - seconds(3600)
    await settle(node, other)
    assert node.events_of(ClockSetBack)[0].seconds == pytest.approx(3600, abs=5)
    assert_shared(node, other)


async def test_a_clock_set_back_does_not_keep_a_dead_nodes_share_for_an_hour(store: Store) -> None:
    dead, living = SteppedNode(store), SteppedNode(store)
    await settle(dead, living)
    living.now = NOW - seconds(3600)
    await settle(living)
    assert living.owned == EVERYTHING


async def test_a_heartbeat_carries_lag_and_rate(store: Store) -> None:
    node = SteppedNode(store)
    await node.renew()
    node.ownership.lag_seconds, node.ownership.fired = 1.5, 30
    await node.renew(NOW + seconds(3))
    (info,) = (await store.node_list(now=NOW))[1]
    assert (info.lag_seconds, info.fired_per_second) == (1.5, 10.0)


async def test_a_node_that_owns_nothing_and_sees_no_owner_beats_no_faster_than_others(store: Store) -> None:
    node = SteppedNode(store)
    api = Ownership(store, node_heartbeat(UUID(int=5), roles=("api",)), DatabaseClock(lambda: node.monotonic))
    heard: list[Notice] = []
    store.subscribe(heard.append)
    for _ in range(5):
        await api.run_once(NOW)
    assert heard == [Notice.OWNERSHIP]
