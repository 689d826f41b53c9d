"""The promoter: makes delayed tasks ready when they are due.

Promotion is a conditional update that skips rows that another node has locked, so every node promotes and a node that dies
delays nothing. The promoter sleeps until the next delayed task is due, which the database returns with each call; a notice
wakes it for a task that is due earlier.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

from everbeat.clock import DatabaseClock
from everbeat.core.lock_retries import MAX_DELAY_SECONDS
from everbeat.services.loops import wait_for_event
from everbeat.services.publisher import ChangePublisher
from everbeat.store.base import Store
from everbeat.store.values import Notice


class Promoter:
    name = "promoter"
    deadline_seconds = 30.0

    def __init__(
        self,
        store: Store,
        publisher: ChangePublisher,
        clock: DatabaseClock,
        *,
        poll_interval_seconds: float = 2.0,
        batch_size: int = 1000,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._clock = clock
        self._poll_interval_seconds = poll_interval_seconds
        self._batch_size = batch_size
        self._next_at: datetime | None = None
        self._has_locked = False
        self._woken = asyncio.Event()
        store.subscribe(self._on_notice)

    def _on_notice(self, notice: Notice) -> None:
        if notice is Notice.DELAYED:
            self._woken.set()

    async def run_once(self, now: datetime | None = None) -> bool:
        sent = self._clock.monotonic()
        promoted = await self._store.task_promote(limit=self._batch_size, now=now)
        if now is None:
            self._clock.observe(sent, promoted.now)
        self._next_at = promoted.next_at
        self._publisher.publish(promoted.changes)
        is_full = promoted.count >= self._batch_size
        self._has_locked = promoted.has_more and not is_full
        return is_full

    async def wait(self) -> None:
        seconds = min(self._poll_interval_seconds, MAX_DELAY_SECONDS) if self._has_locked else self._poll_interval_seconds
        if self._next_at is not None:
            seconds = min(seconds, max(self._clock.seconds_until(self._next_at), 0.001))
        await wait_for_event(self._woken, seconds)

    async def close(self) -> None:
        """Nothing runs in the background."""
