"""The composition root: the only file that knows concrete stores. Builds a node, runs it, and takes it down in order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

from everbeat.api.app import ApiContext, Health, build_app
from everbeat.api.body_limits import BodyLimits
from everbeat.api.startup_gate import StartupGate
from everbeat.clock import DatabaseClock
from everbeat.config import Settings
from everbeat.core.addresses import parse_networks
from everbeat.core.errors import EverbeatError, SettingsError, StoreUnavailable, StoreUnusable
from everbeat.core.zones import load_zone
from everbeat.engine import Engine
from everbeat.services.access import Authenticator
from everbeat.services.blobs import BlobStore
from everbeat.services.bootstrap import AuthDecision, AuthSettings, decide_auth, keys_required_error
from everbeat.services.leases import LeaseService
from everbeat.services.loops import Loop, LoopMonitor, LoopRunner
from everbeat.services.rate_limits import RequestLimits, RequestRates
from everbeat.services.sessions import KeySessions
from everbeat.services.tasks import TaskService
from everbeat.serving import HttpServer, listen
from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.sqlite.store import SqliteStore
from everbeat.telemetry import Telemetry
from everbeat.watchdog import Watchdog

_STUCK_AFTER_SECONDS = 45.0
_WAIT_SECONDS = 2.0
_READY_SECONDS = 0.5
_STOP_SECONDS = 10.0


def make_store(settings: Settings, telemetry: Telemetry | None = None) -> Store:
    observer = None if telemetry is None else telemetry.observe_store
    if settings.database_url.startswith("sqlite:///"):
        path = Path(settings.database_url.removeprefix("sqlite:///"))
        if not path.parent.is_dir():
            raise SettingsError(f"the folder {path.parent} of the SQLite file does not exist; create it first")
        return SqliteStore(path, observer=observer)
    can_listen = settings.database_pooling == "session" or settings.database_listen_url is not None
    if settings.database_notices and not can_listen and telemetry is not None:
        telemetry.log.warning("notices_are_off", why="LISTEN needs a session; set database_listen_url to PostgreSQL itself")
    return PostgresStore(
        settings.database_url,
        listen=settings.database_notices and can_listen and bool(settings.roles),
        listen_url=settings.database_listen_url,
        pooling=settings.database_pooling,
        observer=observer,
        api_connections=settings.database_connections,
        timeout_seconds=settings.database_timeout_seconds,
        lease_timeout_seconds=settings.lease_timeout_seconds,
    )


def make_blobs(settings: Settings, telemetry: Telemetry) -> BlobStore:
    blobs = BlobStore(
        settings.blob_location, endpoint=settings.blob_endpoint, emit=telemetry.on_event, observer=telemetry.observe_store
    )
    blobs.check()
    if not blobs.is_there:
        telemetry.log.info("no_blob_store", meaning="payloads above 64 KiB are refused; set blob_url to take them")
    return blobs


class EmbeddedNode:
    """A node without a port: the engine and the rooms, for a process that has its own business besides.

    Without roles it has no loops either: good for asking and submitting, and nothing fires or waits in it.
    """

    def __init__(self, settings: Settings, *, auto_migrate: bool = True, extra: Callable[[Self], list[Loop]] | None = None):
        self.settings = settings
        self.telemetry = Telemetry()
        self.store = make_store(settings, self.telemetry)
        self.loop_monitor = LoopMonitor()
        self.is_ready = False
        self._looking: asyncio.Task[tuple[int, int]] | None = None
        self._looked_at = 0.0
        self._auto_migrate = auto_migrate
        load_zone("UTC")  # lists all zones once, so that the first request does not have to
        blobs = make_blobs(settings, self.telemetry)
        self.engine = Engine(self.store, DatabaseClock(), settings, blobs=blobs, emit=self.telemetry.on_event)
        self._loops = self.engine.loops()
        if extra is not None:
            self._loops += extra(self)
        self.access = self._make_access()
        if self.access is not None:
            self._loops.append(self.access)
        self._runners: list[LoopRunner] = []
        self.asgi: Any = build_app(self._api_context(), only_health=self._shows_only_health())

    def _shows_only_health(self) -> bool:
        """In process, whoever has the node may ask it everything."""
        return False

    def _make_access(self) -> Authenticator | None:
        """In process, nobody is asked for a key."""
        return None

    def _api_context(self) -> ApiContext:
        return ApiContext.from_engine(
            self.engine,
            health=self.health,
            ready=self.ready,
            metrics=self.telemetry.exposition,
            allowed_hosts=frozenset({"localhost", "127.0.0.1", "[::1]", self.settings.host}),
            access=self.access,
            body_limits=BodyLimits(self.settings.body_deadline_seconds),
        )

    # What clients in this process call directly

    @property
    def tasks(self) -> TaskService:
        return self.engine.tasks

    @property
    def leases(self) -> LeaseService:
        return self.engine.leases

    # Health

    def health(self) -> Health:
        """Alive: every loop of the engine has gone round lately."""
        ages = {loop: round(age, 3) for loop, age in self.loop_monitor.ages().items() if loop in ("ticker", "ownership")}
        return Health(all(age < _STUCK_AFTER_SECONDS for age in ages.values()), {"loops": ages})

    async def ready(self) -> Health:
        """Ready: the database answers, it is migrated, and the engine has heard from its lease."""
        try:
            version, needed = await self._schema_version()
        except EverbeatError as error:
            # Anybody may ask this: where the database is, is told to those at the machine only.
            is_public = self.access is not None and self.access.is_required
            return Health(False, {"database": "away" if is_public else str(error)})
        is_migrated = version >= needed
        owns = len(self.engine.ownership.current())
        detail = {"database": "ok", "migration": version, "needed": needed, "partitions": owns}
        return Health(self.is_ready and is_migrated and self.engine.ownership.has_fresh_lease, detail)

    async def _schema_version(self) -> tuple[int, int]:
        """Asked of the database at most twice a second, however many want to know."""
        now = time.monotonic()
        if self._looking is None or (self._looking.done() and now - self._looked_at >= _READY_SECONDS):
            self._looked_at = now
            self._looking = asyncio.create_task(self.store.schema_version())
        return await asyncio.shield(self._looking)

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
        self._runners = [LoopRunner(loop, self.telemetry.on_event, self.loop_monitor) for loop in self._loops]
        self.is_ready = True

    async def _stop_loops(self) -> None:
        self.is_ready = False
        self.engine.event_stream.close()
        await asyncio.gather(*(runner.stop(_WAIT_SECONDS) for runner in self._runners))
        has_run, self._runners = bool(self._runners), []
        if has_run:
            with contextlib.suppress(EverbeatError, TimeoutError):
                await asyncio.wait_for(self.engine.ownership.stop(), 3)

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
                self._on_waiting(error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), 1)
                continue
            if version < needed:
                raise StoreUnusable(
                    f"the database is at migration {version}, this Everbeat needs {needed}; run: everbeat migrate"
                )
            return

    def _on_waiting(self, error: StoreUnavailable) -> None:
        self.telemetry.log.warning("waiting_for_database", error=str(error))


class Node(EmbeddedNode):
    """One server process: the API, the engine, or both, on one store, with a port of its own."""

    def _shows_only_health(self) -> bool:
        return "api" not in self.settings.roles

    @functools.cached_property
    def _startup_gate(self) -> StartupGate:
        return StartupGate(self.asgi)

    async def run(self, stop: asyncio.Event, on_started: Callable[[Self], Awaitable[None]] | None = None) -> None:
        """Run until told to stop."""
        auth_settings = self._terms()
        try:
            if auth_settings.needs_database_check:  # nothing listens before it is known that this server may
                await self._settle(stop, auth_settings)
            server = self._serve()
        except BaseException:
            await self.store.close()
            raise
        watchdog = Watchdog(self.telemetry.on_event)
        try:
            if not auth_settings.needs_database_check:
                await self._settle(stop, auth_settings)
            if stop.is_set():
                return
            self._run_loops()
            self._startup_gate.is_open = True
            self._log_started()
            if on_started is not None:
                await on_started(self)
            await self._until(stop)
        finally:
            watchdog.stop()
            await self._take_down(server)

    def _log_started(self) -> None:
        gc.freeze()
        # A body of many small objects is decoded in one go: collecting garbage every 700 of them takes three times as long as
        # decoding, and the tick loop waits for it.
        gc.set_threshold(50_000, 20, 50)
        if self.store.dialect == "sqlite":
            # The writer thread asks for the interpreter after every row; by default it would wait 5 ms for it each time
            # that the event loop is busy.
            sys.setswitchinterval(0.0002)
        self.telemetry.log.info(
            "everbeat_started",
            roles=list(self.settings.roles),
            node=str(self.engine.ownership.node_id),
            store=self.store.dialect,
            keys="required" if self.access is not None and self.access.is_required else "not required",
        )

    def _on_waiting(self, error: StoreUnavailable) -> None:
        super()._on_waiting(error)
        # Anybody may ask: where the database is, is told to those at the machine only.
        self._startup_gate.waits_for = str(error) if self.settings.is_loopback else "away"

    def _serve(self) -> HttpServer:
        server = HttpServer(self._startup_gate, self.settings)
        self._serving = asyncio.create_task(server.serve(listen(self.settings)))
        return server

    # Keys

    def _make_access(self) -> Authenticator | None:
        proxies = parse_networks(self.settings.trusted_proxies)
        emit = self.telemetry.on_event
        return Authenticator(self.store, KeySessions(), self._limits(False), trusted_proxies=proxies, emit=emit)

    def _limits(self, is_required: bool) -> RequestLimits:
        settings = self.settings
        given = RequestRates(
            settings.key_requests_per_second, settings.address_requests_per_second, settings.bad_keys_per_second
        )
        return RequestLimits(given.completed() if is_required else given)

    def _terms(self) -> AuthSettings:
        settings = self.settings
        file = None if settings.admin_key_file is None else Path(settings.admin_key_file)
        return AuthSettings(settings.auth, file, settings.host, settings.is_loopback)

    async def _settle(self, stop: asyncio.Event, auth_settings: AuthSettings) -> None:
        """The database is there and as it has to be, and it is decided whether keys are needed."""
        await self.store.open()
        if auth_settings.needs_database_check:
            with contextlib.suppress(StoreUnavailable):
                if (await self.store.schema_version())[0] == 0:
                    raise keys_required_error(auth_settings.host)
        while not stop.is_set():
            await self._prepare(stop)
            with contextlib.suppress(StoreUnavailable):
                self._enforce(await decide_auth(self.store, auth_settings))
                return

    def _enforce(self, decision: AuthDecision) -> None:
        log, settings = self.telemetry.log, self.settings
        if self.access is not None:
            self.access.is_required = decision.is_required
            self.access.limits = self._limits(decision.is_required)
        if decision.shown is not None:
            sys.stdout.write(
                "The first API key of this database, with the scope admin. It is shown only this once:\n"
                f"{decision.shown.text}\n"
            )
            sys.stdout.flush()
        if decision.filed is not None:
            log.info("first_admin_key", file=str(decision.filed))
        if decision.unused is not None:
            log.warning("admin_key_file_is_not_used", file=str(decision.unused), why="the database has other keys already")
        if not settings.is_loopback and settings.tls_certificate is None:
            why = "keys and payloads can be read on the way; set tls_certificate and tls_key, or put a proxy with TLS in front"
            log.warning("listening_without_tls", host=settings.host, why=why)

    async def _until(self, stop: asyncio.Event) -> None:
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({stopping, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if self._serving.done() and not stop.is_set():
            self._serving.result()
            raise SettingsError("the HTTP server ended unexpectedly")

    async def _take_down(self, server: HttpServer) -> None:
        self.telemetry.log.info("stopping")
        await self._stop_loops()
        self._serving.cancel()
        await asyncio.wait({self._serving})
        await server.stop(_STOP_SECONDS)
        await self.store.close()
        self.telemetry.log.info("stopped")
