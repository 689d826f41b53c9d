"""Every event becomes a log line or a metric, and log lines cannot be forged."""

from __future__ import annotations

import json
import logging
from uuid import UUID, uuid4

import pytest

from everbeat.core.circuit_breakers import BreakerState
from everbeat.core.errors import StoreUnavailable
from everbeat.services import events
from everbeat.telemetry import Telemetry, capture_library_logs, configure_logging

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
    events.ZonesChanged(["Europe/Berlin"], 3),
    events.ZonesOutdated(["Europe/Berlin"]),
    events.TicksOverdue(3, 42.0, ["a", "b"]),
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
    events.TasksSubmitted(3),
    events.TasksClaimed(2),
    events.TasksPromoted(1),
    events.TasksFinished("completed", 2),
    events.AttemptEnded("failed", "scheduled"),
    events.AttemptEnded("lost", "dead"),
]


@pytest.mark.parametrize("event", _EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_is_accepted(event: events.Event) -> None:
    Telemetry().on_event(event)


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
