"""Long polls: claims that wait, and return tasks within milliseconds after they become ready.

Polls for the same tenant, queues and types share a wait queue. When tasks become ready, one claim serves the polls at the
front of the wait queue, however many wait; its dispatcher decides which tasks the claim takes (services/fair_dispatch.py).
After a scan that found nothing, the wait queue is known to have no work: further polls wait without a query. A task that is
submitted on the same node in this situation is handed over directly (services/direct_handoff.py).

Wait queues are woken by every change in this process that makes tasks ready. Once per poll interval, and after notices of other
nodes, which are sent at most ten times a second, one query finds all queues that have ready tasks, and only the wait queues for
these are woken. So the cost of idle polls depends neither on their number nor on the number of wait queues.

Failures handled here: a notice is lost (a check follows within the poll interval); a worker disconnects while it waits (its
tasks are released immediately); a claim fails (the polls get the error, and the workers retry).
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from datetime import datetime
from uuid import UUID

from everbeat.core.errors import EverbeatError
from everbeat.core.fairness import Flow
from everbeat.core.protocol import LeaseClaimRequest
from everbeat.core.tasks import ClaimedTask, NewTask
from everbeat.services.fair_dispatch import ClaimScope, EqualShares, FairDispatcher, FairDispatchers, FairnessDirectory
from everbeat.services.publisher import ChangeEffects, ChangePublisher
from everbeat.store.base import Store
from everbeat.store.values import ClaimRequest, Notice, ReadyQueue

# The number of tasks in one claim: small at first, because an idle wait queue usually gets one task, and larger while every
# claim is filled.
_MIN_CLAIM_SIZE, _MAX_CLAIM_SIZE, _GROWTH = 64, 2000, 8
# The number of ready queues that one query and one check find at most. The next check continues after them.
_PAGE_SIZE, _MAX_PAGES = 1000, 10
# The number of wait queues that one check wakes although they got nothing after the last check that woke them.
_MAX_IN_VAIN = 20
# How long closing waits for queries in progress. The leases of tasks that they claim afterwards expire.
_CLOSE_SECONDS = 3.0

ReleaseTasks = Callable[[UUID | None, list[ClaimedTask]], Awaitable[None]]


class WaitingPoll:
    __slots__ = ("can_wait", "done", "request", "timer")

    def __init__(self, request: ClaimRequest, done: asyncio.Future[list[ClaimedTask]], can_wait: bool) -> None:
        self.request = request
        self.done = done
        self.can_wait = can_wait
        self.timer: asyncio.TimerHandle | None = None


class WaitQueue:
    """The polls that wait for the same work, in order of arrival."""

    def __init__(self, scope: ClaimScope, long_polls: LongPolls, dispatcher: FairDispatcher) -> None:
        self.scope = scope
        self.dispatcher = dispatcher
        self.waiting: deque[WaitingPoll] = deque()
        self.is_signalled = True
        self.reserved = 0
        # The number of the last check that woke the wait queue, if it has got no tasks since then.
        self.last_check: int | None = None
        self._no_wait_polls: list[WaitingPoll] = []
        self._claim_size = _MIN_CLAIM_SIZE
        self._long_polls = long_polls
        # The task that serves the polls. It may still return tasks after all polls have ended.
        self.serving: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no poll waits, and no poll that was taken out can be put back."""
        return not self.waiting and not self.reserved and self.serving is None

    def join(self, poll: WaitingPoll) -> None:
        self.waiting.append(poll)
        if not poll.can_wait:
            self._no_wait_polls.append(poll)
        if self.is_signalled or not poll.can_wait:
            self.wake()

    def wake(self) -> None:
        """Serve the polls. Without polls, the next one is served immediately."""
        self.is_signalled = True
        if self.serving is None and self.waiting:
            self.serving = asyncio.create_task(self._serve())

    def drop_finished(self) -> None:
        """Drop finished polls at the front."""
        while self.waiting and self.waiting[0].done.done():
            self.waiting.popleft()

    def drop_all_finished(self) -> None:
        """Drop finished polls, including those behind polls that still wait."""
        if any(poll.done.done() for poll in self.waiting):
            self.waiting = deque(poll for poll in self.waiting if not poll.done.done())

    def end_polls(self) -> None:
        """End all waiting polls without tasks."""
        for poll in self.waiting:
            _finish_empty(poll.done)
        self.waiting.clear()

    def serves(self, task: NewTask) -> bool:
        return self.scope.serves(task.tenant_id, task.queue, task.type)

    def take_first(self) -> WaitingPoll | None:
        """Take out the poll at the front. Returns None if there may be other work for it, or if it cannot wait."""
        if self.is_signalled or self.serving is not None:
            return None
        self.drop_finished()
        if not self.waiting or not self.waiting[0].can_wait:
            return None
        self.reserved += 1
        return self.waiting.popleft()

    def put_back(self, poll: WaitingPoll) -> None:
        """Put a poll that got no tasks back to the front."""
        if self._long_polls.is_closed:
            _finish_empty(poll.done)
        else:
            self.waiting.appendleft(poll)

    async def _serve(self) -> None:
        try:
            while self.is_signalled and self.waiting:
                self.is_signalled = False
                await self._serve_once()
        finally:
            self.serving = None
            if self.is_signalled and self.waiting:
                self.wake()

    async def _serve_once(self) -> None:
        no_wait_polls, self._no_wait_polls = self._no_wait_polls, []
        try:
            has_work = await self.dispatcher.find()
        except Exception as error:
            self._fail(self._take_front(), error)
            return
        may_be_more = await self._claim(self._take_front()) if has_work else False
        if may_be_more:
            self.is_signalled = True
            self._no_wait_polls = [poll for poll in no_wait_polls if not poll.done.done()] + self._no_wait_polls
        else:
            for poll in no_wait_polls:  # there were no tasks, or not enough for the polls before this one
                _finish_empty(poll.done)

    def _take_front(self) -> list[WaitingPoll]:
        front: list[WaitingPoll] = []
        requested = 0
        while self.waiting and requested < self._claim_size:
            poll = self.waiting.popleft()
            if not poll.done.done():
                front.append(poll)
                requested += poll.request.limit
        return front

    def _fail(self, polls: list[WaitingPoll], error: Exception) -> None:
        self.is_signalled = True
        for poll in polls:
            if not poll.done.done():
                poll.done.set_exception(error)

    async def _claim(self, front: list[WaitingPoll]) -> bool:
        """Serve these polls. Returns whether there may be more tasks, for them or for the polls behind them."""
        if not front:
            return True  # the next poll is to be served
        try:
            dispatched, may_be_more = await self.dispatcher.dispatch([poll.request for poll in front])
        except Exception as error:
            self._fail(front, error)
            return True
        if any(dispatched):
            self.last_check = None
        is_filled = all(len(assigned) == poll.request.limit for poll, assigned in zip(front, dispatched, strict=True))
        self._claim_size = min(_MAX_CLAIM_SIZE, self._claim_size * _GROWTH) if is_filled else _MIN_CLAIM_SIZE
        unserved: list[WaitingPoll] = []
        undeliverable: list[ClaimedTask] = []
        for poll, assigned in zip(front, dispatched, strict=True):
            if poll.done.done():
                undeliverable += assigned
            elif assigned:
                poll.done.set_result(assigned)
            else:
                unserved.append(poll)
        for poll in reversed(unserved):
            self.put_back(poll)
        if undeliverable:
            await self._long_polls.return_tasks(self.scope.tenant_id, undeliverable)
        return may_be_more


