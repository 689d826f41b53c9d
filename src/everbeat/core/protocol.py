"""Request and response bodies of the worker protocol and of task submission.

Clients, the API and the services use the same structs, over HTTP and in process, so a client cannot send a field that
the server rejects as unknown.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from everbeat.core.hooks import NO_HOOKS, Hooks
from everbeat.core.schedules import DEFAULT_RETRY, DEFAULT_TIMEOUT_SECONDS, Retry
from everbeat.core.targets import Target
from everbeat.core.tasks import ClaimedTask
from everbeat.core.tracing import TRACEPARENT_PATTERN
from everbeat.core.workers import WorkerState

MAX_SUBMITTED = 10_000
MAX_CLAIMED = 1000
MAX_LEASES_PER_REPORT = 1000
MAX_QUEUES = 100
MAX_TYPES = 1000
MAX_WAIT_SECONDS = 30
DEFAULT_LEASE_SECONDS = 30.0
MAX_DELAY_SECONDS = 10 * 366 * 86_400
DEFAULT_QUEUE = "default"

_encode = msgspec.json.Encoder().encode
_EMPTY, _NULL = msgspec.Raw(b"{}"), msgspec.Raw(b"null")

Instant = Annotated[datetime, msgspec.Meta(tz=True)]
WorkerName = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Fence = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


def raw_json(value: Any) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))


class _RequestBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class TaskInput(_RequestBody, frozen=True, kw_only=True):
    """A task to submit. `idempotency_key` is for batches; a single submit uses the Idempotency-Key header instead."""

    type: str
    queue: str | None = None
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: _EMPTY)
    run_at: Instant | None = None
    delay_seconds: Annotated[float, msgspec.Meta(ge=0, le=MAX_DELAY_SECONDS)] | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 100
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    retry: Retry = DEFAULT_RETRY
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=7 * 86_400)] = DEFAULT_TIMEOUT_SECONDS
    target: Target | None = None
    labels: dict[str, str] = {}
    fair_key: str | None = None
    hooks: Hooks = NO_HOOKS
    idempotency_key: str | None = None
    # The trace that the task belongs to; instead of the header, which applies to all tasks of a request.
    traceparent: Annotated[str, msgspec.Meta(pattern=TRACEPARENT_PATTERN)] | None = None


class LeaseClaimRequest(_RequestBody, frozen=True, kw_only=True):
    worker: WorkerName
    queues: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_QUEUES)]
    types: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_TYPES)] | None = None
    max: Annotated[int, msgspec.Meta(ge=1, le=MAX_CLAIMED)] = 1
    wait_seconds: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_SECONDS)] = 0
    lease_seconds: Annotated[float, msgspec.Meta(ge=5, le=3600)] = DEFAULT_LEASE_SECONDS
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    version: Annotated[str, msgspec.Meta(max_length=100)] | None = None


class LeaseClaimResponse(msgspec.Struct, frozen=True):
    tasks: list[ClaimedTask]


class Progress(_RequestBody, frozen=True, kw_only=True):
    fraction: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    message: Annotated[str, msgspec.Meta(max_length=2000)] | None = None


class LeaseHeartbeat(_RequestBody, frozen=True, kw_only=True):
    id: UUID
    fence: Fence
    progress: Progress | None = None
    log: str | None = None


class LeaseHeartbeatRequest(_RequestBody, frozen=True, kw_only=True):
    worker: WorkerName
    leases: Annotated[list[LeaseHeartbeat], msgspec.Meta(max_length=MAX_LEASES_PER_REPORT)]
    state: WorkerState = WorkerState.LIVE


class LeaseHeartbeatResult(msgspec.Struct, frozen=True):
    id: UUID
    status: Literal["ok", "lost", "cancel"]
    lease_until: datetime | None


class LeaseHeartbeatResponse(msgspec.Struct, frozen=True):
    leases: list[LeaseHeartbeatResult]


class LeaseCompletion(_RequestBody, frozen=True, kw_only=True, gc=False):
    id: UUID
    fence: Fence
    result: msgspec.Raw = msgspec.field(default_factory=lambda: _NULL)


class LeaseCompleteRequest(_RequestBody, frozen=True, kw_only=True):
    worker: WorkerName
    results: Annotated[list[LeaseCompletion], msgspec.Meta(max_length=MAX_LEASES_PER_REPORT)]


class ErrorInput(_RequestBody, frozen=True, kw_only=True):
    message: str
    kind: str | None = None
    trace: str | None = None


class LeaseFailure(_RequestBody, frozen=True, kw_only=True):
    id: UUID
    fence: Fence
    error: ErrorInput
    retryable: bool = True
    retry_in_seconds: Annotated[float, msgspec.Meta(ge=0, le=MAX_DELAY_SECONDS)] | None = None


class LeaseFailRequest(_RequestBody, frozen=True, kw_only=True):
    worker: WorkerName
    failures: Annotated[list[LeaseFailure], msgspec.Meta(max_length=MAX_LEASES_PER_REPORT)]


class Lease(_RequestBody, frozen=True, kw_only=True):
    id: UUID
    fence: Fence


class LeaseReleaseRequest(_RequestBody, frozen=True, kw_only=True):
    worker: WorkerName
    leases: Annotated[list[Lease], msgspec.Meta(max_length=MAX_LEASES_PER_REPORT)]


class LeaseResult(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The status of one reported result, failure or release. `next` is set only for a recorded failure."""

    id: UUID
    status: Literal["ok", "stale"]
    next: Literal["retry", "dead", "failed"] | None = None


class LeaseResultsResponse(msgspec.Struct, frozen=True):
    results: list[LeaseResult]
