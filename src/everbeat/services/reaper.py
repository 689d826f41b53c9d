"""The reaper: ends attempts whose lease has expired. The task is then retried, dead or cancelled.

If the clock of the database was ahead and is set back, leases that were granted meanwhile would last until it gets there again.
They are shortened to their length from now, so that living workers can still renew them.

Every node reaps: the end of an attempt is a conditional update on its fence, so one of them wins.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from everbeat.clock import Monotonic
from everbeat.core.lock_retries import MAX_DELAY_SECONDS
from everbeat.core.retries import after_expiry
from everbeat.core.submissions import error_text
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, LeasedTask
from everbeat.services.attempts import attempt_end
from everbeat.services.loops import Periodic, wait_for_event
from everbeat.services.publisher import ChangePublisher
from everbeat.store.base import Store

_REASONS = {
    AttemptOutcome.LOST: "the lease expired: no heartbeat came from its worker",
    AttemptOutcome.TIMEOUT: "the attempt exceeded its timeout",
    AttemptOutcome.CANCELLED: "it was cancelled, and its worker did not confirm that it had stopped",
}


class Reaper(Periodic):
    name = "reaper"
    deadline_seconds = 30.0

    def __init__(
        self,
        store: Store,
        publisher: ChangePublisher,
        *,
        total_seconds: float = 7 * 86_400,
        interval_seconds: float = 1.0,
        shorten_seconds: float = 30.0,
        batch_size: int = 500,
        random_fraction: Callable[[], float] = random.random,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        super().__init__(interval_seconds)
        self._store = store
        self._publisher = publisher
        self._total_seconds = total_seconds
        self._shorten_seconds = shorten_seconds
        self._shortens_at = monotonic()
        self._batch_size = batch_size
        self._random_fraction = random_fraction
        self._monotonic = monotonic
        # The expired tasks that were locked at the last iteration, and since when.
        self._locked_since: dict[UUID, float] = {}

    async def run_once(self, now: datetime | None = None) -> bool:
        await self._shorten(now)
        moment, expired = await self._store.task_expired(limit=self._batch_size, now=now)
        if not expired:
            self._locked_since.clear()
            return False
        endings = [self._ending(task, moment) for task in expired]
        ended = await self._store.task_end(endings, is_expired=True, now=now)
        self._publisher.publish(ended.changes)
        self._publisher.report_expired(len(ended.ids))
        self._note_locked(sorted(id_ for id_, _ in ended.locked))
        return len(expired) >= self._batch_size and len(ended.locked) < len(expired)

    async def _shorten(self, now: datetime | None) -> None:
        """Look for leases that were granted before the clock of the database was set back, from time to time."""
        monotonic = self._monotonic()
        if now is None and monotonic < self._shortens_at:
            return
        count = await self._store.task_shorten_leases(limit=self._batch_size, now=now)
        self._shortens_at = monotonic if count >= self._batch_size else monotonic + self._shorten_seconds

    def _note_locked(self, ids: list[UUID]) -> None:
        monotonic = self._monotonic()
        self._locked_since = {id_: self._locked_since.get(id_, monotonic) for id_ in ids}
        if ids:
            ids.sort(key=self._locked_since.__getitem__)
            self._publisher.report_locked("task_end", ids, monotonic - self._locked_since[ids[0]])

    async def wait(self) -> None:
        # Locked tasks are tried again sooner, so that they are ended soon after their release.
        await wait_for_event(self._woken, min(self._interval, MAX_DELAY_SECONDS) if self._locked_since else self._interval)

    def _ending(self, task: LeasedTask, moment: datetime) -> AttemptEnd:
        decision = after_expiry(task, now=moment, random_fraction=self._random_fraction(), total_seconds=self._total_seconds)
        return attempt_end(task, decision, error_text(_REASONS[decision.outcome], kind=decision.outcome.value))
