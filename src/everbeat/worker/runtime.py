"""The worker: claims tasks, runs their handlers, keeps their leases and reports how they ended, until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Sequence
from time import monotonic

from everbeat.client.base import Transport
from everbeat.client.registry import Registry, TaskDefinition
from everbeat.core.tasks import ClaimedTask
from everbeat.core.protocol import DEFAULT_LEASE_SECONDS, DEFAULT_QUEUE, MAX_TYPES, LeaseClaimRequest, LeaseCompletion
from everbeat.worker.calls import Caller, Interrupted, Outcome
from everbeat.worker.claimer import Claimer
from everbeat.worker.heart import Heart, TransportFactory
from everbeat.worker.held import Hand, Held, Stop
from everbeat.worker.journal import Journal, Stats
from everbeat.worker.outcomes import cancelled_of, unknown_type_of
from everbeat.worker.pace import Pace
from everbeat.worker.reports import Reporter
from everbeat.worker.runners import Runners

DEFAULT_CONCURRENCY = 50
DEFAULT_GRACE_SECONDS = 30.0
_TICK_SECONDS = 0.25
_CLEANUP_SECONDS = 2.0
_FAREWELL_SECONDS = 5.0
_MOST_UNREPORTED = 4000
_TAKEN_AWAY = "the server ended the attempt, or gave the task to somebody else"


def new_worker_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


class Worker:
    """Runs the handlers of a registry. The transport is opened and closed by whoever made it."""

    def __init__(
        self,
        registry: Registry,
        transport: Transport,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        name: str | None = None,
        grace_seconds: float = DEFAULT_GRACE_SECONDS,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        heartbeat_transport_factory: TransportFactory | None = None,
        types: Sequence[str] | None = None,
    ) -> None:
        self.name = name or new_worker_name()
        self.queues = list(queues) if queues is not None else registry.queues() or [DEFAULT_QUEUE]
        self._registry = registry
        self._transport = transport
        self._types = list(types) if types is not None else sorted(registry.tasks)
        self._concurrency = concurrency
        self._grace_seconds = grace_seconds
        self._lease_seconds = lease_seconds
        self._connect = heartbeat_transport_factory or getattr(transport, "for_thread", None)
        self._journal = Journal(self.name)
        self._hand: Hand = {}
        self._pace = Pace(concurrency, lease_seconds)
        self._claim_below = concurrency
        self._is_stopping = False
        self._is_stopped = asyncio.Event()
        self._has_ended = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def stats(self) -> Stats:
        return self._journal.stats

    async def start(self) -> None:
        """Begin to claim; `run` or `stop` comes next. After a `stop`, nothing begins."""
        if self._is_stopping:
            return
        loop = asyncio.get_running_loop()
        caller = Caller(self._registry, self.name, self._journal, loop)
        self._runners = Runners(caller, self._concurrency, loop, self._journal, finish=self._finished, freed=self._freed)
        self._reporter = Reporter(
            self._transport, self.name, self._hand, self._journal, lambda: bool(self._runners.ready), self._freed
        )
        self._heart = Heart(
            self.name,
            self._hand,
            self._journal,
            self._transport,
            self._connect,
            lease_seconds=self._lease_seconds,
            on_stop=self._told_to_stop,
        )
        types = self._types if len(self._types) <= MAX_TYPES else None
        claim = LeaseClaimRequest(worker=self.name, queues=self.queues, types=types, lease_seconds=self._lease_seconds)
        self._claimer = Claimer(self._transport, claim, self._journal, room=self._room, receive=self._received)
        self._heart.start()
        self._tasks = [self._claimer.start(), loop.create_task(self._tick_forever())]
        server = getattr(self._transport, "url", "in this process")
        self._journal.started(queues=self.queues, types=len(self._types), concurrency=self._concurrency, server=server)

    async def run(self) -> None:
        """Start, and go on until `stop`; raises if the server will never take this worker's claims."""
        if not self._tasks:
            await self.start()
        stopped = asyncio.create_task(self._is_stopped.wait())
        await asyncio.wait({stopped, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        if not self._is_stopping:
            await self.stop()
        await stopped
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def stop(self, grace_seconds: float | None = None) -> None:
        """Claim no more, give back what has not begun, let the rest end within the grace time, then give that back too."""
        if self._is_stopping:
            await self._is_stopped.wait()
            return
        self._is_stopping = True
        if not self._tasks:  # not started, and now it never will be
            self._is_stopped.set()
            return
        grace = self._grace_seconds if grace_seconds is None else grace_seconds
        self._journal.stopping(running=len(self._runners.running), grace_seconds=grace)
        try:
            # First: what is given back must not come again by this worker's own poll.
            await self._claimer.stop()
            self._give_back(self._runners.take_ready())
            await self._until_ended(grace)
            await self._interrupt_the_rest()
            await self._reporter.drain(_FAREWELL_SECONDS)
        finally:
            self._tasks[1].cancel()
            self._runners.close()
            await self._heart.stop()
            self._journal.stopped()
            self._is_stopped.set()

    def release_everything(self, seconds: float) -> None:
        """For a process about to be ended by force: give back all that is in hand. Blocks; safe from any thread."""
        self._heart.release_everything(seconds)

    # Work comes in

    def _room(self) -> int:
        if self._reporter.backlog > _MOST_UNREPORTED:
            return 0
        in_hand = self._runners.in_hand
        self._pace.sample(in_hand, monotonic())
        self._claim_below = self._pace.claim_below
        return self._pace.to_claim(in_hand)

    def _received(self, tasks: list[ClaimedTask], sent_at: float) -> None:
        now = monotonic()
        self._journal.stats.claimed += len(tasks)
        self._pace.received(min(task.timeout_seconds for task in tasks), now)
        definitions = self._registry.tasks
        taken = []
        for task in tasks:
            held = Held(task, definitions.get(task.type, _UNKNOWN), sent_at, now)
            previous = self._hand.get(held.key)
            if previous is not None and not previous.is_settled and previous.tell_to_stop(Stop.LOST):
                self._told_to_stop(previous)
            self._hand[held.key] = held
            taken.append(held)
        self._sort_out(taken, now)

    def _sort_out(self, taken: list[Held], now: float) -> None:
        if self._is_stopping or taken[0].trusted_until <= now:
            self._give_back(taken)
            return
        unknown = [held for held in taken if held.definition is _UNKNOWN]
        for held in unknown:
            held.is_settled = True
            self._reporter.fail(held, unknown_type_of(held.task))
        self._runners.put(held for held in taken if held.definition is not _UNKNOWN)

    # Work is done

    def _finished(self, held: Held, outcome: Outcome) -> None:
        held.is_settled = True
        self._pace.finished()
        if isinstance(outcome, LeaseCompletion):
            if held.stop is Stop.LOST:
                self._drop(held, _TAKEN_AWAY)
            else:
                # Also when the lease may have expired: the work is done, and the fence decides whether it counts.
                self._reporter.complete(held, outcome)
        elif held.stop is Stop.LOST:
            self._drop(held, _TAKEN_AWAY)
        elif held.stop is Stop.EXPIRED:
            self._drop(held, "its lease may have expired while the server could not be asked")
        elif held.stop is Stop.SHUTDOWN:
            self._reporter.release([held])
        elif isinstance(outcome, Interrupted):
            self._reporter.fail(held, cancelled_of(held.task, outcome.trace))
        else:
            self._reporter.fail(held, outcome)

    def _freed(self) -> None:
        if self._is_stopping:
            if not self._runners.running:
                self._has_ended.set()
        elif self._claimer.is_waiting and self._runners.in_hand < self._claim_below:
            self._claimer.wake()

    def _told_to_stop(self, held: Held) -> None:
        """In the event loop, after the reason was noted."""
        if held.is_settled:
            return
        if held in self._runners.running:
            self._runners.interrupt(held)
            return
        held.is_settled = True
        if held.stop is Stop.CANCEL:
            self._reporter.fail(held, cancelled_of(held.task))
        else:
            self._drop(held, "it was no longer this worker's before it began")

    def _drop(self, held: Held, why: str) -> None:
        self._journal.lost(held, why)
        self._reporter.forget([held])

    def _give_back(self, waiting: list[Held]) -> None:
        for held in waiting:
            held.is_settled = True
        self._reporter.release(waiting)

    # Now and then

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self._pace.sample(self._runners.in_hand, monotonic())
            self._claim_below = self._pace.claim_below
            self._give_back_stalled()
            self._freed()

    def _give_back_stalled(self) -> None:
        """Tasks claimed ahead that turn out long: those behind them are better off with another worker."""
        ready, now = self._runners.ready, monotonic()
        if not ready or now - ready[0].received_at < self._pace.longest_wait_seconds:
            return
        if len(self._runners.running) < self._concurrency:
            return
        self._pace.stalled()
        waiting = self._runners.take_ready()
        self._journal.gave_back(len(waiting))
        self._give_back(waiting)

    # The end

    async def _until_ended(self, seconds: float) -> None:
        if not self._runners.running:
            return
        self._has_ended.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._has_ended.wait()
        except TimeoutError:
            pass

    async def _interrupt_the_rest(self) -> None:
        for held in list(self._runners.running):
            if not held.is_settled and held.tell_to_stop(Stop.SHUTDOWN):
                self._runners.interrupt(held)
        await self._until_ended(_CLEANUP_SECONDS)
        # A thread cannot be stopped, but it ends with the process.
        left = [held for held in self._runners.running if not held.is_settled]
        self._give_back(left)


def _unhandled() -> None:
    """Stands in for a handler that this worker does not have; never called."""


_UNKNOWN = TaskDefinition(type="", queue="", function=_unhandled, is_async=False, wants_context=False)
