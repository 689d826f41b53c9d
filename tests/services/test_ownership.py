"""Ownership of partitions: sharing between nodes, crashes, pauses, clean stops, and clocks that are wrong."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from everbeat.clock import DatabaseClock
from everbeat.core.errors import StoreUnavailable
from everbeat.services.events import CapacityChanged, ClockSetBack, OwnershipChanged, OwnershipLost
from everbeat.services.ownership import Ownership
from everbeat.store.base import Store
from everbeat.store.values import Notice, PartitionRenewal
from tests.factories import ALL_PARTITIONS, NOW, SteppedNode, StoreOverride, node_heartbeat, seconds


async def renew_all(*nodes: SteppedNode) -> None:
    """Renew on every node until all agree."""
    for _ in range(4):
        for node in nodes:
            await node.renew()


async def pass_time(number: float, *nodes: SteppedNode) -> None:
    """Advance the time in steps of three seconds, and renew on the given nodes at each step."""
    while number > 0:
        step = min(number, 3.0)
        for node in nodes:
            await node.renew(node.now + seconds(step))
        number -= step


def assert_all_owned(*nodes: SteppedNode) -> None:
    assert sum(len(node.owned) for node in nodes) == 256
    assert frozenset().union(*(node.owned for node in nodes)) == ALL_PARTITIONS


async def test_a_single_node_owns_everything_after_its_second_heartbeat(store: Store) -> None:
    node = SteppedNode(store)
    assert await node.ownership.run_once(NOW)
    assert node.owned == frozenset()
    assert not await node.ownership.run_once(NOW)
    assert node.owned == ALL_PARTITIONS
    assert node.events_of(OwnershipChanged)[-1] == OwnershipChanged(owned=256, gained=256, lost=0, live_nodes=1)


async def test_three_nodes_share_the_partitions(store: Store) -> None:
    nodes = [SteppedNode(store) for _ in range(3)]
    await renew_all(*nodes)
    assert_all_owned(*nodes)
    assert all(node.owned for node in nodes)


async def test_a_second_node_takes_its_share_and_no_partition_is_owned_twice(store: Store) -> None:
    first, second = SteppedNode(store), SteppedNode(store)
    await first.renew()
    for _ in range(3):
        for node in (second, first):
            await node.ownership.run_once(NOW)
            assert not first.owned & second.owned
    await renew_all(first, second)
    assert_all_owned(first, second)


async def test_a_dead_nodes_share_is_taken_after_its_lease_expires(store: Store) -> None:
    dead, live = SteppedNode(store), SteppedNode(store)
    await renew_all(dead, live)
    await pass_time(9, live)
    assert len(live.owned) < 256
    await pass_time(3, live)
    assert live.owned == ALL_PARTITIONS


async def test_a_paused_node_stops_trusting_its_lease_before_the_database_does(store: Store) -> None:
    node = SteppedNode(store, lease_seconds=10)
    await node.renew()
    node.move_to(NOW + seconds(8.9))
    assert node.owned == ALL_PARTITIONS
    node.move_to(NOW + seconds(9))
    assert node.owned == frozenset()
    assert not node.ownership.has_fresh_lease
    partitions = await store.partition_list()
    assert all(one.lease_until is not None and one.lease_until > node.now for one in partitions)


async def test_trust_begins_when_the_renewal_is_sent_and_not_at_the_response(store: Store) -> None:
    class SlowStore(StoreOverride):
        async def partition_renew(self, *args: Any, **more: Any) -> PartitionRenewal:
            renewal: PartitionRenewal = await self.inner.partition_renew(*args, **more)
            node.monotonic += 5
            return renewal

    node = SteppedNode(SlowStore(store))
    await node.ownership.run_once(NOW)
    await node.ownership.run_once(NOW)
    node.monotonic += 3.9
    assert node.owned == ALL_PARTITIONS
    node.monotonic += 0.1
    assert node.owned == frozenset()


async def test_a_resumed_node_reports_its_lost_lease_and_takes_it_again(store: Store) -> None:
    node = SteppedNode(store)
    await node.renew()
    await node.renew(NOW + seconds(60))
    assert node.events_of(OwnershipLost) == [OwnershipLost(256)]
    assert node.owned == ALL_PARTITIONS


async def test_a_resumed_node_finds_that_another_took_over(store: Store) -> None:
    paused, other = SteppedNode(store), SteppedNode(store)
    await paused.renew()
    await pass_time(12, other)
    assert other.owned == ALL_PARTITIONS
    paused.move_to(other.now)
    await paused.ownership.run_once(paused.now)
    assert paused.owned == frozenset()
    await renew_all(paused, other)
    assert_all_owned(paused, other)


async def test_a_clean_stop_releases_partitions_immediately_and_publishes_a_notice(store: Store) -> None:
    stopping, remaining = SteppedNode(store), SteppedNode(store)
    await renew_all(stopping, remaining)
    notices: list[Notice] = []
    store.subscribe(notices.append)
    await stopping.ownership.stop()
    assert notices == [Notice.OWNERSHIP]
    assert stopping.owned == frozenset()
    await remaining.renew()
    assert remaining.owned == ALL_PARTITIONS


async def test_a_stopped_node_sends_no_heartbeat(store: Store) -> None:
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
    await node.ownership.wait()  # the interval would be 200 seconds


async def test_a_failed_renewal_has_no_effect_until_trust_ends(store: Store) -> None:
    class UnavailableStore(StoreOverride):
        is_unavailable = False

        async def partition_renew(self, *args: Any, **more: Any) -> PartitionRenewal:
            if self.is_unavailable:
                raise StoreUnavailable("unavailable")
            renewal: PartitionRenewal = await self.inner.partition_renew(*args, **more)
            return renewal

    unavailable = UnavailableStore(store)
    node = SteppedNode(unavailable)
    await node.renew()
    unavailable.is_unavailable = True
    for at, owned in ((3, 256), (6, 256), (8.9, 256), (9, 0)):
        node.move_to(NOW + seconds(at))
        assert len(node.owned) == owned
        with pytest.raises(StoreUnavailable):
            await node.ownership.run_once(node.now)
    unavailable.is_unavailable = False
    await node.renew()
    assert node.owned == ALL_PARTITIONS


async def test_a_renewal_whose_reply_was_lost_is_sent_again(store: Store) -> None:
    class LostReplyStore(StoreOverride):
        lost_replies = 0

        async def partition_renew(self, *args: Any, **more: Any) -> PartitionRenewal:
            renewal: PartitionRenewal = await self.inner.partition_renew(*args, **more)
            if self.lost_replies:
                self.lost_replies -= 1
                raise StoreUnavailable("the reply was lost")
            return renewal

    losing_replies = LostReplyStore(store)
    node = SteppedNode(losing_replies)
    await node.renew()
    epochs = dict(node.ownership.current())
    losing_replies.lost_replies = 1
    with pytest.raises(StoreUnavailable):
        await node.renew(NOW + seconds(3))
    await node.renew(NOW + seconds(4))
    assert dict(node.ownership.current()) == epochs


async def test_two_nodes_with_the_same_name_are_two_nodes(store: Store) -> None:
    nodes = [SteppedNode(store, name="same") for _ in range(2)]
    await renew_all(*nodes)
    assert_all_owned(*nodes)


async def test_a_node_without_the_scheduler_role_gets_no_share(store: Store) -> None:
    node = SteppedNode(store)
    node.ownership._heartbeat = node.ownership._heartbeat._replace(roles=("api",))
    scheduler = SteppedNode(store)
    await node.ownership.run_once(NOW)
    await scheduler.renew()
    assert scheduler.owned == ALL_PARTITIONS


async def test_a_clock_set_back_is_reported_and_tolerated(store: Store) -> None:
    node, other = SteppedNode(store), SteppedNode(store)
    await renew_all(node, other)
    for one in (node, other):
        one.now = NOW - seconds(3600)
    await renew_all(node, other)
    assert node.events_of(ClockSetBack)[0].seconds == pytest.approx(3600, abs=5)
    assert_all_owned(node, other)


async def test_a_clock_set_back_does_not_extend_a_dead_nodes_lease(store: Store) -> None:
    dead, live = SteppedNode(store), SteppedNode(store)
    await renew_all(dead, live)
    live.now = NOW - seconds(3600)
    await renew_all(live)
    assert live.owned == ALL_PARTITIONS


async def test_a_heartbeat_carries_lag_and_rate(store: Store) -> None:
    node = SteppedNode(store)
    await node.renew()
    node.ownership.measure_lag = lambda _now: 1.5
    node.ownership.fired = 30
    await node.renew(NOW + seconds(3))
    (info,) = (await store.node_list(now=NOW))[1]
    assert (info.lag_seconds, info.fired_per_second) == (1.5, 10.0)


async def test_a_node_without_partitions_publishes_ownership_only_once(store: Store) -> None:
    node = SteppedNode(store)
    api = Ownership(store, node_heartbeat(UUID(int=5), roles=("api",)), DatabaseClock(lambda: node.monotonic))
    notices: list[Notice] = []
    store.subscribe(notices.append)
    for _ in range(5):
        await api.run_once(NOW)
    assert notices == [Notice.OWNERSHIP]


# Nodes that cannot keep up


def report_lag(node: SteppedNode, seconds_late: float) -> None:
    node.ownership.measure_lag = lambda _now: seconds_late


async def test_a_node_that_fires_late_gives_its_partitions_to_one_that_keeps_up(store: Store) -> None:
    slow, healthy = SteppedNode(store), SteppedNode(store)
    await renew_all(slow, healthy)
    report_lag(slow, 5.0)
    await pass_time(9, slow, healthy)
    assert 80 < len(slow.owned) < 176
    await pass_time(6, slow, healthy)
    await renew_all(slow, healthy)
    assert 30 < len(slow.owned) < 80
    assert_all_owned(slow, healthy)
    await pass_time(15, slow, healthy)
    await renew_all(slow, healthy)
    assert slow.owned == frozenset()
    assert healthy.owned == ALL_PARTITIONS
    assert [event.capacity for event in slow.events_of(CapacityChanged)] == [0.25, 0.0]
    nodes = {node.id: node.capacity for node in (await store.node_list(now=slow.now))[1]}
    assert nodes == {slow.id: 0.0, healthy.id: 1.0}


async def test_a_node_that_keeps_up_again_takes_its_partitions_back_after_a_cool_down(store: Store) -> None:
    slow, healthy = SteppedNode(store), SteppedNode(store)
    await renew_all(slow, healthy)
    before = slow.owned
    report_lag(slow, 5.0)
    await pass_time(30, slow, healthy)
    report_lag(slow, 0.0)
    await pass_time(54, slow, healthy)
    assert slow.owned == frozenset()
    await pass_time(78, slow, healthy)
    await renew_all(slow, healthy)
    assert slow.owned == before
    assert_all_owned(slow, healthy)
    assert [event.capacity for event in slow.events_of(CapacityChanged)] == [0.25, 0.0, 0.25, 1.0]


async def test_nothing_moves_while_all_nodes_are_slow(store: Store) -> None:
    nodes = [SteppedNode(store) for _ in range(3)]
    await renew_all(*nodes)
    before = [node.owned for node in nodes]
    for node in nodes:
        report_lag(node, 30.0)
    await pass_time(90, *nodes)
    # The first heartbeats still see the others without lag, but nobody is behind for longer than a lease by then.
    assert [node.owned for node in nodes] == before
    assert all(node.events_of(CapacityChanged) == [] for node in nodes)


async def test_a_single_node_keeps_everything_however_late_it_fires(store: Store) -> None:
    node = SteppedNode(store)
    await node.renew()
    report_lag(node, 30.0)
    await pass_time(60, node)
    assert node.owned == ALL_PARTITIONS


async def test_the_last_node_takes_everything_whatever_its_capacity(store: Store) -> None:
    slow, healthy = SteppedNode(store), SteppedNode(store)
    await renew_all(slow, healthy)
    report_lag(slow, 5.0)
    await pass_time(30, slow, healthy)
    assert slow.owned == frozenset()
    await healthy.ownership.stop()
    await renew_all(slow)
    assert slow.owned == ALL_PARTITIONS


async def test_a_lost_lease_counts_as_being_behind(store: Store) -> None:
    lossy, healthy = SteppedNode(store), SteppedNode(store)
    await renew_all(lossy, healthy)
    for _ in range(4):
        await pass_time(9, healthy)
        await lossy.renew(lossy.now + seconds(9.5))
        healthy.move_to(lossy.now)
        await renew_all(healthy, lossy)
    assert lossy.events_of(CapacityChanged)[0].capacity == 0.25
