"""Long polls: idle workers wait here, and hear of work within milliseconds of its becoming ready.

Polls that ask for the same (tenant, queues, types) stand in one line. When a queue of theirs is rung, one claim serves the
line from its front, however many wait; its dealer says whose tasks that claim takes (services/shares.py). After a look that
found nothing the line is known to be empty: whoever comes then waits without asking the database, so thousands of idle polls
cost one look a second for each line, and a look that finds nothing touches none of them.

A task that is submitted on the same node while its line is known to be empty takes no such detour: it is written as running,
under the lease of the worker that waits at the front (Seats). One commit lies between the submit and the worker.

Who rings: whatever in this process makes a task ready, and, through a notice that is sent at most ten times a second, other
nodes. Defends against: a notice that is lost (the look a second), a worker that went away while it waited (what was claimed
for it is given back at once), a claim that fails (those who wait are told, and ask again).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from datetime import datetime
from uuid import UUID

import msgspec

from everbeat.core.errors import EverbeatError
from everbeat.core.fairness import Flow
from everbeat.core.protocol import LeaseClaimRequest
from everbeat.core.submissions import lease_end
from everbeat.core.tasks import ClaimedTask, NewTask, with_payload_ref
from everbeat.services.fair_dispatch import ClaimScope, EqualShares, FairDispatcher, FairDispatchers, FairnessDirectory
from everbeat.services.publisher import ChangeEffects, ChangePublisher
from everbeat.store.base import Store
from everbeat.store.values import ClaimRequest, Notice

# Tasks that one claim asks for: few at first, as an idle line mostly gets one, and more while every claim is filled.
_MIN_CLAIM_SIZE, _MAX_CLAIM_SIZE, _GROWTH = 64, 2000, 8

ReleaseTasks = Callable[[UUID | None, list[ClaimedTask]], Awaitable[None]]


class _Poll:
    __slots__ = ("can_wait", "claimer", "done", "timer")

    def __init__(self, claimer: ClaimRequest, done: asyncio.Future[list[ClaimedTask]], can_wait: bool) -> None:
        self.claimer = claimer
        self.done = done
        self.can_wait = can_wait
        self.timer: asyncio.TimerHandle | None = None


class WaitQueue:
    """Those who wait for the same work, in the order they came."""

    def __init__(self, key: ClaimScope, long_polls: LongPolls, dispatcher: FairDispatcher) -> None:
        self.key = key
        self.dispatcher = dispatcher
        self.waiting: deque[_Poll] = deque()
        self.is_signalled = True
        self.reserved = 0
        self._hasty: list[_Poll] = []
        self._claim_size = _MIN_CLAIM_SIZE
        self._long_polls = long_polls
        self._serving: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Nobody waits, and nobody who was taken out of the line may come back to it."""
        return not self.waiting and not self.reserved and self._serving is None

    def join(self, poll: _Poll) -> None:
        self.waiting.append(poll)
        if not poll.can_wait:
            self._hasty.append(poll)
        if self.is_signalled or not poll.can_wait:
            self.wake()

    def wake(self) -> None:
        self.is_signalled = True
        if self._serving is None and self.waiting:
            self._serving = asyncio.create_task(self._serve())

    def tidy(self) -> None:
        while self.waiting and self.waiting[0].done.done():
            self.waiting.popleft()

    def sweep(self) -> None:
        """Those who gave up behind others that still wait are not kept."""
        if any(poll.done.done() for poll in self.waiting):
            self.waiting = deque(poll for poll in self.waiting if not poll.done.done())

    def serves(self, task: NewTask) -> bool:
        return self.key.serves(task.tenant_id, task.queue, task.type)

    def take_first(self) -> _Poll | None:
        """Who is to be served next, taken out of the line; nobody if there may be other work for them."""
        if self.is_signalled or self._serving is not None:
            return None
        self.tidy()
        if not self.waiting or not self.waiting[0].can_wait:
            return None
        self.reserved += 1
        return self.waiting.popleft()

    def put_back(self, poll: _Poll) -> None:
        """To the front, after there was nothing for it."""
        if self._long_polls.is_closed:
            _give_up(poll.done)
        else:
            self.waiting.appendleft(poll)

    async def _serve(self) -> None:
        try:
            while self.is_signalled and self.waiting:
                self.is_signalled = False
                await self._serve_once()
        finally:
            self._serving = None
            if self.is_signalled and self.waiting:
                self.wake()

    async def _serve_once(self) -> None:
        hasty, self._hasty = self._hasty, []
        try:
            has_work = await self.dispatcher.find()
        except Exception as error:
            self._refuse(self._front(), error)
            return
        may_be_more = await self._claim(self._front()) if has_work else False
        if may_be_more:
            self.is_signalled = True
            self._hasty = [poll for poll in hasty if not poll.done.done()] + self._hasty
        else:
            for poll in hasty:  # there was nothing, or not enough for all who stand before them
                _give_up(poll.done)

    def _front(self) -> list[_Poll]:
        front: list[_Poll] = []
        asked = 0
        while self.waiting and asked < self._claim_size:
            poll = self.waiting.popleft()
            if not poll.done.done():
                front.append(poll)
                asked += poll.claimer.limit
        return front

    def _refuse(self, front: list[_Poll], error: Exception) -> None:
        self.is_signalled = True
        for poll in front:
            if not poll.done.done():
                poll.done.set_exception(error)

    async def _claim(self, front: list[_Poll]) -> bool:
        """Serve those in front; whether there may be more for them or for those behind them."""
        if not front:
            return True  # whoever comes next is to be served
        try:
            dispatched, may_be_more = await self.dispatcher.dispatch([poll.claimer for poll in front])
        except Exception as error:
            self._refuse(front, error)
            return True
        is_filled = all(len(given_tasks) == poll.claimer.limit for poll, given_tasks in zip(front, dispatched, strict=True))
        self._claim_size = min(_MAX_CLAIM_SIZE, self._claim_size * _GROWTH) if is_filled else _MIN_CLAIM_SIZE
        left: list[_Poll] = []
        orphans: list[ClaimedTask] = []
        for poll, given_tasks in zip(front, dispatched, strict=True):
            if poll.done.done():
                orphans += given_tasks
            elif given_tasks:
                poll.done.set_result(given_tasks)
            else:
                left.append(poll)
        for poll in reversed(left):
            self.put_back(poll)
        if orphans:
            await self._long_polls.return_tasks(self.key.tenant_id, orphans)
        return may_be_more


