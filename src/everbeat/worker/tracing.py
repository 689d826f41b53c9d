"""Spans of handlers, if the process of the worker uses OpenTelemetry: `run TYPE`, in the trace of the task."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from everbeat.core.tasks import ClaimedTask
from everbeat.version import __version__

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class HandlerSpans:
    def __init__(self) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._api = trace
        self._tracer = trace.get_tracer("everbeat", __version__)
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def attempt(self, task: ClaimedTask) -> Iterator[Any]:
        """Make a span for an attempt the current span. It belongs to the trace of the task."""
        carrier = {} if task.traceparent is None else {"traceparent": task.traceparent}
        attributes: dict[str, str | int] = {
            "messaging.system": "everbeat",
            "messaging.destination.name": task.queue,
            "messaging.message.id": str(task.id),
            "everbeat.type": task.type,
            "everbeat.attempt": task.attempt,
            "everbeat.fence": task.fence,
            **({} if task.schedule is None else {"everbeat.schedule": task.schedule}),
        }
        with self._tracer.start_as_current_span(
            f"run {task.type}",
            context=self._propagator.extract(carrier),
            kind=self._api.SpanKind.CONSUMER,
            attributes=attributes,
        ) as span:
            yield span

    def fail(self, span: Any, error: str) -> None:
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, error))


def handler_spans() -> HandlerSpans | None:
    """Return the spans of handlers, or None if this process does not use OpenTelemetry."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return None
    return HandlerSpans()


def configure_traces() -> bool:
    """Export spans as OTEL_EXPORTER_OTLP_ENDPOINT says, unless the app has configured OpenTelemetry itself.

    Returns False if the variable is set but the packages are missing.
    """
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return True
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        return False
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        name = os.environ.get("OTEL_SERVICE_NAME", "everbeat-worker")
        provider = TracerProvider(resource=Resource.create({"service.name": name}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)  # it sends the spans that wait when the process exits
    return True
