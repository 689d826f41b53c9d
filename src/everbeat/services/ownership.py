"""Ownership: which partitions this node may fire, and until when it may rely on that.

Protocol. Every node writes its heartbeat to `nodes`. In the same statement it renews the partitions that it owns and wants,
releases those that rendezvous hashing over the live nodes assigns to other nodes, and takes free or expired ones with a higher
epoch. The partitions that it wants follow from the live nodes in the result of the last heartbeat. If these have changed, it
sends another heartbeat immediately.

Failures handled here: a dead owner (its lease expires and other nodes take over); a paused owner (it relies on its lease only
until monotonic time before the renewal was sent + lease - margin, and the database checks owner, epoch and lease in every
firing); a lost response (the renewal is idempotent and is sent again); a clock that was set back (a lease that ends later than
any lease can is treated as expired); two nodes with the same name (a node gets a random id at every start); a locked row (the
others are renewed, the node keeps the locked partition until its lease ends, and tries again soon); a node that fires late (it
lowers its capacity, see core/capacity.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from uuid import UUID

from everbeat.clock import DatabaseClock, Monotonic
from everbeat.core.capacity import CapacityState, NodeLoad, any_keeps_up, next_capacity
from everbeat.core.lock_retries import lock_delay
from everbeat.core.partitioning import partitions_of_node
from everbeat.services.event_stream import EventKind, EventStream
from everbeat.services.events import CapacityChanged, ClockSetBack, Emit, OwnershipChanged, OwnershipLost, RowsLocked, ignore
from everbeat.services.loops import wait_for_event
from everbeat.store.base import Store
from everbeat.store.values import NodeHeartbeat, Notice, PartitionRenewal

_CLOCK_BACK_TOLERANCE_SECONDS = 2.0
# Of the lease. Heartbeats come every third of it.
_MEASURED_FRACTION = 0.3


class Ownership:
    """Renews the leases every third of their duration. Provides the partitions that this node owns at the moment."""

    name = "ownership"

    def __init__(
        self,
        store: Store,
        heartbeat: NodeHeartbeat,
        clock: DatabaseClock,
        *,
        margin_seconds: float = 1.0,
        behind_after_seconds: float = 1.0,
        emit: Emit = ignore,
        event_stream: EventStream | None = None,
        monotonic: Monotonic = time.monotonic,
        deliveries: Callable[[], str] | None = None,
    ) -> None:
        self._deliveries = deliveries
        self._store = store
        self._heartbeat = heartbeat
        self._clock = clock
        self._margin_seconds = margin_seconds
        self._emit = emit
        self._event_stream = event_stream or EventStream()
        self._monotonic = monotonic
        self._live_nodes: frozenset[UUID] = frozenset()
        self._has_renewed = False
        self._is_capacity_new = False
        self._lag_seconds: float | None = None
        self._measured_at: float | None = None
        self._was_lost = False
        self._owned: Mapping[int, int] = {}
        self._trusted_until = 0.0
        # Partitions whose row was locked at the last renewal, each with the end of its lease.
        self._unrenewed: dict[int, float] = {}
        self._locked_tries: int | None = None
        self._locked_since: float | None = None
        self._renewed = 0.0
        self._woken = asyncio.Event()
        self._is_stopped = False
        self.deadline_seconds = heartbeat.lease_seconds
        self._behind_after_seconds = behind_after_seconds
        self._capacity = CapacityState()
        self._loads: Mapping[UUID, NodeLoad] = {}
        # The worst lag of firing since the last call. Set by the engine; a node that fires nothing has none.
        self.measure_lag: Callable[[datetime | None], float | None] = lambda _now: None
        self.fired = 0
        self._fired_before = 0
        store.subscribe(self._on_notice)

    @property
    def node_id(self) -> UUID:
        return self._heartbeat.id

    def current(self) -> Mapping[int, int]:
        """Return the partitions that this node may fire now, with their epochs. Empty once the lease may have expired."""
        now = self._monotonic()
        if self._unrenewed and now >= min(self._unrenewed.values()):
            expired = {partition for partition, until in self._unrenewed.items() if now >= until}
            self._unrenewed = {partition: until for partition, until in self._unrenewed.items() if partition not in expired}
            self._owned = {partition: epoch for partition, epoch in self._owned.items() if partition not in expired}
        return self._owned if now < self._trusted_until else {}

    @property
    def has_fresh_lease(self) -> bool:
        """Whether a heartbeat has succeeded recently. This is also the case for a healthy node that owns nothing."""
        return self._monotonic() < self._trusted_until

    def owns(self, partition: int) -> bool:
        return partition in self.current()

    async def run_once(self, now: datetime | None = None) -> bool:
        if self._is_stopped:
            return False
        is_scheduler = "scheduler" in self._heartbeat.roles
        sent = self._monotonic()
        is_lost = bool(self._owned) and sent >= self._trusted_until
        if is_lost:
            self._emit(OwnershipLost(len(self._owned)))
            self._owned, self._unrenewed = {}, {}
        elapsed = max(sent - self._renewed, 0.001)
        rate = (self.fired - self._fired_before) / elapsed
        self._measure(sent, is_lost, now)
        heartbeat = self._heartbeat._replace(
            lag_seconds=self._lag_seconds, fired_per_second=round(rate, 3), capacity=self._capacity.capacity
        )
        if self._deliveries is not None:
            heartbeat = heartbeat._replace(deliveries=self._deliveries())
        wanted = self._wanted() if self._live_nodes and is_scheduler else frozenset()
        renewal = await self._store.partition_renew(heartbeat, wanted, now=now)
        if self._is_stopped:
            return False
        self._clock.observe(sent, renewal.now)
        self._renewed, self._fired_before = sent, self.fired
        await self._apply(self._with_locked(renewal))
        self._trusted_until = sent + self._heartbeat.lease_seconds - self._margin_seconds
        live_nodes = renewal.live | ({self.node_id} if is_scheduler else frozenset())
        self._publish_node_changes(live_nodes)
        before, self._live_nodes = (self._live_nodes, self._capacities()), live_nodes
        self._loads = {node: load for node, load in renewal.loads.items() if node != self.node_id}
        return before != (live_nodes, self._capacities())

    def _wanted(self) -> frozenset[int]:
        return partitions_of_node(self.node_id, self._live_nodes, self._capacities())

    def _capacities(self) -> dict[UUID, float]:
        return {node: load.capacity for node, load in self._loads.items()} | {self.node_id: self._capacity.capacity}

    def _measure(self, monotonic: float, is_lost: bool, now: datetime | None) -> None:
        """Measure the lag since the last measurement, and change the capacity of this node if necessary.

        A link that flaps causes many failed heartbeats, between which the node is late or not. So the worst lag of at least a
        third of the lease counts.
        """
        self._was_lost = self._was_lost or is_lost
        if self._measured_at is None:
            self._measured_at = monotonic
        elapsed = monotonic - self._measured_at
        if elapsed < self._heartbeat.lease_seconds * _MEASURED_FRACTION:
            return
        self._measured_at = monotonic
        self._lag_seconds = self.measure_lag(now)
        is_lost, self._was_lost = self._was_lost, False
        before = self._capacity
        self._capacity = next_capacity(
            before,
            elapsed_seconds=min(elapsed, self._heartbeat.lease_seconds),
            is_behind=is_lost or (self._lag_seconds or 0.0) > self._behind_after_seconds,
            lease_seconds=self._heartbeat.lease_seconds,
            others_keep_up=any_keeps_up(self._loads.values(), self._behind_after_seconds),
        )
        if before.step == self._capacity.step:
            return
        capacity = self._capacity.capacity
        self._emit(CapacityChanged(capacity, capacity < before.capacity, self._lag_seconds))
        if self._event_stream.has_subscribers:
            data = {"change": "capacity", "node": self.node_id, "capacity": capacity}
            self._event_stream.publish(EventKind.CLUSTER, None, data)
        # The others see the new capacity with their next heartbeat, which they send after this notice.
        self._is_capacity_new = True

    async def stop(self) -> None:
        """Release all partitions immediately, so that other nodes do not wait for the leases to expire."""
        self._is_stopped = True
        self._owned, self._trusted_until = {}, 0.0
        await self._store.partition_release(self.node_id)
        self._store.publish(Notice.OWNERSHIP)

    async def wait(self) -> None:
        interval = self._heartbeat.lease_seconds / 3
        if self._locked_tries is not None:
            # Twice as long as for a single row: a renewal writes all partitions of the node.
            interval = min(interval, 2 * lock_delay(self._locked_tries))
        await wait_for_event(self._woken, self._renewed + interval - self._monotonic())

    async def close(self) -> None:
        """Do nothing: `stop` releases the partitions."""

    def _with_locked(self, renewal: PartitionRenewal) -> PartitionRenewal:
        """Add the partitions that were not renewed because they are locked, as long as their leases last."""
        if not renewal.locked:
            self._unrenewed, self._locked_tries, self._locked_since = {}, None, None
            return renewal
        self._locked_tries = 0 if self._locked_tries is None else self._locked_tries + 1
        self._locked_since = self._renewed if self._locked_since is None else self._locked_since
        self._emit(RowsLocked("partition_renew", len(renewal.locked), self._renewed - self._locked_since, self.node_id))
        kept = {partition: epoch for partition, epoch in self.current().items() if partition in renewal.locked}
        self._unrenewed = {partition: self._unrenewed.get(partition, self._trusted_until) for partition in kept}
        return renewal._replace(owned={**kept, **renewal.owned})

    async def _apply(self, renewal: PartitionRenewal) -> None:
        if renewal.clock_back_seconds > _CLOCK_BACK_TOLERANCE_SECONDS:
            self._emit(ClockSetBack(renewal.clock_back_seconds))
        before, self._owned = self._owned, renewal.owned
        gained, lost = len(renewal.owned.keys() - before.keys()), len(before.keys() - renewal.owned.keys())
        if gained or lost:
            self._emit(OwnershipChanged(len(renewal.owned), gained, lost, len(renewal.live | {self.node_id})))
            if self._event_stream.has_subscribers:
                data = {
                    "change": "ownership",
                    "node": self.node_id,
                    "owned": len(renewal.owned),
                    "gained": gained,
                    "lost": lost,
                }
                self._event_stream.publish(EventKind.CLUSTER, None, data)
        # The first heartbeat of a node is announced too, but only the first: a node that owns nothing would announce each one.
        if gained or lost or self._is_capacity_new or not self._has_renewed:
            self._store.publish(Notice.OWNERSHIP)
        self._has_renewed, self._is_capacity_new = True, False

    def _publish_node_changes(self, live_nodes: frozenset[UUID]) -> None:
        """Publish nodes that have joined or left, to the clients of this node only: every node detects such changes itself."""
        for change, nodes in (("joined", live_nodes - self._live_nodes), ("left", self._live_nodes - live_nodes)):
            for node in nodes if self._event_stream.has_subscribers else ():
                self._event_stream.publish(EventKind.CLUSTER, None, {"change": change, "node": node}, local_only=True)

    def _on_notice(self, notice: Notice) -> None:
        if notice is Notice.OWNERSHIP:
            self._woken.set()