class DirectHandoff:
    """Waiting polls set aside for tasks that are about to be written: each task goes to its worker in that very write."""

    def __init__(self, long_polls: LongPolls) -> None:
        self._long_polls = long_polls
        self._taken: dict[_Poll, tuple[WaitQueue, list[NewTask]]] = {}

    def reserve(self, task: NewTask) -> NewTask:
        """The task with the lease of a worker that waits for it, or as it is if nobody does, or its tenant may be full."""
        poll = None if self._long_polls.is_limited(task.tenant_id) else self._poll_for(task)
        if poll is None:
            return task
        reserved = task._replace(
            lease_owner=poll.claimer.worker,
            lease_seconds=poll.claimer.lease_seconds,
            deadline_seconds=min(task.timeout_seconds, self._long_polls.total_seconds),
        )
        self._taken[poll][1].append(reserved)
        return reserved

    def _poll_for(self, task: NewTask) -> _Poll | None:
        for poll, (wait_queue, tasks) in self._taken.items():
            if len(tasks) < poll.claimer.limit and wait_queue.serves(task):
                return poll
        for wait_queue in self._long_polls.wait_queues():
            if wait_queue.serves(task) and (first := wait_queue.take_first()) is not None:
                self._taken[first] = (wait_queue, [])
                return first
        return None

    async def deliver(self, written: Collection[UUID], now: datetime | None) -> None:
        """The write is done, or has failed: hand out what it wrote. Whoever got nothing waits on, at the front."""
        orphans: list[tuple[UUID | None, list[ClaimedTask]]] = []
        for poll, (wait_queue, tasks) in reversed(self._taken.items()):  # who came first is put back last, and so in front
            wait_queue.reserved -= 1
            given_tasks = [_handed(task, now) for task in tasks if task.id in written and now is not None]
            if poll.done.done():
                orphans += [(wait_queue.key.tenant_id, given_tasks)] if given_tasks else []
            elif given_tasks:
                poll.done.set_result(given_tasks)
            else:
                wait_queue.put_back(poll)
                wait_queue.wake()
        for lease_tenant_id, given_tasks in orphans:
            await self._long_polls.return_tasks(lease_tenant_id, given_tasks)


def _handed(task: NewTask, now: datetime) -> ClaimedTask:
    """A task as its claim would show it."""
    claimed = ClaimedTask(
        id=task.id,
        type=task.type,
        queue=task.queue,
        payload=msgspec.Raw(task.payload.encode()),
        attempt=1,
        max_attempts=task.max_attempts,
        fence=1,
        lease_until=lease_end(task, now),
        lease_seconds=task.lease_seconds,
        scheduled_for=task.scheduled_for,
        schedule=task.schedule_name,
        schedule_id=task.schedule_id,
        origin=task.origin,
        timeout_seconds=task.timeout_seconds,
        traceparent=task.traceparent,
        tenant_id=task.tenant_id,
    )
    return with_payload_ref(claimed, task.payload_ref)


