"""The overlap releaser: makes held tasks ready when the overlap policy of their schedule allows it.

Like the promoter it runs on every node: the release is a conditional update that skips rows that another node has locked.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from everbeat.clock import Monotonic
from everbeat.core.lock_retries import MAX_DELAY_SECONDS
from everbeat.services.loops import Periodic, wait_for_event
from everbeat.services.publisher import ChangeEffects, ChangePublisher
from everbeat.store.base import Store


class OverlapReleaser(Periodic):
    """Releases held tasks of schedules that are known to have capacity, and checks all schedules at intervals."""

    name = "overlap_releaser"
    deadline_seconds = 30.0

    def __init__(
        self,
        store: Store,
        publisher: ChangePublisher,
        *,
        poll_interval_seconds: float = 2.0,
        batch_size: int = 500,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        super().__init__(poll_interval_seconds)
        self._monotonic = monotonic
        self._checked_all_at = float("-inf")
        self._store = store
        self._publisher = publisher
        self._batch_size = batch_size
        self._expected: set[UUID] = set()
        self._locked: set[UUID] = set()
        publisher.subscribe(self._on_changes)

    def _on_changes(self, effects: ChangeEffects) -> None:
        self.note_schedules(effects.schedule_ids)

    def note_schedules(self, schedule_ids: Iterable[UUID]) -> None:
        """Note that a task of these schedules has ended, or that a new one is held."""
        known = len(self._expected)
        self._expected.update(schedule_ids)
        if len(self._expected) > known:
            self.wake()

    async def run_once(self, now: datetime | None = None) -> bool:
        expected = list(itertools.islice(self._expected, self._batch_size))
        self._expected.difference_update(expected)
        # All schedules are also checked at the interval if there are always expected ones: a held task whose event was lost
        # must not wait until the load ends.
        checks_all = not expected or self._monotonic() - self._checked_all_at >= self._interval
        try:
            if expected:
                await self._release(expected, now)
        except BaseException:
            self._expected.update(expected)
            raise
        if not checks_all:
            return bool(self._expected)
        has_released = await self._release(None, now)
        self._checked_all_at = self._monotonic()
        return bool(self._expected or has_released)

    async def _release(self, schedule_ids: list[UUID] | None, now: datetime | None) -> bool:
        released = await self._store.task_release_held(schedule_ids, limit=self._batch_size, now=now)
        self._publisher.publish(released.changes)
        if released.locked_ids:
            self._publisher.report_locked("task_release_held", sorted(released.locked_ids))
            self._locked.update(released.locked_ids)
        return bool(released.queues)

    async def wait(self) -> None:
        if not self._locked:
            await super().wait()
            return
        await wait_for_event(self._woken, min(self._interval, MAX_DELAY_SECONDS))
        self._expected.update(self._locked)
        self._locked.clear()
