"""The composition root: the only file that knows concrete stores. Builds a node, runs it, and takes it down in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self
from uuid import UUID, uuid4

from granian.constants import Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server as Granian

from everbeat.api.app import Health, Rooms, build_app
from everbeat.clock import DatabaseClock
from everbeat.config import Settings
from everbeat.core.errors import EverbeatError, SettingsError, StoreBroken, StoreUnavailable
from everbeat.core.misfire import Lateness
from everbeat.core.timeline import TimelineCache
from everbeat.core.zones import load_zone
from everbeat.services.audit import Auditing
from everbeat.services.backfill import Backfill
from everbeat.services.calendars import CalendarRoom
from everbeat.services.chores import Auditor, Pruner
from everbeat.services.cluster import ClusterRoom
from everbeat.services.dead_letters import DeadLetters
from everbeat.services.events import EventLoopBlocked
from everbeat.services.ledger import Ledger
from everbeat.services.loops import Loop, Pulse, Runner
from everbeat.services.ownership import Ownership
from everbeat.services.polls import Polls
from everbeat.services.schedules import Schedules
from everbeat.services.tasks import Tasks
from everbeat.services.ticker import Ticker, TickerSettings
from everbeat.services.turns import Promoter, Reaper, Turns
from everbeat.services.work import Work
from everbeat.store.base import NodeBeat, Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.sqlite.store import SqliteStore
from everbeat.telemetry import Telemetry
from everbeat.version import __version__

_STUCK_AFTER_SECONDS = 45.0
_BLOCKED_AFTER_SECONDS = 2.0
_PATIENCE_SECONDS = 2.0
_MOST_CONNECTIONS = 20_000
_OTHER_FILES = 256
# How often long polls look for work that nobody told of; processes on one SQLite file have no other way to hear of it.
_LOOK_SECONDS = {"postgres": 1.0, "sqlite": 0.2}


def make_store(settings: Settings, telemetry: Telemetry | None = None) -> Store:
    observer = None if telemetry is None else telemetry.observe_store
    if settings.database_url.startswith("sqlite:///"):
        path = Path(settings.database_url.removeprefix("sqlite:///"))
        if not path.parent.is_dir():
            raise SettingsError(f"the folder {path.parent} of the SQLite file does not exist; create it first")
        return SqliteStore(path, observer=observer)
    return PostgresStore(
        settings.database_url,
        listen=settings.database_notices and bool(settings.roles),
        observer=observer,
        api_connections=settings.database_connections,
        timeout_seconds=settings.database_timeout_seconds,
        lease_timeout_seconds=settings.lease_timeout_seconds,
    )


class EmbeddedNode:
    """A node without a port: the engine and the rooms, for a process that has its own business besides.

    Without roles it has no loops either: good for asking and submitting, and nothing fires or waits in it.
    """

    def __init__(self, settings: Settings, *, auto_migrate: bool = True, extra: Callable[[Self], list[Loop]] | None = None):
        self.settings = settings
        self.telemetry = Telemetry()
        self.store = make_store(settings, self.telemetry)
        self.pulse = Pulse()
        self.is_ready = False
        self._auto_migrate = auto_migrate
        load_zone("UTC")  # lists all zones once, so that the first request need not
        timelines = TimelineCache()
        self.schedules = Schedules(self.store, timelines)
        self._build_tasks(timelines)
        self._clock = DatabaseClock()
        self._ownership = Ownership(
            self.store,
            NodeBeat(uuid4(), settings.node_name, settings.roles, __version__, settings.lease_seconds),
            self._clock,
            margin_seconds=settings.lease_margin_seconds,
            emit=self.telemetry.on_event,
        )
        self._loops: list[Loop] = [self._ownership, self._polls, self._turns] if settings.roles else []
        if "scheduler" in settings.roles:
            self._loops += self._engine(timelines)
        if extra is not None:
            self._loops += extra(self)
        self._runners: list[Runner] = []
        self.asgi: Any = build_app(self._rooms(timelines), only_health=self._shows_only_health())

    def _shows_only_health(self) -> bool:
        """In process, whoever has the node may ask it everything."""
        return False

    def _build_tasks(self, timelines: TimelineCache) -> None:
        store, emit, total = self.store, self.telemetry.on_event, self.settings.task_total_seconds
        look = _LOOK_SECONDS[store.dialect]
        self._polls = Polls(store, look_seconds=look, total_seconds=total)
        self._turns = Turns(store, self._polls, emit=emit)
        self.work = Work(store, self._polls, self._turns, total_seconds=total, emit=emit)
        self.tasks = Tasks(store, self._polls, self._turns, emit=emit)
        self.dead_letters = DeadLetters(store, self.tasks)
        self.backfill = Backfill(store, self.schedules, self.tasks, timelines)

    def _engine(self, timelines: TimelineCache) -> list[Loop]:
        settings, emit = self.settings, self.telemetry.on_event
        ticker = Ticker(
            self.store,
            self._ownership,
            self._clock,
            timelines,
            settings=TickerSettings(
                horizon_seconds=settings.horizon_seconds,
                scan_seconds=settings.scan_seconds,
                batch_size=settings.batch_size,
                lag_alert_seconds=settings.lag_alert_seconds,
                lateness=Lateness(settings.late_after_seconds, settings.catch_up_rate),
            ),
            emit=emit,
            on_tasks=self._on_tasks,
        )
        late = settings.late_after_seconds + settings.lease_seconds + settings.scan_seconds
        return [
            ticker,
            Promoter(self.store, self._polls, self._clock, emit=emit),
            Reaper(self.store, self._turns, total_seconds=settings.task_total_seconds),
            Auditor(self.store, self._ownership, late_seconds=late, emit=emit),
            Pruner(self.store, self._ownership, retention_days=settings.retention_days, emit=emit),
        ]

    def _on_tasks(self, queues: frozenset[str], holders: frozenset[UUID]) -> None:
        self._polls.ring(queues)
        self._turns.expect(holders)

    def _rooms(self, timelines: TimelineCache) -> Rooms:
        late = self.settings.late_after_seconds
        return Rooms(
            schedules=self.schedules,
            ledger=Ledger(self.store, timelines, late_seconds=late),
            audit=Auditing(self.store, timelines, late_seconds=late),
            cluster=ClusterRoom(self.store),
            calendars=CalendarRoom(self.store, self.schedules),
            tasks=self.tasks,
            work=self.work,
            dead_letters=self.dead_letters,
            backfill=self.backfill,
            timelines=timelines,
            store=self.store,
            health=self.health,
            ready=self.ready,
            metrics=self.telemetry.exposition,
            allowed_hosts=frozenset({"localhost", "127.0.0.1", "[::1]", self.settings.host}),
        )

    # Health

    def health(self) -> Health:
        """Alive: every loop of the engine has gone round lately."""
        ages = {loop: round(age, 3) for loop, age in self.pulse.ages().items() if loop in ("ticker", "ownership")}
        return Health(all(age < _STUCK_AFTER_SECONDS for age in ages.values()), {"loops": ages})

    async def ready(self) -> Health:
        """Ready: the database answers, it is migrated, and the engine has heard from its lease."""
        try:
            version, needed = await self.store.schema_version()
        except EverbeatError as error:
            return Health(False, {"database": str(error)})
        is_migrated = version >= needed
        owns = len(self._ownership.current())
        detail = {"database": "ok", "migration": version, "needed": needed, "partitions": owns}
        return Health(self.is_ready and is_migrated and self._ownership.has_heard, detail)

    # Life

    async def start(self) -> None:
        """Open the store, migrate where that is wanted, and run the loops. A database that is away is waited for."""
        await self.store.open()
        await self._prepare(asyncio.Event())
        self._run_loops()

    async def stop(self) -> None:
        """Release ownership first, so that others take over while this one tidies up."""
        await self._stop_loops()
        await self.store.close()

    def _run_loops(self) -> None:
        self._runners = [Runner(loop, self.telemetry.on_event, self.pulse) for loop in self._loops]
        self.is_ready = True

    async def _stop_loops(self) -> None:
        self.is_ready = False
        await asyncio.gather(*(runner.stop(_PATIENCE_SECONDS) for runner in self._runners))
        self._runners = []
        with contextlib.suppress(EverbeatError, TimeoutError):
            await asyncio.wait_for(self._ownership.stop(), 3)

    async def _prepare(self, stop: asyncio.Event) -> None:
        """Wait for a database that is away; migrate where that is wanted or where there is nothing yet."""
        while not stop.is_set():
            try:
                version, needed = await self.store.schema_version()
                if version == 0 or (self._auto_migrate and version < needed):
                    for name in await self.store.migrate():
                        self.telemetry.log.info("migrated", migration=name)
                    version, needed = await self.store.schema_version()
            except StoreUnavailable as error:
                self.telemetry.log.warning("waiting_for_database", error=str(error))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), 1)
                continue
            if version < needed:
                raise StoreBroken(
                    f"the database is at migration {version}, this Everbeat needs {needed}; run: everbeat migrate"
                )
            return


class Node(EmbeddedNode):
    """One server process: the API, the engine, or both, on one store, with a port of its own."""

    def _shows_only_health(self) -> bool:
        return "api" not in self.settings.roles

    async def run(self, stop: asyncio.Event, on_started: Callable[[Self], Awaitable[None]] | None = None) -> None:
        """Run until told to stop."""
        listener = _reserve(self.settings)
        await self.store.open()
        await self._prepare(stop)
        if stop.is_set():
            await self.store.close()
            return
        self._run_loops()
        server = self._serve(listener)
        watchdog = _Watchdog(self.telemetry)
        gc.freeze()
        if self.store.dialect == "sqlite":
            # The writer thread asks for the interpreter after every row; by default it would wait 5 ms for it each time
            # that the event loop is busy.
            sys.setswitchinterval(0.0002)
        self.telemetry.log.info(
            "everbeat_started",
            roles=list(self.settings.roles),
            node=str(self._ownership.node_id),
            store=self.store.dialect,
        )
        try:
            if on_started is not None:
                await on_started(self)
            await self._until(stop)
        finally:
            watchdog.stop()
            await self._take_down(server)

    def _serve(self, listener: socket.socket) -> Granian:
        listener.close()
        server = Granian(
            self.asgi,
            address=self.settings.host,
            port=self.settings.port,
            interface=Interfaces.ASGINL,
            log_enabled=False,
            websockets=False,
            backlog=1024,
            backpressure=_connections_allowed(),
            http1_settings=HTTP1Settings(header_read_timeout=15_000),
        )
        self._serving = asyncio.create_task(server.serve())
        return server

    async def _until(self, stop: asyncio.Event) -> None:
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({stopping, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if self._serving.done() and not stop.is_set():
            self._serving.result()
            raise SettingsError("the HTTP server ended unexpectedly")

    async def _take_down(self, server: Granian) -> None:
        self.telemetry.log.info("stopping")
        await self._stop_loops()
        if not self._serving.done():
            server.stop()
            with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(self._serving, 10)
        await self.store.close()
        self.telemetry.log.info("stopped")


def _connections_allowed() -> int:
    """How many connections are accepted; whoever comes beyond that waits at the door.

    Every idle worker holds one. Accepted without a limit, they would take the files that the database needs.
    """
    try:
        import resource
    except ImportError:  # Windows
        return _MOST_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_CONNECTIONS + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        wanted = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(64, wanted - _OTHER_FILES)


def _reserve(settings: Settings) -> socket.socket:
    """Hold the port until the server takes it: the server shares ports in silence, so a taken one must be noticed here."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(1)
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror}); "
            "is another Everbeat running there? choose another one with --port"
        ) from None
    return listener


class _Watchdog:
    """A thread that notices when the event loop stands still, since nothing inside the loop can."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()
        self._beaten = time.monotonic()
        self._stopped = threading.Event()
        self._beat()
        threading.Thread(target=self._watch, name="everbeat-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _beat(self) -> None:
        self._beaten = time.monotonic()
        if not self._stopped.is_set():
            self._loop.call_later(0.25, self._beat)

    def _watch(self) -> None:
        told = 0.0
        while not self._stopped.wait(0.5):
            age = time.monotonic() - self._beaten
            if age > _BLOCKED_AFTER_SECONDS and age - told > _BLOCKED_AFTER_SECONDS:
                self._telemetry.on_event(EventLoopBlocked(age - told))
                told = age
            elif age < _BLOCKED_AFTER_SECONDS:
                told = 0.0
