"""Trace contexts of tasks, as in W3C Trace Context.

The ids of all spans of a task follow from the id of the task, so every node computes the same ids and no span needs a row. A
task that was submitted within a trace belongs to that trace; any other task has a trace of its own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

# What a header must look like. Ids of zeros and the version ff match it, but are not valid and ignored.
TRACEPARENT_PATTERN = "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"
TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")


class TraceContext(NamedTuple):
    trace_id: int
    span_id: int
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{'01' if self.is_sampled else '00'}"


class SpanKind(StrEnum):
    INTERNAL = "internal"
    PRODUCER = "producer"
    CONSUMER = "consumer"
    CLIENT = "client"


class TaskSpan(NamedTuple):
    """A finished span. Times are in nanoseconds since 1970. `error` None: it succeeded."""

    name: str
    kind: SpanKind
    context: TraceContext
    parent_span_id: int | None
    start_ns: int
    end_ns: int
    attributes: Mapping[str, str | int]
    error: str | None = None


def parse_traceparent(text: str | None) -> TraceContext | None:
    """Return the context of a traceparent header, or None if there is none or it is malformed."""
    found = TRACEPARENT.fullmatch(text) if text else None
    if found is None:
        return None
    return TraceContext(int(found[1], 16), int(found[2], 16), bool(int(found[3], 16) & 1))


def task_context(task_id: UUID, traceparent: str | None, ratio: float = 1.0) -> TraceContext:
    """Return the context of the span that begins a task: its submit or its firing.

    `ratio`: the part of the traces that begin here which is sampled. It is decided by the lower half of the trace id, as by
    the sampler TraceIdRatioBased, so all nodes decide alike.
    """
    parent = parse_traceparent(traceparent)
    if parent is not None:
        return TraceContext(parent.trace_id, span_id_of(task_id, "task"), parent.is_sampled)
    trace_id = int.from_bytes(hashlib.blake2b(task_id.bytes, digest_size=16, person=b"everbeat trace").digest()) or 1
    return TraceContext(trace_id, span_id_of(task_id, "task"), (trace_id & (2**64 - 1)) < ratio * 2**64)


def child_context(context: TraceContext, task_id: UUID, what: str) -> TraceContext:
    """Return the context of a span below that of the task. `what` is unique within the task, such as `claim 2`."""
    return context._replace(span_id=span_id_of(task_id, what))


def span_id_of(task_id: UUID, what: str) -> int:
    return int.from_bytes(hashlib.blake2b(task_id.bytes + what.encode(), digest_size=8, person=b"everbeat span").digest()) or 1
