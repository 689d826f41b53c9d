"""Every event becomes a log line or a metric, and log lines cannot be forged."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString

from everbeat.core.alerts import AlertKind
from everbeat.core.audit_findings import AuditFinding, FindingKind
from everbeat.core.circuit_breakers import BreakerState
from everbeat.core.errors import StoreUnavailable
from everbeat.core.service_levels import Level, LevelStatus, Objective, Sli
from everbeat.services import events
from everbeat.services.service_levels import SliCounts
from everbeat.store.samples import ClusterSample, DatabaseSample, PoolUse, QueueSample, TableSample
from everbeat.telemetry import NodeState, Telemetry, capture_library_logs, configure_logging
from everbeat.telemetry.collectors import BatchHistogram
from everbeat.telemetry.exposition import rendered
from tests.factories import NOW

SAMPLE = ClusterSample(
    at=NOW,
    states={"held": 0, "scheduled": 1, "ready": 12, "running": 4},
    queues=[QueueSample("mail", 12, 4, 2, 9.5), QueueSample("other", 3, 1, 1, 0.5)],
    near_timeout=1,
    unowned_partitions=3,
    database=DatabaseSample(4096, None, 1024, 0.5, [TableSample("tasks", 2048, 17, 5)]),
)
FINDING = AuditFinding(
    id=UUID(int=1),
    tenant_id=UUID(int=2),
    schedule_id=UUID(int=3),
    kind=FindingKind.MISSING,
    scheduled_for=datetime(2026, 1, 1, tzinfo=UTC),
    found_at=datetime(2026, 1, 1, 0, 1, tzinfo=UTC),
    details='{"name":"job"}',
)

LEVELS = [
    Level(Objective(Sli.FIRE, 0.999, 1.0), 999, 1000, 0.5, {"5m": None, "1h": 2.0}, LevelStatus.OK),
    Level(Objective(Sli.SUCCESS, 0.99), 0, 0, None, {"5m": None, "1h": None}, LevelStatus.NO_DATA),
]
_EVENTS: list[events.Event] = [
    events.TicksFired([0.002, 0.3]),
    events.TicksSkipped({"overlap": 2, "misfire": 5}),
    events.TicksRefused(1),
    events.TicksAlreadyRecorded(1),
    events.RowsLocked("tick_fire", 1, 1.5, uuid4()),
    events.LagHigh(7.5, 12),
    events.ScheduleFaulted(uuid4(), "unknown time zone"),
    events.OwnershipChanged(128, 128, 0, 2),
    events.OwnershipLost(128),
    events.CapacityChanged(0.25, True, 7.5),
    events.CapacityChanged(1.0, False, None),
    events.ClockSetBack(3600.0),
    events.SchemaNewer(9, 4),
    events.SchemaNewer(9, 4, is_compatible=True),
    events.ZonesChanged(["Europe/Berlin"], 3),
    events.ZonesOutdated(["Europe/Berlin"]),
    events.TicksOverdue(3, 42.0, ["a", "b"]),
    events.FindingsOpened([FINDING]),
    events.FindingsResolved([FINDING]),
    events.FindingsCounted({"missing": 2}, datetime(2026, 1, 1, tzinfo=UTC)),
    events.LoopBlocked("ticker", 40.0),
    events.HeartbeatSent("fail", ["the auditor has not run"]),
    events.IncidentsOpen({"dead": 1}),
    events.IncidentsChanged({AlertKind.DEAD: 1}, {AlertKind.LATE: 1}, {"opened": 1}, 2),
    events.TasksWithoutWorker(1, [events.UnservedType(UUID(int=1), "reports", "build", "no worker has asked for the queue")]),
    events.PauseChanged("paused", "queue", "reports", "maintenance"),
    events.DeliveryEnded("http", "delivered", 0.1),
    events.DeliveryKindUnavailable("kafka", "not installed"),
    events.CircuitBreakerChanged(None, "https://example.com", next(iter(BreakerState)), 5.0, 1),
    events.LoopRan("ticker", 0.01),
    events.LoopFailed("ticker", StoreUnavailable("unavailable"), True),
    events.LoopFailed("ticker", RuntimeError("a bug"), False),
    events.EventLoopBlocked(3.0),
    events.RequestRefused("unauthenticated"),
    events.ProxyNotTrusted("10.0.0.1"),
    events.Pruned("months", 2),
    events.BlobCallFailed("blob_get", "gone"),
    events.MonthArchived("ticks", "2026-01", 10, 1000, 1.5),
    events.ArchiveFailed("ticks", "2026-01", "unreachable"),
    events.MonthsToArchive(3),
    events.CheckChanged(UUID(int=1), "backup", "up", "down", "missed"),
    events.CheckChanged(UUID(int=1), "backup", "down", "up", None),
    events.PingsReceived({"success": 2}),
    events.TasksSubmitted(3),
    events.TasksClaimed(2),
    events.TasksPromoted(1),
    events.TasksFinished("completed", 2),
    events.AttemptEnded("failed", "scheduled"),
    events.AttemptEnded("lost", "dead"),
    events.AttemptsRan([events.AttemptRun("completed", 0.2, 60.0), events.AttemptRun("timeout", 60.0, 60.0)]),
    events.LeasesExpired(2),
    events.StaleWritesRefused("complete", 1),
    events.GroupCommitted("task_submit", 7),
    events.EventLoopDelayed(0.003),
    events.ClusterSampled(SAMPLE, 60.0),
    events.LevelsReported(LEVELS, 180.0),
]


@pytest.mark.parametrize("event", _EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_is_accepted(event: events.Event) -> None:
    Telemetry().on_event(event)


def test_findings_are_counted_as_metrics() -> None:
    telemetry = Telemetry()
    telemetry.on_event(events.FindingsOpened([FINDING]))
    telemetry.on_event(events.FindingsCounted({"missing": 3, "overdue": 2}, datetime(2026, 1, 1, tzinfo=UTC)))
    text = telemetry.exposition().decode()
    for line in (
        'everbeat_audit_findings_total{kind="missing"} 1.0',
        "everbeat_missing_ticks 3.0",
        "everbeat_overdue_schedules 2.0",
        "everbeat_doubled_ticks 0.0",
        "everbeat_audited_timestamp_seconds 1.7672256e+09",
    ):
        assert f"{line}\n" in text


def test_every_event_type_is_tested() -> None:
    assert {type(event) for event in _EVENTS} == set(events.Event.__args__)


def test_ticks_are_counted_by_outcome_and_reason() -> None:
    telemetry = Telemetry()
    telemetry.on_event(events.TicksFired([0.002, 0.3]))
    telemetry.on_event(events.TicksSkipped({"overlap": 2}))
    telemetry.observe_store("tick_fire", 0.01, True)
    text = telemetry.exposition().decode()
    assert 'everbeat_ticks_total{outcome="fired",reason=""} 2.0' in text
    assert 'everbeat_ticks_total{outcome="skipped",reason="overlap"} 2.0' in text
    assert "everbeat_fire_lag_seconds_count 2.0" in text
    assert 'everbeat_store_errors_total{verb="tick_fire"} 1.0' in text


def test_tasks_are_counted_by_event_and_outcome() -> None:
    telemetry = Telemetry()
    telemetry.on_event(events.TasksSubmitted(3))
    telemetry.on_event(events.TasksFinished("completed", 2))
    telemetry.on_event(events.AttemptEnded("lost", "dead"))
    text = telemetry.exposition().decode()
    assert 'everbeat_tasks_total{event="submitted"} 3.0' in text
    assert 'everbeat_tasks_total{event="completed"} 2.0' in text
    assert 'everbeat_tasks_total{event="dead"} 1.0' in text
    assert 'everbeat_attempts_total{outcome="lost",state="dead"} 1.0' in text


def test_a_retry_and_a_dead_letter_are_counted_and_a_release_is_neither() -> None:
    telemetry = Telemetry()
    for outcome, state in (("failed", "scheduled"), ("lost", "ready"), ("released", "ready"), ("failed", "dead")):
        telemetry.on_event(events.AttemptEnded(outcome, state))
    text = telemetry.exposition().decode()
    assert "everbeat_retries_total 2.0" in text
    assert "everbeat_dead_letters_total 1.0" in text


def test_run_times_and_times_in_ready_are_histograms() -> None:
    telemetry = Telemetry()
    telemetry.on_event(events.TasksClaimed(3, [0.002, -0.001, 7.0]))
    runs = [("completed", 0.2, 60.0), ("failed", 59.0, 60.0), ("completed", 0.3, 60.0)]
    telemetry.on_event(events.AttemptsRan([events.AttemptRun(*run) for run in runs]))
    text = telemetry.exposition().decode()
    assert 'everbeat_task_ready_seconds_bucket{le="0.001"} 1.0' in text
    assert 'everbeat_task_ready_seconds_bucket{le="5.0"} 2.0' in text
    assert "everbeat_task_ready_seconds_count 3.0" in text
    assert 'everbeat_attempt_seconds_bucket{outcome="completed",le="0.25"} 1.0' in text
    assert 'everbeat_attempt_seconds_sum{outcome="completed"} 0.5' in text
    assert 'everbeat_attempt_seconds_count{outcome="failed"} 1.0' in text
    assert "everbeat_attempts_near_timeout_total 1.0" in text


def test_a_value_on_a_bound_belongs_to_its_bucket() -> None:
    histogram = BatchHistogram("a_seconds", "A histogram", (0.1, 1))
    histogram.observe_many([0.1, 1.0, 1.0001])
    (family,) = histogram.collect()
    assert [(one.labels.get("le"), one.value) for one in family.samples[:3]] == [("0.1", 1), ("1.0", 2), ("+Inf", 3)]


def test_the_sample_of_the_cluster_is_exported_until_it_is_too_old() -> None:
    telemetry = Telemetry()
    telemetry.on_event(events.ClusterSampled(SAMPLE, 60.0))
    lines = set(telemetry.exposition().decode().splitlines())
    assert lines >= {
        'everbeat_live_tasks{state="ready"} 12.0',
        'everbeat_queue_ready_tasks{queue="mail"} 12.0',
        'everbeat_queue_running_tasks{queue="other"} 1.0',
        'everbeat_queue_workers{queue="mail"} 2.0',
        'everbeat_queue_oldest_ready_seconds{queue="mail"} 9.5',
        "everbeat_tasks_near_timeout 1.0",
        "everbeat_unowned_partitions 3.0",
        "everbeat_database_bytes 4096.0",
        "everbeat_wal_bytes 1024.0",
        "everbeat_oldest_transaction_seconds 0.5",
        'everbeat_table_bytes{table="tasks"} 2048.0',
        'everbeat_table_rows{table="tasks"} 17.0',
        'everbeat_dead_rows{table="tasks"} 5.0',
    }
    assert not any(line.startswith("everbeat_database_free_bytes") for line in lines)
    telemetry.on_event(events.ClusterSampled(SAMPLE, -1.0))
    assert not any(line.startswith("everbeat_unowned_partitions ") for line in telemetry.exposition().decode().splitlines())


def test_service_levels_are_exported_as_far_as_they_are_known() -> None:
    telemetry = Telemetry()
    telemetry.on_event(events.LevelsReported(LEVELS, 180.0))
    lines = [line for line in telemetry.exposition().decode().splitlines() if line.startswith("everbeat_slo_b")]
    assert lines == [
        'everbeat_slo_budget_left_ratio{objective="fire"} 0.5',
        'everbeat_slo_burn_rate{objective="fire",window="1h"} 2.0',
    ]


def test_the_state_of_the_node_is_read_at_each_scrape() -> None:
    telemetry = Telemetry()
    lags = iter((0.0, 42.0))
    telemetry.metrics.node.state = NodeState(
        lambda: next(lags),
        lambda: [PoolUse("api", 3, 5, 8, 2)],
        lambda: {"open": 1, "half_open": 0},
        [Objective(Sli.FIRE, 0.999, 1.0)],
        lambda: {Sli.FIRE: SliCounts(7, 9)},
    )
    telemetry.exposition()
    lines = set(telemetry.exposition().decode().splitlines())
    assert lines >= {
        "everbeat_evaluation_lag_seconds 42.0",
        'everbeat_pool_connections{pool="api",state="used"} 3.0',
        'everbeat_pool_connections{pool="api",state="idle"} 2.0',
        'everbeat_pool_max_connections{pool="api"} 8.0',
        'everbeat_pool_waiting{pool="api"} 2.0',
        'everbeat_circuit_breakers{state="open"} 1.0',
        'everbeat_circuit_breakers{state="half_open"} 0.0',
        'everbeat_slo_target_ratio{objective="fire"} 0.999',
        'everbeat_slo_events_total{objective="fire"} 9.0',
        'everbeat_slo_good_events_total{objective="fire"} 7.0',
    }


def test_the_text_format_has_the_same_series_as_that_of_the_client_library() -> None:
    telemetry = Telemetry()
    for event in _EVENTS:
        telemetry.on_event(event)
    telemetry.observe_store('a "quoted"\\ and\nbroken verb', 0.01, True)
    registry = telemetry.metrics.registry

    def series(text: str) -> dict[tuple[str, str, str], float]:
        found = [(family.type, sample) for family in text_string_to_metric_families(text) for sample in family.samples]
        return {
            (type_, sample.name, str(sorted(sample.labels.items()))): sample.value
            for type_, sample in found
            if not sample.name.endswith("_created") and not sample.name.startswith("process_")
        }

    ours, theirs = series(telemetry.exposition().decode()), series(generate_latest(registry).decode())
    assert len(ours) > 150
    assert ours == theirs


@pytest.mark.parametrize("value", [0.0, -1.0, 0.1, 999_999.0, 1e6, 1e16, 1.7e308, float("inf"), float("-inf"), 1.79511800297e9])
def test_numbers_are_written_as_the_client_library_does(value: float) -> None:
    family = GaugeMetricFamily("a_ratio", "A gauge", value)
    written = rendered([family]).decode().splitlines()[-1].partition(" ")[2]
    assert written == floatToGoString(value)  # type: ignore[no-untyped-call]


def test_json_lines_escape_what_could_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    Telemetry().on_event(events.TicksOverdue(1, 1.0, ['evil\n{"level": "info"}']))
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0])["names"] == ['evil\n{"level": "info"}']


def test_what_libraries_log_becomes_structured_lines(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        configure_logging("info", "json")
        capture_library_logs()
        try:
            raise ValueError("two\nlines")
        except ValueError as error:
            logging.getLogger("asyncio").error("Task exception was never retrieved\nfuture: x", exc_info=error)
        logging.getLogger("asyncio").info("not shown")
    finally:
        logging.captureWarnings(False)
        root.handlers, root.level = handlers, level
    (line,) = capsys.readouterr().err.splitlines()
    logged = json.loads(line)
    assert (logged["event"], logged["level"], logged["logger"]) == ("library_log", "error", "asyncio")
    assert logged["message"].startswith("Task exception was never retrieved")
    assert "ValueError: two" in logged["exception"]
