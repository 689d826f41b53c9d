"""The engine: builds the services and loops of a node, once, for servers, embedded nodes, test harnesses and API tests.

Services that cause changes and services that react to them are connected by the change publisher, which is built first.
The concrete store, the HTTP server, telemetry and the life cycle of a process belong to server.py.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from uuid import UUID, uuid4

from everbeat.clock import DatabaseClock
from everbeat.config import Settings
from everbeat.core.misfire import Lateness
from everbeat.core.timeline import TimelineCache
from everbeat.delivery.base import HttpOptions
from everbeat.delivery.registry import TargetRegistry
from everbeat.services.absences import AbsenceMonitor
from everbeat.services.alert_evaluator import AlertEvaluator
from everbeat.services.alerts import AlertService
from everbeat.services.archive_files import ArchiveFiles
from everbeat.services.attempts import AttemptEnder
from everbeat.services.audit import AuditService
from everbeat.services.audit_findings import AuditFindingService
from everbeat.services.backfill import BackfillService
from everbeat.services.blobs import BlobStore
from everbeat.services.bulk import BulkRunner, BulkService
from everbeat.services.calendars import CalendarService
from everbeat.services.callbacks import CallbackKey, CallbackService
from everbeat.services.capacity import CapacityService
from everbeat.services.check_changes import CheckPublisher
from everbeat.services.check_evaluator import CheckEvaluator
from everbeat.services.check_explainer import CheckExplainer
from everbeat.services.check_ledger import CheckLedgerService
from everbeat.services.checks import CheckService
from everbeat.services.cluster import ClusterService
from everbeat.services.dead_letters import DeadLetterService
from everbeat.services.deliverer import Deliverer, DeliveryLeases
from everbeat.services.delivery_preparation import WebhookPreparation
from everbeat.services.delivery_reports import DeliveryReports
from everbeat.services.endpoints import EndpointService
from everbeat.services.event_stream import EventRelay, EventStream
from everbeat.services.events import Emit, ignore
from everbeat.services.explainer import Explainer
from everbeat.services.forecast import ForecastService
from everbeat.services.idempotent_responses import IdempotentResponses
from everbeat.services.keys import KeyService
from everbeat.services.lag_history import LagHistory
from everbeat.services.leases import LeaseService
from everbeat.services.ledger import LedgerService
from everbeat.services.live_updates import LiveUpdates
from everbeat.services.long_polls import LongPolls
from everbeat.services.loops import Loop
from everbeat.services.maintenance.archiver import Archive, Archiver
from everbeat.services.maintenance.auditor import Auditor, AuditorSettings
from everbeat.services.maintenance.collector import Collector
from everbeat.services.maintenance.outgoing_heartbeat import OutgoingHeartbeat
from everbeat.services.maintenance.pruner import Pruner
from everbeat.services.maintenance.roll_up import RollUp
from everbeat.services.overlap import OverlapReleaser
from everbeat.services.ownership import Ownership
from everbeat.services.pauses import PauseService
from everbeat.services.payloads import LargePayloads
from everbeat.services.pings import PingService
from everbeat.services.promoter import Promoter
from everbeat.services.publisher import ChangePublisher
from everbeat.services.quotas import QuotaService
from everbeat.services.reaper import Reaper
from everbeat.services.sampler import Sampler
from everbeat.services.schedule_counts import ScheduleCounts
from everbeat.services.schedules import ScheduleService
from everbeat.services.schema import SchemaGuard
from everbeat.services.service_levels import ServiceLevels, SliCounter
from everbeat.services.target_rules import TargetRulesOfTenants
from everbeat.services.tasks import TaskService
from everbeat.services.tenants import TenantDirectory, TenantService
from everbeat.services.ticker import Ticker, TickerSettings
from everbeat.services.time_zones import TimeZoneWatcher
from everbeat.services.tracing import ExportSpan, TaskTracer
from everbeat.services.workers import WorkerDirectory, WorkerRecorder
from everbeat.store.base import Store
from everbeat.store.values import NodeHeartbeat
from everbeat.version import __version__

# How often long polls check for ready tasks without a notice. Processes that share an SQLite file send each other no notices.
_POLL_INTERVAL_SECONDS = {"postgres": 1.0, "sqlite": 0.2}


class Engine:
    """All services and loops of a node. Nothing runs until the loops are started.

    Ownership, quotas and the overlap releaser also use the monotonic time of the clock, so that tests can control it.
    """

    def __init__(
        self,
        store: Store,
        clock: DatabaseClock,
        settings: Settings,
        *,
        blobs: BlobStore | None = None,
        emit: Emit = ignore,
        random_fraction: Callable[[], float] = random.random,
        ticker_settings: TickerSettings | None = None,
        registry: TargetRegistry | None = None,
        export_span: ExportSpan | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.settings = settings
        self.blobs = blobs or BlobStore(None)
        self.level_counter = SliCounter(settings, emit)
        self._emit = emit = self.level_counter.emit
        self._random_fraction = random_fraction
        self.registry = registry or TargetRegistry(
            settings.brokers, node_name=settings.node_name, http=_http_options(settings, clock)
        )
        self.timelines = TimelineCache()
        self.event_stream = EventStream(store)
        self.live_updates = LiveUpdates(self.event_stream)
        self.tracer = None if export_span is None else TaskTracer(export_span, ratio=settings.trace_ratio)
        self.publisher = ChangePublisher(store, emit=emit, event_stream=self.event_stream, tracer=self.tracer)
        self.directory = TenantDirectory(store)
        self.target_rules = TargetRulesOfTenants(settings.brokers, self.registry, self.directory, settings.webhook_rules)
        self.quotas = QuotaService(store, self.directory, monotonic=clock.monotonic)
        self._build_tasks()
        self._build_schedules()
        self._build_checks()
        self._build_administration()
        self._build_deliveries()
        self._build_loops(ticker_settings or _ticker_settings(settings))

    def _build_tasks(self) -> None:
        store, publisher, total_seconds = self.store, self.publisher, self.settings.task_total_seconds
        payloads = LargePayloads(self.blobs)
        self.attempts = AttemptEnder(store, publisher)
        self.workers = WorkerDirectory(store)
        recorder_store = store.pool("maintenance")
        self.worker_recorder = WorkerRecorder(recorder_store, self.settings.node_name, monotonic=self.clock.monotonic)
        self.long_polls = LongPolls(
            store,
            publisher,
            self.attempts.release_claimed,
            poll_interval_seconds=_POLL_INTERVAL_SECONDS[store.dialect],
            total_seconds=total_seconds,
            directory=self.directory,
        )
        self.leases = LeaseService(
            store,
            self.long_polls,
            self.attempts,
            publisher,
            total_seconds=total_seconds,
            payloads=payloads,
            random_fraction=self._random_fraction,
            recorder=self.worker_recorder,
            tracer=self.tracer,
        )
        self.tasks = TaskService(
            store,
            self.long_polls,
            publisher,
            payloads=payloads,
            quotas=self.quotas,
            rules_of=self.target_rules.of,
        )
        self.dead_letters = DeadLetterService(store, self.tasks, publisher, payloads=payloads)

    def _build_schedules(self) -> None:
        store, timelines, late_seconds = self.store, self.timelines, self.settings.late_after_seconds
        self.schedules = ScheduleService(store, timelines, self.publisher, self.quotas, rules_of=self.target_rules.of)
        self.calendars = CalendarService(store, self.schedules)
        self.endpoints = EndpointService(store, rules_of=self.target_rules.of)
        self.alerts = AlertService(store, rules_of=self.target_rules.of)
        self.backfill = BackfillService(store, self.schedules, self.tasks, timelines)
        self.ledger = LedgerService(store, timelines, late_seconds=late_seconds)
        ledger_days = self.settings.ledger_retention_days or self.settings.retention_days
        self.audit = AuditService(store, timelines, late_seconds=late_seconds, retention_days=ledger_days)
        self.findings = AuditFindingService(store)
        self.forecast = ForecastService(store, timelines)
        self.explainer = Explainer(
            store,
            self.schedules,
            self.tasks,
            timelines,
            late_seconds=late_seconds,
            retention_days=ledger_days,
            workers=self.workers,
            directory=self.directory,
        )

    def _build_checks(self) -> None:
        store, timelines = self.store, self.timelines
        publisher = CheckPublisher(emit=self._emit, event_stream=self.event_stream)
        self.checks = CheckService(store, timelines, publisher, self.quotas)
        rate = self.settings.check_pings_per_second
        self.pings = PingService(store, timelines, publisher, per_second=rate, monotonic=self.clock.monotonic)
        self.check_ledger = CheckLedgerService(store, timelines)
        self.check_explainer = CheckExplainer(self.checks, self.check_ledger)
        self.check_evaluator = CheckEvaluator(store.pool("maintenance"), timelines, publisher)

    def _build_administration(self) -> None:
        self.cluster = ClusterService(self.store)
        self.schedule_counts = ScheduleCounts(self.store)
        self.capacity = CapacityService(self.store, self.forecast)
        self.lag_history = LagHistory(self.store.pool("maintenance"))
        self.tenants = TenantService(self.store)
        self.pauses = PauseService(self.store, emit=self._emit)
        self.bulk = BulkService(self.store)
        self.keys = KeyService(self.store)
        self.idempotent_responses = IdempotentResponses(self.store)

    def _build_deliveries(self) -> None:
        store, settings = self.store.pool("engine"), self.settings
        reports = DeliveryReports(
            store,
            self.leases,
            self.attempts,
            self.schedules,
            total_seconds=settings.task_total_seconds,
            random_fraction=self._random_fraction,
        )
        key = CallbackKey(store)
        self.callbacks = CallbackService(store, key, self.leases)
        self.deliverer = Deliverer(
            store,
            self.publisher,
            self.leases,
            reports,
            self.registry,
            self.directory,
            worker=f"everbeat:{settings.node_name}"[:200],
            slots=settings.delivery_concurrency,
            poll_interval_seconds=_POLL_INTERVAL_SECONDS[store.dialect],
            total_seconds=settings.task_total_seconds,
            preparation=WebhookPreparation(
                store,
                key,
                callback_url=settings.callback_url,
                max_concurrent=settings.webhook_max_concurrent,
                may_use=self.target_rules.may_use,
            ),
            event_stream=self.event_stream,
            monotonic=self.clock.monotonic,
            emit=self._emit,
            tracer=self.tracer,
        )
        self.delivery_leases = DeliveryLeases(self.deliverer.renew_leases)

    def _build_loops(self, ticker_settings: TickerSettings) -> None:
        settings = self.settings
        heartbeat = NodeHeartbeat(uuid4(), settings.node_name, settings.roles, __version__, settings.lease_seconds)
        self._build_firing(heartbeat, ticker_settings)
        self._build_task_loops()
        self._build_auditor(heartbeat.id)
        self._build_maintenance(heartbeat.id)

    def _build_firing(self, heartbeat: NodeHeartbeat, ticker_settings: TickerSettings) -> None:
        settings, emit, clock = self.settings, self._emit, self.clock
        engine, maintenance = self.store.pool("engine"), self.store.pool("maintenance")
        self.schema_guard = SchemaGuard(maintenance, emit=emit)
        self.time_zones = TimeZoneWatcher(maintenance, self.schedules, self.timelines, emit=emit)
        self.ownership = Ownership(
            self.store,
            heartbeat,
            clock,
            margin_seconds=settings.lease_margin_seconds,
            behind_after_seconds=settings.behind_after_seconds,
            emit=emit,
            event_stream=self.event_stream,
            monotonic=clock.monotonic,
            deliveries=self.deliverer.state if "dispatcher" in settings.roles else None,
        )
        self.ticker = Ticker(
            engine,
            self.ownership,
            clock,
            self.timelines,
            self.publisher,
            settings=ticker_settings,
            emit=emit,
            event_stream=self.event_stream,
            quotas=self.quotas,
        )
        self.ownership.measure_lag = self.ticker.take_lag

    def _build_task_loops(self) -> None:
        settings, clock = self.settings, self.clock
        engine, maintenance = self.store.pool("engine"), self.store.pool("maintenance")
        self.promoter = Promoter(engine, self.publisher, clock)
        self.overlap = OverlapReleaser(maintenance, self.publisher, monotonic=clock.monotonic)
        self.reaper = Reaper(
            maintenance,
            self.publisher,
            total_seconds=settings.task_total_seconds,
            random_fraction=self._random_fraction,
        )
        self.bulk_runner = BulkRunner(
            maintenance, self.schedules, self.tasks, self.backfill, lease_seconds=settings.lease_seconds
        )

    def _build_auditor(self, node_id: UUID) -> None:
        settings, emit, maintenance = self.settings, self._emit, self.store.pool("maintenance")
        late_seconds = settings.late_after_seconds + settings.lease_seconds + settings.scan_seconds
        self.auditor = Auditor(
            maintenance,
            node_id,
            self.timelines,
            settings=AuditorSettings(settings.audit_interval_seconds, late_seconds, settings.lease_seconds),
            emit=emit,
            event_stream=self.event_stream,
        )
        self.heartbeat = None
        if settings.heartbeat_url is not None:
            self.heartbeat = OutgoingHeartbeat(
                maintenance,
                node_id,
                settings.heartbeat_url,
                interval_seconds=settings.heartbeat_interval_seconds,
                audit_interval_seconds=settings.audit_interval_seconds,
                emit=emit,
            )
        self.roll_up = RollUp(
            maintenance,
            node_id,
            self.timelines,
            periods=settings.retention_periods,
            kept_days=settings.audit_retention_days,
            late_seconds=late_seconds,
            interval_seconds=settings.audit_interval_seconds,
            emit=emit,
            event_stream=self.event_stream,
        )

    def _build_maintenance(self, node_id: UUID) -> None:
        settings, emit, clock, maintenance = self.settings, self._emit, self.clock, self.store.pool("maintenance")
        self.sampler = Sampler(maintenance, emit=emit)
        self.service_levels = ServiceLevels(
            maintenance,
            node_id,
            self.level_counter,
            clock,
            is_scheduler="scheduler" in settings.roles,
            emit=emit,
            monotonic=clock.monotonic,
        )
        self.alert_evaluator = AlertEvaluator(
            maintenance,
            self.ownership,
            self.timelines,
            self.publisher,
            public_url=settings.callback_url,
            event_stream=self.event_stream,
            emit=emit,
            interval_seconds=settings.alert_interval_seconds,
        )
        self.absences = AbsenceMonitor(maintenance, self.ownership, emit=emit)
        self.pruner = Pruner(
            maintenance,
            self.ownership,
            settings.retention_periods,
            drops_months=settings.archive_url is None,
            collector=Collector(maintenance, self.blobs),
            emit=emit,
        )

    def _archiver(self, archive_url: str) -> Archiver:
        settings, store = self.settings, self.store.pool("maintenance")
        files = ArchiveFiles(archive_url, endpoint=settings.archive_endpoint)
        return Archiver(Archive(store, files, settings.retention_periods, emit=self._emit), self.ownership)

    def loops(self) -> list[Loop]:
        """Return the loops that a node with these roles runs. A node without roles runs only the schema guard."""
        roles = self.settings.roles
        if not roles:
            return [self.schema_guard]
        loops: list[Loop] = [self.schema_guard, self.ownership, self.directory, self.long_polls, self.overlap]
        loops += [self.service_levels, self.worker_recorder, self.time_zones, self.auditor, self.roll_up]
        if self.heartbeat is not None:
            loops.append(self.heartbeat)
        if self.event_stream.receives_other_nodes:
            loops.append(EventRelay(self.store.pool("maintenance"), self.event_stream))
        if "api" in roles:
            loops.append(self.lag_history)
        if "scheduler" in roles:
            loops += [self.ticker, self.promoter, self.reaper, self.absences, self.pruner, self.bulk_runner]
            loops.append(self.alert_evaluator)
            loops.append(self.sampler)
            if self.settings.archive_url is not None:
                loops.append(self._archiver(self.settings.archive_url))
            loops.append(self.check_evaluator)
        if "dispatcher" in roles:
            loops += [self.deliverer, self.delivery_leases]
        return loops


def _http_options(settings: Settings, clock: DatabaseClock) -> HttpOptions:
    return HttpOptions(
        settings.webhook_rules,
        settings.webhook_max_concurrent,
        settings.webhook_timeout_seconds,
        settings.webhook_ca_file,
        settings.webhook_client_certificate,
        settings.webhook_client_key,
        # The receivers compare the time of the signature with their own clock. A node's clock may be wrong.
        lambda: clock.now().timestamp() if clock.is_set else time.time(),
    )


def _ticker_settings(settings: Settings) -> TickerSettings:
    return TickerSettings(
        horizon_seconds=settings.horizon_seconds,
        scan_seconds=settings.scan_seconds,
        batch_size=settings.batch_size,
        lag_alert_seconds=settings.lag_alert_seconds,
        lateness=Lateness(settings.late_after_seconds, settings.catch_up_rate),
    )
