"""Converts all events into log lines and metrics."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, assert_never

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from everbeat.logs import get_logger
from everbeat.services.events import (
    AttemptEnded,
    BlobCallFailed,
    CapacityChanged,
    CircuitBreakerChanged,
    ClockSetBack,
    DeliveryEnded,
    DeliveryEvent,
    DeliveryKindUnavailable,
    Event,
    EventLoopBlocked,
    LagHigh,
    LoopFailed,
    LoopRan,
    OwnershipChanged,
    OwnershipLost,
    PauseChanged,
    ProxyNotTrusted,
    Pruned,
    RequestRefused,
    RowsLocked,
    ScheduleFaulted,
    SchemaNewer,
    TaskEvent,
    TasksClaimed,
    TasksFinished,
    TasksPromoted,
    TasksSubmitted,
    TasksWithoutWorker,
    TicksAlreadyRecorded,
    TicksFired,
    TicksOverdue,
    TicksRefused,
    TicksSkipped,
    ZonesChanged,
    ZonesOutdated,
)

_LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
_DELIVERY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_CALL_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


# A lock held for less is normal. A longer one is reported at this interval, although it is tried again more often.
_LOCK_WARNING_SECONDS = 1.0
_LOCK_WARNING_INTERVAL_SECONDS = 10.0
_MAX_UNSERVED_LOGGED = 20


def configure_logging(level: str, form: str) -> None:
    """Configure logging to stderr, as console or JSON lines. Both escape line breaks, so that values cannot forge a line."""
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if form == "console" else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([] if form == "console" else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


class _LibraryLogs(logging.Handler):
    """Writes what libraries and asyncio log, such as an exception in a task that is not awaited, in the format of the node."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        structlog.get_logger("everbeat").log(
            record.levelno, "library_log", logger=record.name, message=text, exc_info=record.exc_info or None
        )


def capture_library_logs() -> None:
    """Write the warnings of libraries as structured lines too. For a process that runs no code of users."""
    logging.basicConfig(handlers=[_LibraryLogs(logging.WARNING)], level=logging.WARNING, force=True)
    logging.captureWarnings(True)


