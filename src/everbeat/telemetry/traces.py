"""Exports spans to an OpenTelemetry collector. No other module of the server imports OpenTelemetry, the extra `otel`."""

from __future__ import annotations

from typing import Any

from everbeat.core.errors import SettingsError
from everbeat.core.tracing import SpanKind, TaskSpan
from everbeat.version import __version__

_PATH = "/v1/traces"


class SpanExporter:
    """Sends spans to `endpoint` by OTLP over HTTP, in batches from a thread. If the collector is away, spans are dropped."""

    def __init__(self, endpoint: str, *, service: str, node_name: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import ReadableSpan
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
            from opentelemetry.trace import SpanContext, TraceFlags
            from opentelemetry.trace import SpanKind as OtelKind
            from opentelemetry.trace.status import Status, StatusCode
        except ImportError:
            message = 'settings: otlp_endpoint needs packages that are not installed: pip install "everbeat[otel]"'
            raise SettingsError(message) from None
        url = endpoint if endpoint.endswith(_PATH) else endpoint.rstrip("/") + _PATH
        self._processor: Any = BatchSpanProcessor(OTLPSpanExporter(endpoint=url))
        resource = Resource.create({"service.name": service, "service.instance.id": node_name, "service.version": __version__})
        scope = InstrumentationScope("everbeat", __version__)
        kinds = {
            SpanKind.INTERNAL: OtelKind.INTERNAL,
            SpanKind.PRODUCER: OtelKind.PRODUCER,
            SpanKind.CONSUMER: OtelKind.CONSUMER,
            SpanKind.CLIENT: OtelKind.CLIENT,
        }
        flags = TraceFlags(TraceFlags.SAMPLED)

        def convert(span: TaskSpan) -> Any:
            def context(span_id: int) -> SpanContext:
                return SpanContext(span.context.trace_id, span_id, is_remote=False, trace_flags=flags)

            return ReadableSpan(
                span.name,
                context=context(span.context.span_id),
                parent=None if span.parent_span_id is None else context(span.parent_span_id),
                resource=resource,
                attributes=span.attributes,
                kind=kinds[span.kind],
                instrumentation_scope=scope,
                status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
                start_time=span.start_ns,
                end_time=span.end_ns,
            )

        self._convert = convert

    def export(self, span: TaskSpan) -> None:
        self._processor.on_end(self._convert(span))

    def close(self) -> None:
        """Send the spans that wait. Blocks for some seconds at most."""
        self._processor.shutdown()
