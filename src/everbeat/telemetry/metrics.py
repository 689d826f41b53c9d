"""The Prometheus metrics of a node."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from everbeat.telemetry.collectors import BatchHistogram, LevelCollector, NodeCollector, SampleCollector

_LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
_RUN_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14_400, 86_400)
_ROW_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_DELIVERY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_CALL_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """The Prometheus metrics of a node."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self.ticks = Counter("everbeat_ticks", "Ticks by outcome and reason", ["outcome", "reason"], registry=registry)
        self.lag = self._histogram("everbeat_fire_lag_seconds", "Time from scheduled_for to fired_at", _LAG_BUCKETS)
        self.ticks_refused = Counter("everbeat_ticks_refused", "Firings that a guard refused", registry=registry)
        self.already_recorded = Counter("everbeat_ticks_already_recorded", "Ticks already in the ledger", registry=registry)
        self.rows_locked = Counter(
            "everbeat_rows_locked",
            "Rows that a batch skipped because another transaction had locked them",
            ["verb"],
            registry=registry,
        )
        self.overdue = Gauge("everbeat_overdue_schedules", "Schedules with an overdue tick", registry=registry)
        self.missing = Gauge("everbeat_missing_ticks", "Open findings of ticks without a ledger row", registry=registry)
        self.doubled = Gauge("everbeat_doubled_ticks", "Open findings of ticks with two tasks", registry=registry)
        self.findings = Counter("everbeat_audit_findings", "New findings of the auditor", ["kind"], registry=registry)
        self.audited_at = Gauge(
            "everbeat_audited_timestamp_seconds", "When the auditor of the cluster has last completed a run", registry=registry
        )
        self.faulted = Counter("everbeat_schedules_faulted", "Schedules paused as faulty", registry=registry)
        self.partitions = Gauge("everbeat_partitions_owned", "Partitions that this node owns", registry=registry)
        self.capacity = Gauge("everbeat_node_capacity", "The part of its usual share of partitions", registry=registry)
        self.capacity.set(1)
        self.nodes = Gauge("everbeat_live_nodes", "Live scheduler nodes", registry=registry)
        self.ownership = Counter("everbeat_ownership_changes", "Partitions gained and lost", ["change"], registry=registry)
        self.rebalances = Counter("everbeat_rebalances", "Times the partitions of this node changed", registry=registry)
        self.schema_newer = Gauge(
            "everbeat_schema_newer", "1 if the database was migrated by a newer version", registry=registry
        )
        self.unserved = Gauge(
            "everbeat_unserved_types",
            "Queues and types with ready tasks for which no live worker asks, by tenant",
            registry=registry,
        )
        self.pings = Counter("everbeat_check_pings", "Pings of checks", ["kind"], registry=registry)
        self.check_transitions = Counter(
            "everbeat_check_transitions", "Changes of the state of checks", ["to"], registry=registry
        )
        self.incidents_open = Gauge(
            "everbeat_incidents_open", "Unresolved incidents of alert rules", ["kind"], registry=registry
        )
        self.incidents = Counter(
            "everbeat_incidents", "Incidents that were opened and resolved", ["kind", "change"], registry=registry
        )
        self.alert_messages = Counter(
            "everbeat_alert_messages", "Notifications of alerts by event, not counting recipients", ["event"], registry=registry
        )
        self.clock_set_back = Counter("everbeat_clock_set_back", "Times the database clock was set back", registry=registry)
        self.months_to_archive = Gauge(
            "everbeat_months_to_archive", "Months of tables past their retention that are not archived yet", registry=registry
        )
        self.archive_failures = Counter("everbeat_archive_failures", "Months that could not be archived", registry=registry)
        self.loops = Histogram("everbeat_loop_seconds", "Loop iterations", ["loop"], buckets=_CALL_BUCKETS, registry=registry)
        self.loop_errors = Counter("everbeat_loop_errors", "Failed iterations", ["loop"], registry=registry)
        self.blocked = Counter("everbeat_event_loop_blocked_seconds", "Time the event loop was blocked", registry=registry)
        self.loop_lag = self._histogram("everbeat_event_loop_lag_seconds", "Delay of timers of the event loop", _LAG_BUCKETS)
        self.loops_blocked = Counter(
            "everbeat_loops_blocked", "Iterations that still ran after their deadline", ["loop"], registry=registry
        )
        self.heartbeats = Counter("everbeat_heartbeats", "Heartbeats to heartbeat_url", ["outcome"], registry=registry)
        self.tasks = Counter("everbeat_tasks", "Task events", ["event"], registry=registry)
        self.attempts = Counter(
            "everbeat_attempts", "Attempts that did not complete their task", ["outcome", "state"], registry=registry
        )
        self.ready_seconds = self._histogram("everbeat_task_ready_seconds", "Time in ready of claimed tasks", _LAG_BUCKETS)
        self.run_seconds = self._histogram("everbeat_attempt_seconds", "Run time of attempts", _RUN_BUCKETS, "outcome")
        self.near_timeout = Counter(
            "everbeat_attempts_near_timeout", "Attempts that used more than 90 % of their timeout", registry=registry
        )
        self.lease_expiries = Counter("everbeat_lease_expiries", "Attempts ended by the reaper", registry=registry)
        self.stale_writes = Counter(
            "everbeat_stale_writes_refused", "Reports on lost leases, which changed nothing", ["operation"], registry=registry
        )
        self.retries = Counter("everbeat_retries", "Attempts after which the task is tried again", registry=registry)
        self.dead_letters = Counter("everbeat_dead_letters", "Tasks that became dead letters", registry=registry)
        self.group_commits = self._histogram(
            "everbeat_group_commit_rows", "Rows that are written together", _ROW_BUCKETS, "operation"
        )
        self.deliveries = Counter(
            "everbeat_deliveries", "Deliveries that ended", ["kind", "outcome", "status"], registry=registry
        )
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
        self.node = NodeCollector()
        self.sample = SampleCollector()
        self.levels = LevelCollector()
        registry.register(self.node)
        registry.register(self.levels)
        registry.register(self.sample)

    def _histogram(self, name: str, documentation: str, buckets: Sequence[float], label: str | None = None) -> BatchHistogram:
        histogram = BatchHistogram(name, documentation, buckets, label)
        self.registry.register(histogram)
        return histogram
