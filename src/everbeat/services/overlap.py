"""Turns: delayed tasks whose time has come, held tasks whose turn it is, and tasks whose lease has run out.

Each is a conditional update that passes over what another node is at, so every node may do it and none is the only one: a
node that dies costs no time. The promoter sleeps until the next delayed task is due, which the database says with each look;
what becomes due sooner than that wakes it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Protocol
from uuid import UUID

from everbeat.clock import DatabaseClock, Monotonic
from everbeat.core.retries import RetryDecision, after_expiry
from everbeat.core.submissions import error_text
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, LeasedTask, TaskState
from everbeat.services.event_stream import EventStream
from everbeat.services.events import AttemptEnded, Emit, TasksPromoted, ignore
from everbeat.services.loops import Periodic, wait_for_event
from everbeat.store.base import Store
from everbeat.store.values import EndResult, Notice

_EXPLAINED = {
    AttemptOutcome.LOST: "the lease ran out: its worker was not heard of again",
    AttemptOutcome.TIMEOUT: "the attempt took longer than it may",
    AttemptOutcome.CANCELLED: "it was asked to stop, and its worker did not say that it had",
}


class WakeUps(Protocol):
    def wake(self, queues: Iterable[str]) -> None: ...
    def wake_tenants(self, tenant_ids: Collection[UUID]) -> None: ...


class Promoter:
    name = "promoter"
    deadline_seconds = 30.0

    def __init__(
        self,
        store: Store,
        wake_ups: WakeUps,
        clock: DatabaseClock,
        *,
        emit: Emit = ignore,
        poll_interval_seconds: float = 2.0,
        batch_size: int = 1000,
    ) -> None:
        self._store = store
        self._wake_ups = wake_ups
        self._clock = clock
        self._emit = emit
        self._look_seconds = poll_interval_seconds
        self._batch_size = batch_size
        self._next_at: datetime | None = None
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
        if promoted.count:
            self._emit(TasksPromoted(promoted.count))
            self._wake_ups.wake(promoted.queues)
        return promoted.count >= self._batch_size

    async def wait(self) -> None:
        seconds = self._look_seconds
        if self._next_at is not None:
            seconds = min(seconds, max(self._clock.seconds_until(self._next_at), 0.001))
        await wait_for_event(self._woken, seconds)

    async def close(self) -> None:
        """Nothing runs on the side."""


class OverlapReleaser(Periodic):
    """Releases held tasks: of schedules that are known to have room now, and of all of them once in a while."""

    name = "overlap_releaser"
    deadline_seconds = 30.0

    def __init__(
        self,
        store: Store,
        wake_ups: WakeUps,
        *,
        emit: Emit = ignore,
        event_stream: EventStream | None = None,
        poll_interval_seconds: float = 2.0,
        batch_size: int = 500,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        super().__init__(poll_interval_seconds)
        self._monotonic = monotonic
        self._looked_at = float("-inf")
        self._store = store
        self._wake_ups = wake_ups
        self._emit = emit
        self._event_stream = event_stream or EventStream()
        self._batch_size = batch_size
        self._expected: set[UUID] = set()

    def note_schedules(self, schedule_ids: Iterable[UUID]) -> None:
        """A task of these schedules has ended, or a new one waits behind it."""
        known = len(self._expected)
        self._expected.update(schedule_ids)
        if len(self._expected) > known:
            self.wake()

    def after(self, endings: Iterable[AttemptEnd], ended: EndResult, queues: Mapping[UUID, str]) -> None:
        """Tell of attempts that have ended, and wake whoever waits for what became of their tasks."""
        counted = [one for one in endings if (one.id, one.fence) in ended.ids]
        for one in counted:
            self._emit(AttemptEnded(one.outcome.value, one.state.value))
            if self._event_stream.has_audience:
                self._event_stream.publish_task(
                    _change_of(one), one.tenant_id, one.id, state=one.state.value, queue=queues[one.id]
                )
        self._wake_ups.wake_tenants({one.tenant_id for one in counted})
        self._wake_ups.wake({queues[one.id] for one in counted if one.state is TaskState.READY})
        if any(one.state is TaskState.SCHEDULED for one in counted):
            self._store.publish(Notice.DELAYED)
        self.note_schedules(ended.schedule_ids)

    async def run_once(self, now: datetime | None = None) -> bool:
        expected = list(itertools.islice(self._expected, self._batch_size))
        self._expected.difference_update(expected)
        # Due also while there is always something expected: what nobody told of must not wait for a quiet moment.
        is_look = not expected or self._monotonic() - self._looked_at >= self._interval
        try:
            if expected:
                self._wake_ups.wake(await self._store.task_release_held(expected, limit=self._batch_size, now=now))
        except BaseException:
            self._expected.update(expected)
            raise
        if not is_look:
            return bool(self._expected)
        found = await self._store.task_release_held(None, limit=self._batch_size, now=now)
        self._looked_at = self._monotonic()
        self._wake_ups.wake(found)
        return bool(self._expected or found)


def _change_of(ending: AttemptEnd) -> str:
    if ending.outcome is AttemptOutcome.RELEASED and ending.state is TaskState.READY:
        return "released"
    return "retried" if ending.state in (TaskState.READY, TaskState.SCHEDULED) else ending.state.value


class Reaper(Periodic):
    """Ends attempts whose lease has run out: again, or dead, or cancelled."""

    name = "reaper"
    deadline_seconds = 30.0

    def __init__(
        self,
        store: Store,
        overlap: OverlapReleaser,
        *,
        total_seconds: float = 7 * 86_400,
        interval_seconds: float = 1.0,
        batch_size: int = 500,
        random_fraction: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(interval_seconds)
        self._store = store
        self._overlap = overlap
        self._total_seconds = total_seconds
        self._batch_size = batch_size
        self._random_fraction = random_fraction

    async def run_once(self, now: datetime | None = None) -> bool:
        moment, expired = await self._store.task_expired(limit=self._batch_size, now=now)
        if not expired:
            return False
        endings = [self._ending(task, moment) for task in expired]
        ended = await self._store.task_end(endings, is_expired=True, now=now)
        self._overlap.after(endings, ended, {task.id: task.queue for task in expired})
        return len(expired) >= self._batch_size

    def _ending(self, task: LeasedTask, moment: datetime) -> AttemptEnd:
        decision = after_expiry(task, now=moment, random_fraction=self._random_fraction(), total_seconds=self._total_seconds)
        return ending_of(task, decision, error_text(_EXPLAINED[decision.outcome], kind=decision.outcome.value))


def ending_of(task: LeasedTask, decision: RetryDecision, error: str | None) -> AttemptEnd:
    return AttemptEnd(
        task.id, task.tenant_id, task.fence, decision.outcome, decision.state, decision.run_at, error, decision.reason
    )
