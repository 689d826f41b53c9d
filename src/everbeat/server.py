"""The composition root: builds, starts and stops a node. The only module that depends on concrete stores."""

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
from everbeat.api.body_checks import BodyChecks
from everbeat.api.body_limits import BodyLimits
from everbeat.api.response_limits import ResponseLimits
from everbeat.api.startup_gate import StartupGate
from everbeat.clock import DatabaseClock
from everbeat.config import Settings
from everbeat.core.addresses import parse_networks
from everbeat.core.errors import EverbeatError, SettingsError, StoreUnavailable
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
from everbeat.store.migrate import SchemaVersion, check_schema
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.sqlite.store import SqliteStore
from everbeat.telemetry import NodeState, Telemetry
from everbeat.telemetry.traces import SpanExporter
from everbeat.watchdog import Watchdog
from everbeat.web.site import Site

_STUCK_AFTER_SECONDS = 45.0
_VITAL_LOOPS = ("ownership", "ticker")
_STOP_LOOP_SECONDS = 2.0
_SCHEMA_CHECK_SECONDS = 0.5
_STOP_SERVER_SECONDS = 10.0
_STOP_DELIVERIES_SECONDS = 10.0
# The loops that change no schedules or tasks. They continue while a newer schema has stopped the others.
_READING_LOOPS = ("access", "directory", "relay", "schema")


def make_store(settings: Settings, telemetry: Telemetry | None = None) -> Store:
    observer = None if telemetry is None else telemetry.observe_store
    if settings.database_url.startswith("sqlite:///"):
        path = Path(settings.database_url.removeprefix("sqlite:///"))
        if not path.parent.is_dir():
            raise SettingsError(f"the folder {path.parent} of the SQLite file does not exist; create it first")
        if path.is_dir():
            raise SettingsError(f"settings: database_url names the folder {path}; add the name of a file")
        return SqliteStore(path, observer=observer)
    can_listen = settings.database_pooling == "session" or settings.database_listen_url is not None
    if settings.database_notices and not can_listen and telemetry is not None:
        telemetry.log.warning("notices_are_off", why="LISTEN requires a session; set database_listen_url to bypass the pooler")
    return PostgresStore(
        settings.database_url,
        listen=settings.database_notices and can_listen and bool(settings.roles),
        listen_url=settings.database_listen_url,
        pooling=settings.database_pooling,
        observer=observer,
        api_connections=settings.database_connections,
        timeout_seconds=settings.database_timeout_seconds,
        lease_timeout_seconds=settings.lease_timeout_seconds,
        idle_transaction_seconds=settings.idle_transaction_seconds,
    )


def make_blobs(settings: Settings, telemetry: Telemetry) -> BlobStore:
    blobs = BlobStore(
        settings.blob_location, endpoint=settings.blob_endpoint, emit=telemetry.on_event, observer=telemetry.observe_store
    )
    blobs.check()
    if not blobs.is_configured:
        telemetry.log.info("no_blob_store", meaning="payloads above 64 KiB are refused; set blob_url to accept them")
    return blobs


def make_span_exporter(settings: Settings) -> SpanExporter | None:
    if settings.otlp_endpoint is None:
        return None
    return SpanExporter(settings.otlp_endpoint, service="everbeat", node_name=settings.node_name)


