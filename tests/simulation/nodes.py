"""Simulated nodes: the real engine with its loops, in a process that can be frozen, killed, stopped and started again."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar
from uuid import UUID

import everbeat.core.partitioning
import everbeat.services.loops
import everbeat.services.ownership
import everbeat.services.ticker
import everbeat.services.workers
from everbeat.clock import DatabaseClock
from everbeat.config import Settings
from everbeat.core.errors import EverbeatError
from everbeat.core.partitioning import partitions_of_node
from everbeat.engine import Engine
from everbeat.services.events import Event, LoopFailed, ScheduleFaulted
from everbeat.services.loops import Loop, LoopMonitor, LoopRunner, Periodic, wait_for_event
from everbeat.services.maintenance.singleton import SingletonLoop
from tests.simulation.database import Database, Link, SimulatedNotices, SimulatedStore
from tests.simulation.model import Violation
from tests.simulation.virtual_time import NETWORK, Process, ProcessState, VirtualLoop

T = TypeVar("T")

_STOP_SECONDS = 2.0

_partitions_of = functools.lru_cache(maxsize=4096)(
    lambda node, live, capacities: partitions_of_node(node, live, dict(capacities))
)


def _cached_partitions(node: UUID, live: Iterable[UUID], capacities: Mapping[UUID, float] | None = None) -> frozenset[int]:
    """A pure function that every heartbeat calls, mostly with the same arguments."""
    return _partitions_of(node, frozenset(live), frozenset((capacities or {}).items()))


def share_partitions() -> None:
    """Compute scores and the partitions of the same nodes once for all of them. Only for a process of the simulation."""
    everbeat.core.partitioning._score = functools.lru_cache(maxsize=50_000)(everbeat.core.partitioning._score)
    everbeat.services.ownership.partitions_of_node = _cached_partitions  # type: ignore[attr-defined]


class Unreachable(Exception):
    """A client got no answer. The request may have been executed, or may still be."""


class Node:
    """One start of a node. After a crash or a stop, another one takes its slot."""

    def __init__(
        self,
        slot: int,
        number: int,
        database: Database,
        seed: str,
        scale: float,
        others: Callable[[], list[SimulatedNotices]],
        fail: Callable[[Exception], None],
    ) -> None:
        self.slot = slot
        self.process = Process(f"node-{slot}.{number}", f"{seed}/node-{slot}.{number}")
        self._fail = fail
        self.is_up = False
        settings = settings_for(scale)
        self.link = Link(database, self.process, settings.database_timeout_seconds)
        self.link.lease_timeout_seconds = settings.lease_timeout_seconds
        self.notices = SimulatedNotices(self.process, others)
        self._settings, self._scale = settings, scale
        self._runners: list[LoopRunner] = []

    def start(self) -> None:
        self.process.context.run(self._start)

    def _start(self) -> None:
        self.engine = Engine(
            SimulatedStore(self.link, self.notices),
            DatabaseClock(self.process.monotonic),
            self._settings,
            emit=self._on_event,
            random_fraction=self.process.random.random,
        )
        loops = self.engine.loops()
        # As on PostgreSQL, where nodes send each other notices.
        self.engine.long_polls._poll_interval_seconds = 1.0
        if self._scale != 1:
            stretch(self.engine, loops, self._scale)
        monitor = LoopMonitor()
        self._runners = [LoopRunner(loop, self._on_event, monitor) for loop in loops]
        self.is_up = True

    def _on_event(self, event: Event) -> None:
        match event:
            case LoopFailed(loop, error, False):
                self._fail(Violation("order", f"the loop {loop} failed unexpectedly: {error!r}"))
            case ScheduleFaulted(_, reason):
                self._fail(Violation("order", f"a valid schedule was paused as faulty: {reason}"))

    # Faults

    def freeze(self) -> None:
        if self.process.state is ProcessState.RUNNING:
            self.process.state = ProcessState.FROZEN

    def thaw(self, loop: VirtualLoop) -> None:
        if self.process.state is ProcessState.FROZEN:
            loop.release(self.process)

    def kill(self) -> None:
        """End the process without any cleanup. Its requests that are on the way still arrive."""
        self.process.state = ProcessState.DEAD
        self.process.held.clear()
        self.is_up = False

    def stop(self) -> asyncio.Task[None]:
        """Shut down as a server does after SIGTERM."""
        self.is_up = False
        return self.process.context.run(asyncio.create_task, self._stop())

    async def _stop(self) -> None:
        self.engine.event_stream.close()
        await asyncio.gather(*(runner.stop(_STOP_SECONDS * self._scale) for runner in self._runners))
        with contextlib.suppress(EverbeatError, TimeoutError):
            await asyncio.wait_for(self.engine.ownership.stop(), 3 * self._scale)
        self.kill()

    # Requests of clients

    async def call(
        self, request: Callable[[Engine], Awaitable[T]], *, timeout_seconds: float, lost: float, delay_seconds: float
    ) -> T:
        """Send a request as over HTTP. Raises Unreachable if no answer comes; errors of the services are answers."""
        loop, random = asyncio.get_running_loop(), self.process.random
        done: asyncio.Future[T] = loop.create_future()
        lost_way = random.choice(["request", "reply"]) if random.random() < lost else None
        if not self.is_up or lost_way == "request":
            await asyncio.sleep(random.uniform(0.001, 0.1) if not self.is_up else timeout_seconds)
            raise Unreachable

        def reply(task: asyncio.Task[T]) -> None:
            if lost_way is None and not task.cancelled():
                answer = functools.partial(_copy_result, task, done)
                loop.call_later(random.uniform(0.0005, 0.005 + delay_seconds), answer, context=NETWORK)
            elif not task.cancelled():
                task.exception()

        def arrive() -> None:
            if self.is_up:
                asyncio.ensure_future(request(self.engine)).add_done_callback(reply)

        loop.call_later(random.uniform(0.0005, 0.005 + delay_seconds), arrive, context=self.process.context)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await done
        except TimeoutError:
            raise Unreachable from None


def _copy_result(task: asyncio.Task[Any], done: asyncio.Future[Any]) -> None:
    if done.done():
        if not task.cancelled():
            task.exception()
        return
    if (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())


def settings_for(scale: float) -> Settings:
    """The settings of a node whose intervals are `scale` times as long as by default."""
    return Settings(
        node_name="node",
        roles=("api", "scheduler"),
        lease_seconds=10 * scale,
        horizon_seconds=5 * scale,
        scan_seconds=2 * scale,
        late_after_seconds=5 * scale,
        lag_alert_seconds=5 * scale,
        behind_after_seconds=scale,
        database_timeout_seconds=10 * scale,
        audit_interval_seconds=min(60.0, 15 * scale),
    )


def stretch(engine: Engine, loops: list[Loop], scale: float) -> None:
    """Make the intervals that are not settings longer as well, most of all those of loops that find nothing here."""
    has_work: tuple[Loop, ...] = (engine.reaper, engine.overlap)
    for loop in loops:
        if loop is not engine.ownership:  # its deadline is the lease
            loop.deadline_seconds *= scale
        if isinstance(loop, Periodic):
            loop._interval *= scale * (2 if any(loop is one for one in has_work) else 10)
        if isinstance(loop, SingletonLoop):  # a node that does not own its partition would look for it every two seconds
            loop.wait = functools.partial(wait_for_event, loop._woken, loop._interval)  # type: ignore[method-assign]
    engine.directory._refresh_seconds *= 4 * scale
    engine.promoter._poll_interval_seconds *= 2 * scale
    engine.reaper._shorten_seconds *= scale
    engine.long_polls._poll_interval_seconds *= 4 * scale


def stretch_constants(scale: float) -> None:
    """Make the delays in the modules longer, for all nodes of the run."""
    everbeat.services.loops._FIRST_DELAY = 0.1 * scale
    everbeat.services.loops._MAX_DELAY = 2.0 * scale
    everbeat.services.workers._WRITE_SECONDS = 10.0 * scale
    everbeat.services.workers._NEW_SECONDS = 1.0 * scale
    everbeat.services.ownership._CLOCK_BACK_TOLERANCE_SECONDS = 2.0 * scale

    async def wait_stretched(event: asyncio.Event, timeout_seconds: float) -> None:
        # The ticker of a node without partitions looks for some five times a second.
        await wait_for_event(event, timeout_seconds * scale if timeout_seconds == 0.2 else timeout_seconds)

    everbeat.services.ticker.wait_for_event = wait_stretched  # type: ignore[attr-defined]
