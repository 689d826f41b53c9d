"""The base of loops that run on one node at a time, whether or not it owns partitions.

Every node tries to take the turn. It is taken by compare-and-set under a lease, so that it moves on when a node freezes, and so
that a fault of the ownership of partitions does not stop the loop that should report it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime
from uuid import UUID

from everbeat.services.loops import Periodic
from everbeat.store.base import Store
from everbeat.store.values import Turn

_MAX_WAIT_SECONDS = 5.0


class TurnLoop(Periodic, ABC):
    """A loop whose iterations are turns. An iteration that fails keeps its turn until the lease ends."""

    name: str
    deadline_seconds = 15.0
    lease_seconds = 20.0

    def __init__(self, store: Store, node_id: UUID, *, interval_seconds: float) -> None:
        super().__init__(min(interval_seconds, _MAX_WAIT_SECONDS))
        self._store = store
        self._node_id = node_id
        self._interval_seconds = interval_seconds

    async def run_once(self, now: datetime | None = None) -> bool:
        turn = await self._store.turn_take(
            self.name, self._node_id, lease_seconds=self.lease_seconds, interval_seconds=self._interval_seconds, now=now
        )
        if turn is not None:
            position = await self.work(turn, now)
            await self._store.turn_end(
                self.name, self._node_id, position=position, interval_seconds=self._interval_seconds, now=now
            )
        await self.after(turn, now)
        return False

    @abstractmethod
    async def work(self, turn: Turn, now: datetime | None) -> str:
        """Do the work of one turn. Return the position, which the next turn gets."""

    async def after(self, turn: Turn | None, now: datetime | None) -> None:
        """Do what every node does in each iteration, with or without a turn."""