class EmbeddedNode:
    """A node without an HTTP port, embedded in another process.

    Without roles it runs no loops: it can read and submit, but it fires no ticks and serves no long polls.
    """

    def __init__(self, settings: Settings, *, extra: Callable[[Self], list[Loop]] | None = None):
        self.settings = settings
        self.telemetry = Telemetry()
        self.store = make_store(settings, self.telemetry)
        self.loop_monitor = LoopMonitor()
        self.is_ready = False
        self._schema_check: asyncio.Task[SchemaVersion] | None = None
        self._schema_checked_at = 0.0
        load_zone("UTC")  # loads the list of all zones, so that the first request does not have to
        blobs = make_blobs(settings, self.telemetry)
        self._spans = make_span_exporter(settings)
        self.engine = Engine(
            self.store,
            DatabaseClock(),
            settings,
            blobs=blobs,
            emit=self.telemetry.on_event,
            export_span=None if self._spans is None else self._spans.export,
        )
        self.engine.capacity.slow_calls = self.telemetry.call_times.slowest
        self.engine.schema_guard.on_newer = self._on_newer_schema
        self.telemetry.metrics.node.state = NodeState(
            self.engine.ticker.evaluation_lag,
            self.store.pool_use,
            self.engine.deliverer.destinations.breaker_counts,
            self.engine.level_counter.objectives,
            self.engine.level_counter.counts,
        )
        self._halting: asyncio.Task[None] | None = None
        self._loops = self.engine.loops()
        if extra is not None:
            self._loops += extra(self)
        self.access = self._make_access()
        if self.access is not None:
            self._loops.append(self.access)
        self._runners: list[LoopRunner] = []
        self._body_checks = BodyChecks()
        self.asgi: Any = build_app(self._api_context(), only_health=self._serves_only_health(), pages=Site())

    def _serves_only_health(self) -> bool:
        """Whether the API is limited to health and metrics. Not for an embedded node: its process may use the whole API."""
        return False

    def _make_access(self) -> Authenticator | None:
        """Return the authenticator. An embedded node has none, because calls in the same process need no key."""
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
            body_checks=self._body_checks,
            response_limits=ResponseLimits(),
        )

    # Called directly by clients in this process

    @property
    def tasks(self) -> TaskService:
        self.engine.schema_guard.check()
        return self.engine.tasks

    @property
    def leases(self) -> LeaseService:
        self.engine.schema_guard.check()
        return self.engine.leases

    # Health

    def health(self) -> Health:
        """Return whether the node is alive: the ticker and ownership loops have completed an iteration recently."""
        ages = {loop: round(age, 3) for loop, age in self.loop_monitor.ages().items() if loop in _VITAL_LOOPS}
        if self.engine.schema_guard.is_newer:  # a restart of the same version would not help
            return Health(True, {"loops": ages})
        problems = [self.loop_monitor.problem(loop, _STUCK_AFTER_SECONDS) for loop in _VITAL_LOOPS]
        reason = "; ".join(problem for problem in problems if problem is not None)
        return Health(False, {"reason": reason, "loops": ages}) if reason else Health(True, {"loops": ages})

    async def ready(self) -> Health:
        """Return whether the node is ready: the database responds and is migrated, and the ownership lease is fresh."""
        try:
            schema = await self._schema_version()
        except EverbeatError as error:
            # /readyz needs no key. The error may say where the database is, so it is shown only on a server without keys.
            is_public = self.access is not None and self.access.is_required
            return Health(False, {"database": "unavailable" if is_public else str(error)})
        owns = len(self.engine.ownership.current())
        database = "ok" if schema.is_usable else "older" if schema.is_older else "newer"
        detail = {"database": database, "migration": schema.version, "needed": schema.needed, "partitions": owns}
        return Health(self.is_ready and schema.is_usable and self.engine.ownership.has_fresh_lease, detail)

    async def _schema_version(self) -> SchemaVersion:
        """Return the schema version of the database, and the required one. They are queried at most twice a second."""
        now = time.monotonic()
        if self._schema_check is None or (self._schema_check.done() and now - self._schema_checked_at >= _SCHEMA_CHECK_SECONDS):
            self._schema_checked_at = now
            self._schema_check = asyncio.create_task(self.store.schema_version())
        return await asyncio.shield(self._schema_check)

    # Start and stop

    async def start(self) -> None:
        """Open the store, check or migrate its schema, and start the loops. Wait for the database if it is unavailable."""
        await self.store.open()
        await self._prepare(asyncio.Event())
        self._run_loops()

    async def stop(self) -> None:
        """Stop the loops and release ownership, so that other nodes can take over, and close the store."""
        await self._stop_loops()
        self._body_checks.close()
        await self._close_spans()
        await self.store.close()

    async def _close_spans(self) -> None:
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)

    def _run_loops(self) -> None:
        self._runners = [LoopRunner(loop, self.telemetry.on_event, self.loop_monitor) for loop in self._loops]
        self.is_ready = True

    def _on_newer_schema(self) -> None:
        self._halting = asyncio.create_task(self._stop_loops(_READING_LOOPS))

    async def _stop_loops(self, kept: tuple[str, ...] = ()) -> None:
        """Stop the loops, except those to be kept, and release ownership, so that other nodes can take over."""
        self.is_ready = False
        if self._halting is not None and not kept:
            await self._halting
        self.engine.event_stream.close()
        stopped = [runner for runner in self._runners if runner.name not in kept]
        self._runners = [runner for runner in self._runners if runner.name in kept]
        await asyncio.gather(*(runner.stop(_STOP_LOOP_SECONDS) for runner in stopped))
        if stopped:
            with contextlib.suppress(EverbeatError, TimeoutError):
                await asyncio.wait_for(self.engine.ownership.stop(), 3)
            with contextlib.suppress(EverbeatError, TimeoutError):
                await self.engine.deliverer.stop(_STOP_DELIVERIES_SECONDS)

    async def _prepare(self, stop: asyncio.Event) -> None:
        """Wait until the database is available. Migrate it if it is empty or may be migrated; otherwise it must be current."""
        while not stop.is_set():
            try:
                schema = await self.store.schema_version()
                if schema.version == 0 or (schema.is_older and self._may_migrate()):
                    for name in await self.store.migrate():
                        self.telemetry.log.info("migrated", migration=name)
                    schema = await self.store.schema_version()
            except StoreUnavailable as error:
                self._on_waiting(error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), 1)
                continue
            check_schema(schema)
            return

    def _may_migrate(self) -> bool:
        """Whether an older database is migrated at start. An SQLite file usually belongs to the app that embeds the node."""
        return self.settings.migrate or self.store.dialect == "sqlite"

    def _on_waiting(self, error: StoreUnavailable) -> None:
        self.telemetry.log.warning("waiting_for_database", error=str(error))