class LongPolls:
    """The wait queues of a node."""

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
        self._by_queue: dict[str, dict[ClaimScope, WaitQueue]] = {}
        self._checked_to: ReadyQueue | None = None
        self._checking: asyncio.Task[None] | None = None
        self._needs_check = False
        self._check_number = 0
        self._woken_by_checks: set[WaitQueue] = set()
        store.subscribe(self._on_notice)
        publisher.subscribe(self._on_changes)

    async def claim(
        self, lease_tenant_id: UUID | None, claim: LeaseClaimRequest, *, now: datetime | None = None
    ) -> list[ClaimedTask]:
        """Return tasks for a worker: immediately if there are any, otherwise as soon as there are, within `wait_seconds`."""
        request = ClaimRequest(claim.worker, claim.max, claim.lease_seconds)
        scope = ClaimScope(
            lease_tenant_id, tuple(sorted(set(claim.queues))), None if claim.types is None else tuple(sorted(claim.types))
        )
        if now is not None:  # a test that steps the clock
            return (await self._dispatchers.of(scope).dispatch([request], now=now)).tasks[0]
        wait_queue = self._wait_queues.get(scope) or self._add_wait_queue(scope)
        loop = asyncio.get_running_loop()
        poll = WaitingPoll(request, loop.create_future(), claim.wait_seconds > 0 and not self.is_closed)
        if poll.can_wait:
            poll.timer = loop.call_later(claim.wait_seconds, _finish_empty, poll.done)
        wait_queue.join(poll)
        try:
            return await poll.done
        except asyncio.CancelledError:
            if poll.done.done() and not poll.done.cancelled() and poll.done.exception() is None and poll.done.result():
                # In a task of its own, because the caller may be cancelled again meanwhile.
                returning = asyncio.create_task(self.return_tasks(lease_tenant_id, poll.done.result()))
                self._returning.add(returning)
                returning.add_done_callback(self._returning.discard)
                await asyncio.shield(returning)
            raise
        finally:
            if poll.timer is not None:
                poll.timer.cancel()
            wait_queue.drop_finished()

    async def return_tasks(self, lease_tenant_id: UUID | None, tasks: list[ClaimedTask]) -> None:
        """Release tasks whose worker has disconnected. If that fails, their leases expire."""
        with contextlib.suppress(EverbeatError):
            await self._release_tasks(lease_tenant_id, tasks)

    def wait_queues_of(self, queue: str) -> Collection[WaitQueue]:
        """Return the wait queues for this queue."""
        return self._by_queue.get(queue, {}).values()

    def _add_wait_queue(self, scope: ClaimScope) -> WaitQueue:
        wait_queue = self._wait_queues[scope] = WaitQueue(scope, self, self._dispatchers.of(scope))
        for queue in scope.queues:
            self._by_queue.setdefault(queue, {})[scope] = wait_queue
        return wait_queue

    def _remove_wait_queue(self, scope: ClaimScope) -> None:
        self._woken_by_checks.discard(self._wait_queues.pop(scope))
        for queue in scope.queues:
            del self._by_queue[queue][scope]
            if not self._by_queue[queue]:
                del self._by_queue[queue]

    def is_paused(self, tenant_id: UUID, queue: str) -> bool:
        return self._dispatchers.directory.is_paused(tenant_id, queue)

    def is_limited(self, tenant_id: UUID) -> bool:
        """Return whether the tenant has a limit of running tasks."""
        return self._dispatchers.directory.max_running_of(tenant_id) is not None

    # Wake-ups

    def _on_changes(self, effects: ChangeEffects) -> None:
        self.wake_tenants(effects.freed_tenants)
        self.wake(effects.ready_queues, effects.ready_flows)

    def wake(self, queues: Iterable[str] = (), flows: Collection[Flow] = ()) -> None:
        """Wake the wait queues, here and on other nodes, after this node has made tasks of these queues or flows ready.

        Flows are better than queues, because they need no scan.
        """
        woken = frozenset(queues)
        if not woken and not flows:
            return
        for queue in woken:
            for wait_queue in self.wait_queues_of(queue):
                wait_queue.dispatcher.mark_stale()
                wait_queue.wake()
        for wait_queue in {one for queue in {flow.queue for flow in flows} for one in self.wait_queues_of(queue)}:
            if wait_queue.dispatcher.add_flows(flows):
                wait_queue.wake()
        self._store.publish_to_others(Notice.TASKS)

    def wake_tenants(self, tenant_ids: Collection[UUID]) -> None:
        """Wake wait queues after tasks of these tenants have ended: a tenant at its limit of running tasks can run another."""
        limited = self._dispatchers.limited(tenant_ids)
        if not limited:
            return
        for wait_queue in self._wait_queues.values():
            if wait_queue.dispatcher.unblock(limited):
                wait_queue.wake()
        self._store.publish_to_others(Notice.TASKS)

    def _on_notice(self, notice: Notice) -> None:
        if notice is Notice.TASKS and self._wait_queues:
            self._needs_check = True
            if self._checking is None:
                self._checking = asyncio.create_task(self._check_until_current())

    async def _check_until_current(self) -> None:
        try:
            while self._needs_check and not self.is_closed:
                self._needs_check = False
                with contextlib.suppress(EverbeatError):  # the loop checks again
                    await self._check_ready_queues()
        finally:
            self._checking = None

    # The loop: a check once per poll interval

    async def run_once(self, now: datetime | None = None) -> bool:
        self.is_closed = False
        for scope, wait_queue in list(self._wait_queues.items()):
            wait_queue.drop_all_finished()
            if wait_queue.is_empty:
                wait_queue.dispatcher.reset()
                self._remove_wait_queue(scope)
        await self._check_ready_queues()
        return False

    async def _check_ready_queues(self) -> None:
        """Wake the wait queues for tasks that are ready. If there are very many queues, the next check continues."""
        if not self._wait_queues:
            return
        is_complete, found = self._checked_to is None, list[ReadyQueue]()
        for _ in range(_MAX_PAGES):
            page = await self._store.task_ready_queues(after=self._checked_to, limit=_PAGE_SIZE)
            found += page
            self._checked_to = page[-1] if len(page) >= _PAGE_SIZE else None
            if self._checked_to is None:
                break
        ready = {
            wait_queue
            for queue, tenant_id in found
            for wait_queue in self.wait_queues_of(queue)
            if wait_queue.scope.tenant_id in (None, tenant_id)
        }
        if is_complete and self._checked_to is None:
            for wait_queue in self._woken_by_checks - ready:
                wait_queue.last_check = None
            self._woken_by_checks.clear()
        self._wake_checked(ready)

    def _wake_checked(self, ready: set[WaitQueue]) -> None:
        """Wake these wait queues, but only a few of those that got nothing after their last wake-up, in turn.

        They wait for other types than those of the ready tasks, for example, or for a tenant that is at its limit.
        """
        self._check_number += 1
        in_vain = [wait_queue for wait_queue in ready if wait_queue.last_check is not None]
        woken = heapq.nsmallest(_MAX_IN_VAIN, in_vain, key=lambda one: one.last_check or 0)
        for wait_queue in itertools.chain(ready.difference(in_vain), woken):
            wait_queue.last_check = self._check_number
            wait_queue.dispatcher.mark_stale()
            wait_queue.wake()
        self._woken_by_checks |= ready

    async def wait(self) -> None:
        await asyncio.sleep(self._poll_interval_seconds)

    async def close(self) -> None:
        """End all waiting polls without tasks, and what runs in the background. Polls that arrive from now on do not wait."""
        self.is_closed = True
        for wait_queue in self._wait_queues.values():
            wait_queue.end_polls()
        while background := self._background_tasks():
            _, pending = await asyncio.wait(background, timeout=_CLOSE_SECONDS)
            for task in pending:
                task.cancel()

    def _background_tasks(self) -> set[asyncio.Task[None]]:
        """Return the tasks of this service that use the store. They may continue after their polls have ended."""
        serving = {wait_queue.serving for wait_queue in self._wait_queues.values()}
        return {task for task in (*self._returning, *serving, self._checking) if task is not None}


def _finish_empty(done: asyncio.Future[list[ClaimedTask]]) -> None:
    if not done.done():
        done.set_result([])
