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
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from everbeat.core.errors import EverbeatError
from everbeat.core.fairness import Flow
from everbeat.core.tasks import ClaimedTask, NewTask, with_payload_ref
from everbeat.core.protocol import LeaseClaimRequest
from everbeat.services.shares import Dealer, Dealers, Directory, Equals, LineKey
from everbeat.store.base import Store
from everbeat.store.values import ClaimRequest, Notice

# Tasks that one claim asks for: few at first, as an idle line mostly gets one, and more while every claim is filled.
_FEWEST_AT_ONCE, _MOST_AT_ONCE, _GROWTH = 64, 2000, 8

GiveBack = Callable[[UUID | None, list[ClaimedTask]], Awaitable[None]]


async def _leave(_lease_tenant_id: UUID | None, _tasks: list[ClaimedTask]) -> None:
    """Until there is a way to give work back, its lease runs out."""


class _Poll:
    __slots__ = ("claimer", "done", "is_patient", "timer")

    def __init__(self, claimer: ClaimRequest, done: asyncio.Future[list[ClaimedTask]], is_patient: bool) -> None:
        self.claimer = claimer
        self.done = done
        self.is_patient = is_patient
        self.timer: asyncio.TimerHandle | None = None


class _Line:
    """Those who wait for the same work, in the order they came."""

    def __init__(self, key: LineKey, polls: Polls, dealer: Dealer) -> None:
        self.key = key
        self.dealer = dealer
        self.waiting: deque[_Poll] = deque()
        self.is_rung = True
        self.seated = 0
        self._hasty: list[_Poll] = []
        self._at_once = _FEWEST_AT_ONCE
        self._polls = polls
        self._serving: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Nobody waits, and nobody who was taken out of the line may come back to it."""
        return not self.waiting and not self.seated and self._serving is None

    def join(self, poll: _Poll) -> None:
        self.waiting.append(poll)
        if not poll.is_patient:
            self._hasty.append(poll)
        if self.is_rung or not poll.is_patient:
            self.ring()

    def ring(self) -> None:
        self.is_rung = True
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

    def leave_first(self) -> _Poll | None:
        """Who is to be served next, taken out of the line; nobody if there may be other work for them."""
        if self.is_rung or self._serving is not None:
            return None
        self.tidy()
        if not self.waiting or not self.waiting[0].is_patient:
            return None
        self.seated += 1
        return self.waiting.popleft()

    def come_back(self, poll: _Poll) -> None:
        """To the front, after there was nothing for it."""
        if self._polls.is_closed:
            _give_up(poll.done)
        else:
            self.waiting.appendleft(poll)

    async def _serve(self) -> None:
        try:
            while self.is_rung and self.waiting:
                self.is_rung = False
                await self._serve_once()
        finally:
            self._serving = None
            if self.is_rung and self.waiting:
                self.ring()

    async def _serve_once(self) -> None:
        hasty, self._hasty = self._hasty, []
        try:
            has_work = await self.dealer.find()
        except Exception as error:
            self._refuse(self._front(), error)
            return
        may_be_more = await self._claim(self._front()) if has_work else False
        if may_be_more:
            self.is_rung = True
            self._hasty = [poll for poll in hasty if not poll.done.done()] + self._hasty
        else:
            for poll in hasty:  # there was nothing, or not enough for all who stand before them
                _give_up(poll.done)

    def _front(self) -> list[_Poll]:
        front: list[_Poll] = []
        asked = 0
        while self.waiting and asked < self._at_once:
            poll = self.waiting.popleft()
            if not poll.done.done():
                front.append(poll)
                asked += poll.claimer.limit
        return front

    def _refuse(self, front: list[_Poll], error: Exception) -> None:
        self.is_rung = True
        for poll in front:
            if not poll.done.done():
                poll.done.set_exception(error)

    async def _claim(self, front: list[_Poll]) -> bool:
        """Serve those in front; whether there may be more for them or for those behind them."""
        if not front:
            return True  # whoever comes next is to be served
        try:
            shares, may_be_more = await self.dealer.deal([poll.claimer for poll in front])
        except Exception as error:
            self._refuse(front, error)
            return True
        is_filled = all(len(share) == poll.claimer.limit for poll, share in zip(front, shares, strict=True))
        self._at_once = min(_MOST_AT_ONCE, self._at_once * _GROWTH) if is_filled else _FEWEST_AT_ONCE
        left: list[_Poll] = []
        orphans: list[ClaimedTask] = []
        for poll, share in zip(front, shares, strict=True):
            if poll.done.done():
                orphans += share
            elif share:
                poll.done.set_result(share)
            else:
                left.append(poll)
        for poll in reversed(left):
            self.come_back(poll)
        if orphans:
            await self._polls.hand_back(self.key.tenant_id, orphans)
        return may_be_more


class Seats:
    """Waiting polls set aside for tasks that are about to be written: each task goes to its worker in that very write."""

    def __init__(self, polls: Polls) -> None:
        self._polls = polls
        self._taken: dict[_Poll, tuple[_Line, list[NewTask]]] = {}

    def seat(self, task: NewTask) -> NewTask:
        """The task with the lease of a worker that waits for it, or as it is if nobody does, or its tenant may be full."""
        poll = None if self._polls.is_limited(task.tenant_id) else self._poll_for(task)
        if poll is None:
            return task
        seated = task._replace(
            lease_owner=poll.claimer.worker,
            lease_seconds=poll.claimer.lease_seconds,
            deadline_seconds=min(task.timeout_seconds, self._polls.total_seconds),
        )
        self._taken[poll][1].append(seated)
        return seated

    def _poll_for(self, task: NewTask) -> _Poll | None:
        for poll, (line, tasks) in self._taken.items():
            if len(tasks) < poll.claimer.limit and line.serves(task):
                return poll
        for line in self._polls.lines():
            if line.serves(task) and (first := line.leave_first()) is not None:
                self._taken[first] = (line, [])
                return first
        return None

    async def serve(self, written: Collection[UUID], now: datetime | None) -> None:
        """The write is done, or has failed: hand out what it wrote. Whoever got nothing waits on, at the front."""
        orphans: list[tuple[UUID | None, list[ClaimedTask]]] = []
        for poll, (line, tasks) in reversed(self._taken.items()):  # who came first is put back last, and so in front
            line.seated -= 1
            share = [_handed(task, now) for task in tasks if task.id in written and now is not None]
            if poll.done.done():
                orphans += [(line.key.tenant_id, share)] if share else []
            elif share:
                poll.done.set_result(share)
            else:
                line.come_back(poll)
                line.ring()
        for lease_tenant_id, share in orphans:
            await self._polls.hand_back(lease_tenant_id, share)


def _handed(task: NewTask, now: datetime) -> ClaimedTask:
    """A task as its claim would show it."""
    seconds = min(task.lease_seconds, task.deadline_seconds or task.timeout_seconds)
    claimed = ClaimedTask(
        id=task.id,
        type=task.type,
        queue=task.queue,
        payload=msgspec.Raw(task.payload.encode()),
        attempt=1,
        max_attempts=task.max_attempts,
        fence=1,
        lease_until=now + timedelta(seconds=seconds),
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


class Polls:
    """All lines of this node."""

    name = "polls"
    deadline_seconds = 10.0

    def __init__(
        self,
        store: Store,
        *,
        look_seconds: float = 1.0,
        total_seconds: float = 7 * 86_400,
        directory: Directory | None = None,
    ) -> None:
        self._store = store
        self._dealers = Dealers(store, directory or Equals(), total_seconds)
        self.give_back: GiveBack = _leave
        self.is_closed = False
        self._returning: set[asyncio.Task[None]] = set()
        self._look_seconds = look_seconds
        self.total_seconds = total_seconds
        self._lines: dict[LineKey, _Line] = {}
        self._is_own = False
        store.subscribe(self._heard)

    async def ask(self, lease_tenant_id: UUID | None, claim: LeaseClaimRequest, *, now: datetime | None = None) -> list[ClaimedTask]:
        """Tasks for a worker: at once if there are any, else as soon as there are, within its patience."""
        claimer = ClaimRequest(claim.worker, claim.max, claim.lease_seconds)
        key = LineKey(lease_tenant_id, tuple(sorted(set(claim.queues))), None if claim.types is None else tuple(sorted(claim.types)))
        if now is not None:  # stepped by hand
            return (await self._dealers.of(key).deal([claimer], now=now)).tasks[0]
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(key, self, self._dealers.of(key))
        loop = asyncio.get_running_loop()
        poll = _Poll(claimer, loop.create_future(), claim.wait_seconds > 0 and not self.is_closed)
        if poll.is_patient:
            poll.timer = loop.call_later(claim.wait_seconds, _give_up, poll.done)
        line.join(poll)
        try:
            return await poll.done
        except asyncio.CancelledError:
            if poll.done.done() and not poll.done.cancelled() and poll.done.exception() is None and poll.done.result():
                # On its own: whoever cancels may do so again, also while this is under way.
                returning = asyncio.create_task(self.hand_back(lease_tenant_id, poll.done.result()))
                self._returning.add(returning)
                returning.add_done_callback(self._returning.discard)
                await asyncio.shield(returning)
            raise
        finally:
            if poll.timer is not None:
                poll.timer.cancel()
            line.tidy()

    async def hand_back(self, lease_tenant_id: UUID | None, tasks: list[ClaimedTask]) -> None:
        """What was claimed for somebody who is gone; if that fails, its lease runs out."""
        with contextlib.suppress(EverbeatError):
            await self.give_back(lease_tenant_id, tasks)

    def lines(self) -> Iterable[_Line]:
        return self._lines.values()

    def is_limited(self, tenant_id: UUID) -> bool:
        """Whether the tenant may have only so many tasks running."""
        return self._dealers.directory.max_running_of(tenant_id) is not None

    # Bells

    def ring(self, queues: Iterable[str] = (), flows: Collection[Flow] = ()) -> None:
        """Tasks have become ready by what this node did: of these queues, or, better, of these flows. Tell the lines, and
        other nodes."""
        rung = frozenset(queues)
        if not rung and not flows:
            return
        for line in self._lines.values():
            if not rung.isdisjoint(line.key.queues):
                line.dealer.expire()
                line.ring()
            if flows and line.dealer.note(flows):
                line.ring()
        self._announce()

    def freed(self, tenant_ids: Collection[UUID]) -> None:
        """Tasks of these tenants have ended: where one of them had as many running as it may, there is room for another."""
        freed = self._dealers.limited(tenant_ids)
        if not freed:
            return
        for line in self._lines.values():
            if line.dealer.free(freed):
                line.ring()
        self._announce()

    def _announce(self) -> None:
        self._is_own = True
        try:
            self._store.publish(Notice.TASKS)
        finally:
            self._is_own = False

    def _heard(self, notice: Notice) -> None:
        if notice is Notice.TASKS and not self._is_own:
            for line in self._lines.values():
                line.dealer.expire()
                line.ring()

    # The look now and then, as a loop

    async def run_once(self, now: datetime | None = None) -> bool:
        self.is_closed = False
        for key, line in list(self._lines.items()):
            line.sweep()
            line.dealer.expire()
            if line.waiting:
                line.ring()
            elif line.is_empty:
                line.dealer.rest()
                del self._lines[key]
        return False

    async def wait(self) -> None:
        await asyncio.sleep(self._look_seconds)

    async def close(self) -> None:
        """Let everybody who waits go home with nothing; whoever comes now does not wait."""
        self.is_closed = True
        for line in self._lines.values():
            for poll in line.waiting:
                _give_up(poll.done)
        await asyncio.gather(*self._returning, return_exceptions=True)


def _give_up(done: asyncio.Future[list[ClaimedTask]]) -> None:
    if not done.done():
        done.set_result([])
