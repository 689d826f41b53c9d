"""Telemetry: converts all events into log lines and metrics."""

from everbeat.telemetry.collectors import NodeState
from everbeat.telemetry.logs import capture_library_logs, configure_logging
from everbeat.telemetry.metrics import Metrics
from everbeat.telemetry.node import Telemetry

__all__ = ["Metrics", "NodeState", "Telemetry", "capture_library_logs", "configure_logging"]
