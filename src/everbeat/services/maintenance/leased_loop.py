"""The base of loops that run on one node at a time, whether or not it owns partitions.

Every node tries to take the lease of the loop, by compare-and-set. It expires, so that another node takes over when a node
freezes. It does not depend on partitions, so that a fault of their ownership does not stop the loop that should report it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime
from uuid import UUID

from everbeat.services.loops import Periodic
from everbeat.store.base import Store
from everbeat.store.values import LoopLease

_MAX_WAIT_SECONDS = 5.0


class LeasedLoop(Periodic, ABC):
    """A loop that runs under a lease. An iteration that fails keeps the lease until it expires."""

    name: str
    deadline_seconds = 15.0
    lease_seconds = 20.0

    def __init__(self, store: Store, node_id: UUID, *, interval_seconds: float) -> None:
        super().__init__(min(interval_seconds, _MAX_WAIT_SECONDS))
        self._store = store
        self._node_id = node_id
        self._interval_seconds = interval_seconds

    async def run_once(self, now: datetime | None = None) -> bool:
        lease = await self._store.loop_lease_take(
            self.name, self._node_id, lease_seconds=self.lease_seconds, interval_seconds=self._interval_seconds, now=now
        )
        if lease is not None:
            position = await self.work(lease, now)
            await self._store.loop_lease_end(
                self.name, self._node_id, position=position, interval_seconds=self._interval_seconds, now=now
            )
        await self.after(lease, now)
        return False

    @abstractmethod
    async def work(self, lease: LoopLease, now: datetime | None) -> str:
        """Do the work of one run. Return the position, which the next run gets."""

    async def after(self, lease: LoopLease | None, now: datetime | None) -> None:
        """Do what every node does in each iteration, with or without the lease."""
