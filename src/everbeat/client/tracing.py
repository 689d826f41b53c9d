"""The current trace of the caller, if the process uses OpenTelemetry. Everbeat does not import it here."""

from __future__ import annotations

import sys


def current_traceparent() -> str | None:
    """Return the traceparent of the current span, so that a submitted task belongs to its trace."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
