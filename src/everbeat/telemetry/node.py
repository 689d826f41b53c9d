"""Converts all events into log lines and metrics. What the metrics are is in metrics.py."""

from __future__ import annotations

import time
from typing import assert_never

import msgspec

from everbeat.core.alerts import AlertKind
from everbeat.core.audit_findings import FindingKind
from everbeat.core.definitions import rfc3339
from everbeat.logs import get_logger
from everbeat.services.call_times import CallTimes
from everbeat.services.events import (
    AlertEvent,
    ArchiveEvent,
    ArchiveFailed,
    AttemptEnded,
    AttemptsRan,
    BlobCallFailed,
    CapacityChanged,
    CheckChanged,
    CircuitBreakerChanged,
    ClockSetBack,
    ClusterSampled,
    DeliveryEnded,
    DeliveryEvent,
    DeliveryKindUnavailable,
    Event,
    EventLoopBlocked,
    EventLoopDelayed,
    FindingEvent,
    FindingsCounted,
    FindingsOpened,
    GroupCommitted,
    HeartbeatSent,
    IncidentsChanged,
    IncidentsOpen,
    LagHigh,
    LeasesExpired,
    LevelsReported,
    LoopBlocked,
    LoopFailed,
    LoopRan,
    Measurement,
    MonthArchived,
    MonthsToArchive,
    OwnershipChanged,
    OwnershipLost,
    PauseChanged,
    PingsReceived,
    ProxyNotTrusted,
    Pruned,
    RequestRefused,
    RowsLocked,
    ScheduleFaulted,
    SchemaNewer,
    StaleWritesRefused,
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
from everbeat.services.sampler import NEAR_TIMEOUT_RATIO
from everbeat.telemetry.exposition import rendered
from everbeat.telemetry.metrics import Metrics

# A lock held for less is normal. A longer one is reported at this interval, although it is tried again more often.
_LOCK_WARNING_SECONDS = 1.0
_LOCK_WARNING_INTERVAL_SECONDS = 10.0
_MAX_UNSERVED_LOGGED = 20
_MAX_FINDINGS_LOGGED = 20


class Telemetry:
    def __init__(self) -> None:
        self.metrics = Metrics()
        self.call_times = CallTimes()
        self._warned_of_lock_at = float("-inf")
        self.log = get_logger()

    def exposition(self) -> bytes:
        return rendered(self.metrics.registry.collect())

    def observe_store(self, verb: str, seconds: float, failed: bool) -> None:
        self.metrics.store.labels(verb).observe(seconds)
        self.call_times.observe(verb, seconds)
        if failed:
            self.metrics.store_errors.labels(verb).inc()

    def on_event(self, event: Event) -> None:
        if isinstance(event, TicksFired | TicksSkipped | TicksRefused | TicksAlreadyRecorded):
            self._on_ticks(event)
        elif isinstance(event, SchemaNewer):
            self._on_newer_schema(event)
        elif isinstance(event, ZonesChanged | ZonesOutdated):
            self._on_zones(event)
        elif isinstance(event, OwnershipChanged | OwnershipLost | ClockSetBack | CapacityChanged):
            self._on_ownership(event)
        elif isinstance(event, LoopRan | LoopFailed | EventLoopBlocked | LoopBlocked):
            self._on_loop(event)
        elif isinstance(event, Measurement):
            self._on_measurement(event)
        elif isinstance(event, TaskEvent):
            self._on_tasks(event)
        elif isinstance(event, DeliveryEvent):
            self._on_deliveries(event)
        elif isinstance(event, FindingEvent):
            self._on_findings(event)
        elif isinstance(event, RowsLocked):
            self._on_locked(event)
        elif isinstance(event, ArchiveEvent):
            self._on_archive(event)
        elif isinstance(event, TasksWithoutWorker):
            self._on_unserved(event)
        elif isinstance(event, CheckChanged | PingsReceived):
            self._on_checks(event)
        elif isinstance(event, AlertEvent):
            self._on_alerts(event)
        elif isinstance(event, RequestRefused):
            self.metrics.requests_refused.labels(event.problem).inc()
        elif isinstance(event, ProxyNotTrusted):
            meaning = "all clients behind it share one address and its limits; if it is your proxy, add it to trusted_proxies"
            self.log.warning("proxy_not_trusted", address=event.address, meaning=meaning)
        else:
            self._on_warning(event)

    def _on_newer_schema(self, event: SchemaNewer) -> None:
        if event.is_compatible:
            meaning = "a newer version has migrated the database; this node is compatible with it and continues"
            self.log.info("schema_is_compatible", version=event.version, supported=event.supported, meaning=meaning)
            return
        self.metrics.schema_newer.set(1)
        meaning = "this node has stopped firing and refuses changes; restart it with the version that migrated the database"
        self.log.error("schema_is_newer", version=event.version, supported=event.supported, meaning=meaning)

    def _on_archive(self, event: ArchiveEvent) -> None:
        if isinstance(event, MonthArchived):
            self.log.info("month_archived", **{**event._asdict(), "seconds": round(event.seconds, 3)})
        elif isinstance(event, ArchiveFailed):
            self.metrics.archive_failures.inc()
            meaning = "nothing was removed; it is tried again every ten minutes"
            self.log.error("archive_failed", **event._asdict(), meaning=meaning)
        elif isinstance(event, MonthsToArchive):
            self.metrics.months_to_archive.set(event.count)
        else:
            assert_never(event)

    def _on_zones(self, event: ZonesChanged | ZonesOutdated) -> None:
        if isinstance(event, ZonesChanged):
            self.log.warning("tz_database_changed", zones=event.zones[:20], schedules_moved=event.moved)
        else:
            meaning = "another node has a newer tz database; update this node's system tzdata or tzdata package"
            self.log.warning("tz_database_outdated", zones=event.zones[:20], meaning=meaning)

    def _on_ticks(self, event: TicksFired | TicksSkipped | TicksRefused | TicksAlreadyRecorded) -> None:
        if isinstance(event, TicksFired):
            self.metrics.ticks.labels("fired", "").inc(len(event.lags_seconds))
            self.metrics.lag.observe_many(event.lags_seconds)
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

    def _on_alerts(self, event: AlertEvent) -> None:
        if isinstance(event, IncidentsOpen):
            for kind in AlertKind:
                self.metrics.incidents_open.labels(kind.value).set(event.counts.get(kind.value, 0))
        elif isinstance(event, IncidentsChanged):
            for change, counts in (("opened", event.opened), ("resolved", event.resolved)):
                for kind, count in counts.items():
                    self.metrics.incidents.labels(kind.value, change).inc(count)
            for name, count in event.messages.items():
                self.metrics.alert_messages.labels(name).inc(count)
            opened, ended = ({kind.value: count for kind, count in one.items()} for one in (event.opened, event.resolved))
            self.log.warning("incidents_changed", opened=opened, resolved=ended, notifications=event.tasks)
        else:
            assert_never(event)

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
            self.metrics.ready_seconds.observe_many([max(0.0, seconds) for seconds in event.waited_seconds])
        elif isinstance(event, TasksPromoted):
            self.metrics.tasks.labels("promoted").inc(event.count)
        elif isinstance(event, TasksFinished):
            self.metrics.tasks.labels(event.state).inc(event.count)
        elif isinstance(event, AttemptEnded):
            self.metrics.attempts.labels(event.outcome, event.state).inc()
            if event.state in ("dead", "failed", "cancelled"):
                self.metrics.tasks.labels(event.state).inc()
            if event.state == "dead":
                self.metrics.dead_letters.inc()
            elif event.state in ("ready", "scheduled") and event.outcome != "released":
                self.metrics.retries.inc()
        else:
            assert_never(event)

    def _on_measurement(self, event: Measurement) -> None:
        metrics = self.metrics
        if isinstance(event, AttemptsRan):
            for outcome in {one.outcome for one in event.runs}:
                metrics.run_seconds.observe_many([one.ran_seconds for one in event.runs if one.outcome == outcome], outcome)
            metrics.near_timeout.inc(sum(one.ran_seconds > NEAR_TIMEOUT_RATIO * one.timeout_seconds for one in event.runs))
        elif isinstance(event, LeasesExpired):
            metrics.lease_expiries.inc(event.count)
        elif isinstance(event, StaleWritesRefused):
            metrics.stale_writes.labels(event.operation).inc(event.count)
        elif isinstance(event, GroupCommitted):
            metrics.group_commits.observe_many([event.rows], event.operation)
        elif isinstance(event, EventLoopDelayed):
            metrics.loop_lag.observe_many([event.seconds])
        elif isinstance(event, ClusterSampled):
            metrics.sample.set(event.sample, event.valid_seconds)
        elif isinstance(event, LevelsReported):
            metrics.levels.set(event.levels, event.valid_seconds)
        else:
            assert_never(event)

    def _on_findings(self, event: FindingEvent) -> None:
        if isinstance(event, FindingsCounted):
            self.metrics.missing.set(event.open.get(FindingKind.MISSING, 0))
            self.metrics.doubled.set(event.open.get(FindingKind.DOUBLED, 0))
            self.metrics.overdue.set(event.open.get(FindingKind.OVERDUE, 0))
            if event.ran_at is not None:
                self.metrics.audited_at.set(event.ran_at.timestamp())
            return
        is_new = isinstance(event, FindingsOpened)
        for finding in event.findings:
            if is_new:
                self.metrics.findings.labels(finding.kind.value).inc()
        for finding in event.findings[:_MAX_FINDINGS_LOGGED]:
            details = msgspec.json.decode(finding.details)
            log = self.log.error if is_new and finding.kind is not FindingKind.LATE else self.log.warning
            log(
                "audit_finding" if is_new else "audit_finding_resolved",
                kind=finding.kind.value,
                schedule_id=None if finding.schedule_id is None else str(finding.schedule_id),
                scheduled_for=rfc3339(finding.scheduled_for),
                resolution=None if finding.resolution is None else finding.resolution.value,
                **details,
            )
        if len(event.findings) > _MAX_FINDINGS_LOGGED:
            self.log.warning("audit_findings_not_logged", count=len(event.findings) - _MAX_FINDINGS_LOGGED)

    def _on_deliveries(self, event: DeliveryEvent) -> None:
        if isinstance(event, DeliveryEnded):
            self.metrics.deliveries.labels(event.kind, event.outcome, event.status).inc()
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

    def _on_checks(self, event: CheckChanged | PingsReceived) -> None:
        if isinstance(event, PingsReceived):
            for kind, count in event.counts.items():
                self.metrics.pings.labels(kind).inc(count)
            return
        self.metrics.check_transitions.labels(event.to_state).inc()
        log = self.log.warning if event.to_state == "down" else self.log.info
        fields = {"check": event.check, "before": event.from_state, "state": event.to_state, "reason": event.reason}
        log("check_changed", tenant=str(event.tenant_id), **fields)

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
            self.metrics.rebalances.inc()
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

    def _on_loop(self, event: LoopRan | LoopFailed | EventLoopBlocked | LoopBlocked) -> None:
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
        elif isinstance(event, LoopBlocked):
            self.metrics.loops_blocked.labels(event.loop).inc()
            self.log.error("loop_blocked", loop=event.loop, seconds=round(event.seconds, 3))
        else:
            assert_never(event)

    def _on_warning(
        self, event: LagHigh | ScheduleFaulted | TicksOverdue | Pruned | BlobCallFailed | PauseChanged | HeartbeatSent
    ) -> None:
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
        elif isinstance(event, HeartbeatSent):
            self.metrics.heartbeats.labels(event.outcome).inc()
            if event.outcome != "ok":
                self.log.error("heartbeat_failed", outcome=event.outcome, problems=event.problems)
        elif isinstance(event, Pruned):
            self.log.info("pruned", what=event.what, count=event.count)
        elif isinstance(event, PauseChanged):
            name = "paused" if event.change == "begin" else "resumed"
            self.log.warning(name, scope=event.scope, queue=event.queue, note=event.note)
        elif isinstance(event, BlobCallFailed):
            self.log.warning("blob_store_failed", verb=event.verb, error=event.error)
        else:
            assert_never(event)
