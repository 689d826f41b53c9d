"""The base of loops that run on one node of the cluster: the owner of partition 0."""

from __future__ import annotations

from everbeat.services.loops import Periodic, wait_for_event
from everbeat.services.ownership import Ownership

_SINGLETON_PARTITION = 0


class SingletonLoop(Periodic):
    """A loop that only works on the owner of partition 0. Other nodes check regularly whether they have become the owner."""

    def __init__(self, ownership: Ownership, interval_seconds: float) -> None:
        super().__init__(interval_seconds)
        self._ownership = ownership

    def is_owner(self) -> bool:
        return self._ownership.owns(_SINGLETON_PARTITION)

    async def wait(self) -> None:
        await wait_for_event(self._woken, self._interval if self.is_owner() else min(self._interval, 2.0))