class Metrics:
    """The Prometheus metrics of a node."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self.ticks = Counter("everbeat_ticks", "Ticks by outcome and reason", ["outcome", "reason"], registry=registry)
        self.lag = Histogram(
            "everbeat_fire_lag_seconds", "Time from scheduled_for to fired_at", buckets=_LAG_BUCKETS, registry=registry
        )
        self.ticks_refused = Counter("everbeat_ticks_refused", "Firings that a guard refused", registry=registry)
        self.already_recorded = Counter("everbeat_ticks_already_recorded", "Ticks already in the ledger", registry=registry)
        self.rows_locked = Counter(
            "everbeat_rows_locked",
            "Rows that a batch skipped because another transaction had locked them",
            ["verb"],
            registry=registry,
        )
        self.overdue = Gauge("everbeat_overdue_schedules", "Schedules with an overdue tick", registry=registry)
        self.faulted = Counter("everbeat_schedules_faulted", "Schedules paused as faulty", registry=registry)
        self.partitions = Gauge("everbeat_partitions_owned", "Partitions that this node owns", registry=registry)
        self.capacity = Gauge("everbeat_node_capacity", "The part of its usual share of partitions", registry=registry)
        self.capacity.set(1)
        self.nodes = Gauge("everbeat_live_nodes", "Live scheduler nodes", registry=registry)
        self.ownership = Counter("everbeat_ownership_changes", "Partitions gained and lost", ["change"], registry=registry)
        self.schema_newer = Gauge(
            "everbeat_schema_newer", "1 if the database was migrated by a newer version", registry=registry
        )
        self.unserved = Gauge(
            "everbeat_unserved_types",
            "Queues and types with ready tasks for which no live worker asks, by tenant",
            registry=registry,
        )
        self.clock_set_back = Counter("everbeat_clock_set_back", "Times the database clock was set back", registry=registry)
        self.loops = Histogram("everbeat_loop_seconds", "Loop iterations", ["loop"], buckets=_CALL_BUCKETS, registry=registry)
        self.loop_errors = Counter("everbeat_loop_errors", "Failed iterations", ["loop"], registry=registry)
        self.blocked = Counter("everbeat_event_loop_blocked_seconds", "Time the event loop was blocked", registry=registry)
        self.tasks = Counter("everbeat_tasks", "Task events", ["event"], registry=registry)
        self.attempts = Counter(
            "everbeat_attempts", "Attempts that did not complete their task", ["outcome", "state"], registry=registry
        )
        self.deliveries = Counter("everbeat_deliveries", "Deliveries that ended", ["kind", "outcome"], registry=registry)
        self.delivery_seconds = Histogram(
            "everbeat_delivery_seconds", "Duration of deliveries", ["kind"], buckets=_DELIVERY_BUCKETS, registry=registry
        )
        self.breakers = Gauge(
            "everbeat_circuit_breakers_open", "Destinations whose circuit breaker is not closed", registry=registry
        )
        self.requests_refused = Counter(
            "everbeat_requests_refused", "Requests refused by authentication or limits", ["problem"], registry=registry
        )
        self.store = Histogram("everbeat_store_seconds", "Store calls", ["verb"], buckets=_CALL_BUCKETS, registry=registry)
        self.store_errors = Counter("everbeat_store_errors", "Failed store calls", ["verb"], registry=registry)


class Telemetry:
    def __init__(self) -> None:
        self.metrics = Metrics()
        self._warned_of_lock_at = float("-inf")
        self.log = get_logger()

    def exposition(self) -> bytes:
        return generate_latest(self.metrics.registry)

    def observe_store(self, verb: str, seconds: float, failed: bool) -> None:
        self.metrics.store.labels(verb).observe(seconds)
        if failed:
            self.metrics.store_errors.labels(verb).inc()

    def on_event(self, event: Event) -> None:
        if isinstance(event, TicksFired | TicksSkipped | TicksRefused | TicksAlreadyRecorded):
            self._on_ticks(event)
        elif isinstance(event, SchemaNewer):
            self.metrics.schema_newer.set(1)
            meaning = "this node has stopped firing and refuses changes; restart it with the version that migrated the database"
            self.log.error("schema_is_newer", version=event.version, supported=event.supported, meaning=meaning)
        elif isinstance(event, ZonesChanged | ZonesOutdated):
            self._on_zones(event)
        elif isinstance(event, OwnershipChanged | OwnershipLost | ClockSetBack | CapacityChanged):
            self._on_ownership(event)
        elif isinstance(event, LoopRan | LoopFailed | EventLoopBlocked):
            self._on_loop(event)
        elif isinstance(event, TaskEvent):
            self._on_tasks(event)
        elif isinstance(event, DeliveryEvent):
            self._on_deliveries(event)
        elif isinstance(event, RowsLocked):
            self._on_locked(event)
        elif isinstance(event, TasksWithoutWorker):
            self._on_unserved(event)
        elif isinstance(event, RequestRefused):
            self.metrics.requests_refused.labels(event.problem).inc()
        elif isinstance(event, ProxyNotTrusted):
            meaning = "all clients behind it share one address and its limits; if it is your proxy, add it to trusted_proxies"
            self.log.warning("proxy_not_trusted", address=event.address, meaning=meaning)
        else:
            self._on_warning(event)

    def _on_zones(self, event: ZonesChanged | ZonesOutdated) -> None:
        if isinstance(event, ZonesChanged):
            self.log.warning("tz_database_changed", zones=event.zones[:20], schedules_moved=event.moved)
        else:
            meaning = "another node has a newer tz database; update this node's system tzdata or tzdata package"
            self.log.warning("tz_database_outdated", zones=event.zones[:20], meaning=meaning)

    def _on_ticks(self, event: TicksFired | TicksSkipped | TicksRefused | TicksAlreadyRecorded) -> None:
        if isinstance(event, TicksFired):
            self.metrics.ticks.labels("fired", "").inc(len(event.lags_seconds))
            for lag in event.lags_seconds:
                self.metrics.lag.observe(lag)
        elif isinstance(event, TicksSkipped):
            for reason, count in event.counts.items():
                self.metrics.ticks.labels("skipped", reason).inc(count)
        elif isinstance(event, TicksRefused):
            self.metrics.ticks_refused.inc(event.count)
            self.log.debug("firings_refused", count=event.count)
        elif isinstance(event, TicksAlreadyRecorded):
            self.metrics.already_recorded.inc(event.count)
            self.log.warning("ticks_already_recorded", count=event.count)
        else:
            assert_never(event)

    def _on_locked(self, event: RowsLocked) -> None:
        self.metrics.rows_locked.labels(event.verb).inc(event.count)
        now = time.monotonic()
        if event.longest_seconds < _LOCK_WARNING_SECONDS or now - self._warned_of_lock_at < _LOCK_WARNING_INTERVAL_SECONDS:
            return
        self._warned_of_lock_at = now
        self.log.warning(
            "rows_locked",
            verb=event.verb,
            count=event.count,
            seconds=round(event.longest_seconds, 3),
            id=str(event.id),
            meaning="another transaction holds the lock; only these rows wait, and they are tried again",
        )

    def _on_unserved(self, event: TasksWithoutWorker) -> None:
        self.metrics.unserved.set(event.count)
        for one in event.new[:_MAX_UNSERVED_LOGGED]:
            self.log.warning(
                "tasks_without_worker", tenant_id=str(one.tenant_id), queue=one.queue, type=one.type, reason=one.reason
            )

    def _on_tasks(self, event: TaskEvent) -> None:
        if isinstance(event, TasksSubmitted):
            self.metrics.tasks.labels("submitted").inc(event.count)
        elif isinstance(event, TasksClaimed):
            self.metrics.tasks.labels("claimed").inc(event.count)
        elif isinstance(event, TasksPromoted):
            self.metrics.tasks.labels("promoted").inc(event.count)
        elif isinstance(event, TasksFinished):
            self.metrics.tasks.labels(event.state).inc(event.count)
        elif isinstance(event, AttemptEnded):
            self.metrics.attempts.labels(event.outcome, event.state).inc()
            if event.state in ("dead", "failed", "cancelled"):
                self.metrics.tasks.labels(event.state).inc()
        else:
            assert_never(event)

    def _on_deliveries(self, event: DeliveryEvent) -> None:
        if isinstance(event, DeliveryEnded):
            self.metrics.deliveries.labels(event.kind, event.outcome).inc()
            self.metrics.delivery_seconds.labels(event.kind).observe(event.seconds)
        elif isinstance(event, DeliveryKindUnavailable):
            self.log.error("delivery_kind_unavailable", kind=event.kind, error=event.error)
        elif isinstance(event, CircuitBreakerChanged):
            self.metrics.breakers.set(event.not_closed)
            self.log.warning(
                "circuit_breaker_changed",
                destination=event.destination,
                tenant=None if event.tenant_id is None else str(event.tenant_id),
                state=event.state.value,
                open_seconds=round(event.open_seconds, 3),
            )
        else:
            assert_never(event)

    def _on_capacity(self, event: CapacityChanged) -> None:
        self.metrics.capacity.set(event.capacity)
        lag = None if event.lag_seconds is None else round(event.lag_seconds, 3)
        if event.is_lowered:
            meaning = "this node fires late, and others keep up: it gives partitions to them"
            self.log.warning("capacity_lowered", capacity=event.capacity, lag_seconds=lag, meaning=meaning)
        else:
            self.log.info("capacity_raised", capacity=event.capacity, lag_seconds=lag)

    def _on_ownership(self, event: OwnershipChanged | OwnershipLost | ClockSetBack | CapacityChanged) -> None:
        if isinstance(event, OwnershipChanged):
            self.metrics.partitions.set(event.owned)
            self.metrics.nodes.set(event.live_nodes)
            self.metrics.ownership.labels("gained").inc(event.gained)
            self.metrics.ownership.labels("lost").inc(event.lost)
            self.log.info("ownership_changed", **event._asdict())
        elif isinstance(event, OwnershipLost):
            self.metrics.partitions.set(0)
            self.log.error("ownership_lost", partitions=event.partitions, meaning="the lease could not be renewed in time")
        elif isinstance(event, CapacityChanged):
            self._on_capacity(event)
        elif isinstance(event, ClockSetBack):
            self.metrics.clock_set_back.inc()
            self.log.error("database_clock_set_back", seconds=round(event.seconds, 3), meaning="nothing fires twice")
        else:
            assert_never(event)

    def _on_loop(self, event: LoopRan | LoopFailed | EventLoopBlocked) -> None:
        if isinstance(event, LoopRan):
            self.metrics.loops.labels(event.loop).observe(event.seconds)
        elif isinstance(event, LoopFailed):
            self.metrics.loop_errors.labels(event.loop).inc()
            error = f"{type(event.error).__name__}: {event.error}"
            if event.is_expected:
                self.log.warning("loop_failed", loop=event.loop, error=error)
            else:
                self.log.error("loop_failed", loop=event.loop, error=error, exc_info=event.error)
        elif isinstance(event, EventLoopBlocked):
            self.metrics.blocked.inc(event.seconds)
            self.log.error("event_loop_blocked", seconds=round(event.seconds, 3))
        else:
            assert_never(event)

    def _on_warning(self, event: LagHigh | ScheduleFaulted | TicksOverdue | Pruned | BlobCallFailed | PauseChanged) -> None:
        if isinstance(event, LagHigh):
            self.log.warning("fire_lag_high", lag_seconds=round(event.lag_seconds, 3), waiting=event.waiting)
        elif isinstance(event, ScheduleFaulted):
            self.metrics.faulted.inc()
            self.log.error("schedule_faulted", schedule_id=str(event.schedule_id), reason=event.reason)
        elif isinstance(event, TicksOverdue):
            self.metrics.overdue.set(event.count)
            if event.count:
                self.log.error(
                    "ticks_overdue", count=event.count, oldest_seconds=round(event.oldest_seconds, 1), names=event.names
                )
        elif isinstance(event, Pruned):
            self.log.info("pruned", what=event.what, count=event.count)
        elif isinstance(event, PauseChanged):
            name = "paused" if event.change == "begin" else "resumed"
            self.log.warning(name, scope=event.scope, queue=event.queue, note=event.note)
        elif isinstance(event, BlobCallFailed):
            self.log.warning("blob_store_failed", verb=event.verb, error=event.error)
        else:
            assert_never(event)
