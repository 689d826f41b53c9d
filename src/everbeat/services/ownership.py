"""Ownership: which partitions this node may fire, and until when it may believe so.

Protocol. Every node heartbeats into `nodes` and, in the same statement, renews the partitions it owns and wants, releases
those that rendezvous hashing over the live nodes gives to somebody else, and takes free or expired ones with a higher
epoch. What it wants follows from the live nodes the last heartbeat saw; when they changed, it beats again at once.

Defends against: a dead owner (its lease expires and the others take over); a paused one (it trusts its lease only until
monotonic time before the renewal was sent + lease - margin, and the database checks owner, epoch and lease in every
firing); a lost reply (the renewal is idempotent: it is simply sent again); a clock set back (a lease that ends later than
any lease can counts as expired); two nodes of one name (the identity is random per boot).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from everbeat.clock import DatabaseClock, Monotonic
from everbeat.core.partitioning import partitions_of_node
from everbeat.services.event_stream import EventKind, EventStream
from everbeat.services.events import ClockSetBack, Emit, OwnershipChanged, OwnershipLost, ignore
from everbeat.services.loops import wait_for_event
from everbeat.store.base import Store
from everbeat.store.values import NodeHeartbeat, Notice, PartitionRenewal

_CLOCK_BACK_TOLERANCE_SECONDS = 2.0


class Ownership:
    """Renews every third of the lease and says which partitions are this node's right now."""

    name = "ownership"

    def __init__(
        self,
        store: Store,
        beat: NodeHeartbeat,
        clock: DatabaseClock,
        *,
        margin_seconds: float = 1.0,
        emit: Emit = ignore,
        event_stream: EventStream | None = None,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._store = store
        self._beat = beat
        self._clock = clock
        self._margin = margin_seconds
        self._emit = emit
        self._event_stream = event_stream or EventStream()
        self._monotonic = monotonic
        self._live: frozenset[UUID] = frozenset()
        self._has_beaten = False
        self._owned: Mapping[int, int] = {}
        self._trusted_until = 0.0
        self._renewed = 0.0
        self._woken = asyncio.Event()
        self._is_stopped = False
        self.deadline_seconds = beat.lease_seconds
        self.lag_seconds: float | None = None
        self.fired = 0
        self._fired_before = 0
        store.subscribe(self._on_notice)

    @property
    def node_id(self) -> UUID:
        return self._beat.id

    def current(self) -> Mapping[int, int]:
        """The partitions this node may fire now, with their epochs: none once the lease may have run out."""
        return self._owned if self._monotonic() < self._trusted_until else {}

    @property
    def has_fresh_lease(self) -> bool:
        """Whether the database has answered a heartbeat lately; a node with nothing to own is healthy too."""
        return self._monotonic() < self._trusted_until

    def owns(self, partition: int) -> bool:
        return partition in self.current()

    async def run_once(self, now: datetime | None = None) -> bool:
        if self._is_stopped:
            return False
        is_scheduler = "scheduler" in self._beat.roles
        wanted = partitions_of_node(self.node_id, self._live) if self._live and is_scheduler else frozenset()
        sent = self._monotonic()
        if self._owned and sent >= self._trusted_until:
            self._emit(OwnershipLost(len(self._owned)))
            self._owned = {}
        elapsed = max(sent - self._renewed, 0.001)
        rate = (self.fired - self._fired_before) / elapsed
        beat = self._beat._replace(lag_seconds=self.lag_seconds, fired_per_second=round(rate, 3))
        renewal = await self._store.partition_renew(beat, wanted, now=now)
        if self._is_stopped:
            return False
        self._clock.observe(sent, renewal.now)
        self._renewed, self._fired_before = sent, self.fired
        self._trusted_until = sent + self._beat.lease_seconds - self._margin
        await self._take_in(renewal)
        live = renewal.live | ({self.node_id} if is_scheduler else frozenset())
        self._publish_node_changes(live)
        has_changed, self._live = live != self._live, live
        return has_changed

    async def stop(self) -> None:
        """Release everything at once, so that the others need not wait for the lease to expire."""
        self._is_stopped = True
        self._owned, self._trusted_until = {}, 0.0
        await self._store.partition_release(self.node_id)
        self._store.publish(Notice.OWNERSHIP)

    async def wait(self) -> None:
        await wait_for_event(self._woken, self._renewed + self._beat.lease_seconds / 3 - self._monotonic())

    async def close(self) -> None:
        """Nothing runs on the side; `stop` releases what is owned."""

    async def _take_in(self, renewal: PartitionRenewal) -> None:
        if renewal.clock_back_seconds > _CLOCK_BACK_TOLERANCE_SECONDS:
            self._emit(ClockSetBack(renewal.clock_back_seconds))
        before, self._owned = self._owned, renewal.owned
        gained, lost = len(renewal.owned.keys() - before.keys()), len(before.keys() - renewal.owned.keys())
        if gained or lost:
            self._emit(OwnershipChanged(len(renewal.owned), gained, lost, len(renewal.live | {self.node_id})))
            if self._event_stream.has_audience:
                data = {
                    "change": "ownership",
                    "node": self.node_id,
                    "owned": len(renewal.owned),
                    "gained": gained,
                    "lost": lost,
                }
                self._event_stream.publish(EventKind.CLUSTER, None, data)
        # The first heartbeat is news to the others; a node that is never to own anything would repeat it for ever.
        if gained or lost or not self._has_beaten:
            self._store.publish(Notice.OWNERSHIP)
        self._has_beaten = True

    def _publish_node_changes(self, live: frozenset[UUID]) -> None:
        """Every node sees this by itself, so it need not travel."""
        for change, nodes in (("joined", live - self._live), ("left", self._live - live)):
            for node in nodes if self._event_stream.has_audience else ():
                self._event_stream.publish(EventKind.CLUSTER, None, {"change": change, "node": node}, here_only=True)

    def _on_notice(self, notice: Notice) -> None:
        if notice is Notice.OWNERSHIP:
            self._woken.set()