class LongPolls:
    """All lines of this node."""

    name = "long_polls"
    deadline_seconds = 10.0

    def __init__(
        self,
        store: Store,
        publisher: ChangePublisher,
        release_tasks: ReleaseTasks,
        *,
        poll_interval_seconds: float = 1.0,
        total_seconds: float = 7 * 86_400,
        directory: FairnessDirectory | None = None,
    ) -> None:
        self._store = store
        self._dispatchers = FairDispatchers(store, publisher, directory or EqualShares(), total_seconds)
        self._release_tasks = release_tasks
        self.is_closed = False
        self._returning: set[asyncio.Task[None]] = set()
        self._poll_interval_seconds = poll_interval_seconds
        self.total_seconds = total_seconds
        self._wait_queues: dict[ClaimScope, WaitQueue] = {}
        self._is_own = False
        store.subscribe(self._on_notice)
        publisher.subscribe(self._on_changes)

    async def ask(
        self, lease_tenant_id: UUID | None, claim: LeaseClaimRequest, *, now: datetime | None = None
    ) -> list[ClaimedTask]:
        """Tasks for a worker: at once if there are any, else as soon as there are, within its patience."""
        claimer = ClaimRequest(claim.worker, claim.max, claim.lease_seconds)
        key = ClaimScope(
            lease_tenant_id, tuple(sorted(set(claim.queues))), None if claim.types is None else tuple(sorted(claim.types))
        )
        if now is not None:  # stepped by hand
            return (await self._dispatchers.of(key).dispatch([claimer], now=now)).tasks[0]
        wait_queue = self._wait_queues.get(key)
        if wait_queue is None:
            wait_queue = self._wait_queues[key] = WaitQueue(key, self, self._dispatchers.of(key))
        loop = asyncio.get_running_loop()
        poll = _Poll(claimer, loop.create_future(), claim.wait_seconds > 0 and not self.is_closed)
        if poll.can_wait:
            poll.timer = loop.call_later(claim.wait_seconds, _give_up, poll.done)
        wait_queue.join(poll)
        try:
            return await poll.done
        except asyncio.CancelledError:
            if poll.done.done() and not poll.done.cancelled() and poll.done.exception() is None and poll.done.result():
                # On its own: whoever cancels may do so again, also while this is under way.
                returning = asyncio.create_task(self.return_tasks(lease_tenant_id, poll.done.result()))
                self._returning.add(returning)
                returning.add_done_callback(self._returning.discard)
                await asyncio.shield(returning)
            raise
        finally:
            if poll.timer is not None:
                poll.timer.cancel()
            wait_queue.tidy()

    async def return_tasks(self, lease_tenant_id: UUID | None, tasks: list[ClaimedTask]) -> None:
        """What was claimed for somebody who is gone; if that fails, its lease runs out."""
        with contextlib.suppress(EverbeatError):
            await self._release_tasks(lease_tenant_id, tasks)

    def wait_queues(self) -> Iterable[WaitQueue]:
        return self._wait_queues.values()

    def is_limited(self, tenant_id: UUID) -> bool:
        """Whether the tenant may have only so many tasks running."""
        return self._dispatchers.directory.max_running_of(tenant_id) is not None

    # Wake-ups

    def _on_changes(self, effects: ChangeEffects) -> None:
        self.wake_tenants(effects.freed_tenants)
        self.wake(effects.ready_queues, effects.ready_flows)

    def wake(self, queues: Iterable[str] = (), flows: Collection[Flow] = ()) -> None:
        """Tasks have become ready by what this node did: of these queues, or, better, of these flows. Tell the lines, and
        other nodes."""
        rung = frozenset(queues)
        if not rung and not flows:
            return
        for wait_queue in self._wait_queues.values():
            if not rung.isdisjoint(wait_queue.key.queues):
                wait_queue.dispatcher.mark_stale()
                wait_queue.wake()
            if flows and wait_queue.dispatcher.note(flows):
                wait_queue.wake()
        self._announce()

    def wake_tenants(self, tenant_ids: Collection[UUID]) -> None:
        """Tasks of these tenants have ended: where one of them had as many running as it may, there is room for another."""
        wake_tenants = self._dispatchers.limited(tenant_ids)
        if not wake_tenants:
            return
        for wait_queue in self._wait_queues.values():
            if wait_queue.dispatcher.free(wake_tenants):
                wait_queue.wake()
        self._announce()

    def _announce(self) -> None:
        self._is_own = True
        try:
            self._store.publish(Notice.TASKS)
        finally:
            self._is_own = False

    def _on_notice(self, notice: Notice) -> None:
        if notice is Notice.TASKS and not self._is_own:
            for wait_queue in self._wait_queues.values():
                wait_queue.dispatcher.mark_stale()
                wait_queue.wake()

    # The look now and then, as a loop

    async def run_once(self, now: datetime | None = None) -> bool:
        self.is_closed = False
        for key, wait_queue in list(self._wait_queues.items()):
            wait_queue.sweep()
            wait_queue.dispatcher.mark_stale()
            if wait_queue.waiting:
                wait_queue.wake()
            elif wait_queue.is_empty:
                wait_queue.dispatcher.rest()
                del self._wait_queues[key]
        return False

    async def wait(self) -> None:
        await asyncio.sleep(self._poll_interval_seconds)

    async def close(self) -> None:
        """Let everybody who waits go home with nothing; whoever comes now does not wait."""
        self.is_closed = True
        for wait_queue in self._wait_queues.values():
            for poll in wait_queue.waiting:
                _give_up(poll.done)
        await asyncio.gather(*self._returning, return_exceptions=True)


def _give_up(done: asyncio.Future[list[ClaimedTask]]) -> None:
    if not done.done():
        done.set_result([])