class Node(EmbeddedNode):
    """A server process: a node with an HTTP port, and with the roles `api`, `scheduler` or both."""

    def _serves_only_health(self) -> bool:
        return "api" not in self.settings.roles

    def _may_migrate(self) -> bool:
        return self.settings.migrate

    @functools.cached_property
    def _startup_gate(self) -> StartupGate:
        return StartupGate(self.asgi)

    async def run(self, stop: asyncio.Event, on_started: Callable[[Self], Awaitable[None]] | None = None) -> None:
        """Run the node until `stop` is set."""
        auth_settings = self._auth_settings()
        try:
            if auth_settings.needs_database_check:  # do not listen before it is certain that this is allowed
                await self._connect(stop, auth_settings)
            server = self._start_server()
        except BaseException:
            await self.store.close()
            raise
        watchdog = Watchdog(self.telemetry.on_event, self.loop_monitor)
        try:
            if not auth_settings.needs_database_check:
                await self._connect(stop, auth_settings)
            if stop.is_set():
                return
            self._run_loops()
            self._startup_gate.is_open = True
            self._log_started()
            if on_started is not None:
                await on_started(self)
            await self._wait_for_stop(stop)
        finally:
            watchdog.stop()
            await self._shut_down(server)

    def _log_started(self) -> None:
        gc.freeze()
        # The tick loop waits for garbage collections. With the default threshold of 700 objects they take too much of the time
        # in all; with a much higher one, a single collection takes too long while thousands of connections are opened.
        gc.set_threshold(5_000, 4, 250)
        # Threads render pages of the dashboard and write to SQLite. With the default interval, the event loop would wait 5 ms
        # for the GIL while a page is rendered, and the writer 5 ms after every row while the event loop is busy.
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
        # /readyz needs no key. The error may say where the database is, so it is shown only to local clients.
        self._startup_gate.database_status = str(error) if self.settings.is_loopback else "unavailable"

    def _start_server(self) -> HttpServer:
        server = HttpServer(self._startup_gate, self.settings)
        self._server_task = asyncio.create_task(server.serve(listen(self.settings)))
        return server

    # Keys

    def _make_access(self) -> Authenticator | None:
        proxies = parse_networks(self.settings.trusted_proxies)
        emit = self.telemetry.on_event
        return Authenticator(self.store, KeySessions(), self._limits(False), trusted_proxies=proxies, emit=emit)

    def _limits(self, is_required: bool) -> RequestLimits:
        settings = self.settings
        rates = RequestRates(
            settings.key_requests_per_second, settings.address_requests_per_second, settings.bad_keys_per_second
        )
        return RequestLimits(rates.with_defaults() if is_required else rates, max_polls_per_key=settings.max_polls_per_key)

    def _auth_settings(self) -> AuthSettings:
        settings = self.settings
        file = None if settings.admin_key_file is None else Path(settings.admin_key_file)
        return AuthSettings(settings.auth, file, settings.host, settings.is_loopback)

    async def _connect(self, stop: asyncio.Event, auth_settings: AuthSettings) -> None:
        """Connect to the database, check or migrate its schema, and decide whether keys are required."""
        await self.store.open()
        if auth_settings.needs_database_check:
            with contextlib.suppress(StoreUnavailable):
                if (await self.store.schema_version())[0] == 0:
                    raise keys_required_error(auth_settings.host)
        while not stop.is_set():
            await self._prepare(stop)
            if stop.is_set():  # the database has never been available, so it may have no tables
                return
            with contextlib.suppress(StoreUnavailable):
                self._enforce(await decide_auth(self.store, auth_settings))
                return

    def _enforce(self, decision: AuthDecision) -> None:
        log, settings = self.telemetry.log, self.settings
        if self.access is not None:
            self.access.is_required = decision.is_required
            self.access.limits = self._limits(decision.is_required)
        if decision.new_key is not None:
            sys.stdout.write(
                "The first API key of this database, with the scope admin. It is shown only this once:\n"
                f"{decision.new_key.text}\n"
            )
            sys.stdout.flush()
        if decision.used_file is not None:
            log.info("first_admin_key", file=str(decision.used_file))
        if decision.unused_file is not None:
            log.warning("admin_key_file_is_not_used", file=str(decision.unused_file), why="the database already has other keys")
        if decision.exposed_file is not None:
            hint = f"other users of this machine can read it; run: chmod 600 {decision.exposed_file}"
            log.warning("admin_key_file_is_exposed", file=str(decision.exposed_file), why=hint)
        if not settings.is_loopback and settings.tls_certificate is None:
            why = "keys and payloads can be read in transit; set tls_certificate and tls_key, or use a proxy with TLS"
            log.warning("listening_without_tls", host=settings.host, why=why)

    async def _wait_for_stop(self, stop: asyncio.Event) -> None:
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({stopping, self._server_task}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if self._server_task.done() and not stop.is_set():
            self._server_task.result()
            raise SettingsError("the HTTP server ended unexpectedly")

    async def _shut_down(self, server: HttpServer) -> None:
        self.telemetry.log.info("stopping")
        await self._stop_loops()
        self._server_task.cancel()
        await asyncio.wait({self._server_task})
        await server.stop(_STOP_SERVER_SECONDS)
        await self.engine.long_polls.close()  # again, for claims of requests that the server has cancelled
        self._body_checks.close()
        await self._close_spans()
        await self.store.close()
        self.telemetry.log.info("stopped")
