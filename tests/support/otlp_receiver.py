"""A receiver of OTLP over HTTP in this process: keeps the spans that servers and workers export."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse


class ReceivedSpan(NamedTuple):
    service: str
    name: str
    trace_id: str
    span_id: str
    parent_span_id: str
    is_error: bool
    attributes: dict[str, Any]
    start_ns: int
    end_ns: int


class OtlpReceiver:
    def __init__(self) -> None:
        self._spans: list[ReceivedSpan] = []
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces"
                receiver._keep(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self) -> list[ReceivedSpan]:
        with self._lock:
            return sorted(self._spans, key=lambda span: span.start_ns)

    def _keep(self, request: ExportTraceServiceRequest) -> None:
        with self._lock:
            for group in request.resource_spans:
                (service,) = (one.value.string_value for one in group.resource.attributes if one.key == "service.name")
                self._spans += [_span(service, span) for scope in group.scope_spans for span in scope.spans]


def _span(service: str, span: Any) -> ReceivedSpan:
    attributes = {one.key: one.value.string_value or one.value.int_value for one in span.attributes}
    return ReceivedSpan(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.status.code == 2,
        attributes,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
    )
