"""What the server knows of workers: when each was last seen, its queues and types, and whether a live one asks for a task."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

import msgspec

# An idle worker claims again within 25 seconds, and the node writes what it has seen after at most 10. A busy worker sends a
# heartbeat every third of its lease.
SILENT_SECONDS = 60.0
RETENTION_SECONDS = 7 * 86_400.0
MAX_WORKERS_KEPT = 10_000

_MAX_NAMED = 5


class WorkerState(StrEnum):
    """live: it asks for tasks. stopping: it finishes its tasks. gone: it has stopped, or it has not been seen for a while."""

    LIVE = "live"
    STOPPING = "stopping"
    GONE = "gone"


class WorkerSighting(NamedTuple):
    """What a node has learned about a worker since it last wrote.

    `tenant_id` None: a fleet. `queues` None: the worker has sent only heartbeats, so only the time and the state are written.
    `types` None: all types. `age_seconds`: how long ago the worker was seen.
    """

    tenant_id: UUID | None
    worker: str
    age_seconds: float
    state: WorkerState = WorkerState.LIVE
    queues: tuple[str, ...] | None = None
    types: tuple[str, ...] | None = None
    concurrency: int | None = None
    version: str | None = None
    lease_seconds: float = 30.0

    @property
    def id(self) -> UUID:
        """The id of the worker's row, which follows from its tenant and name."""
        tenant = b"" if self.tenant_id is None else self.tenant_id.bytes
        return UUID(bytes=blake2b(tenant + self.worker.encode(), digest_size=16).digest())


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, as it is stored. `state` is the state that it last reported."""

    id: UUID
    tenant_id: UUID | None
    worker: str
    queues: tuple[str, ...]
    types: tuple[str, ...] | None
    concurrency: int | None
    version: str | None
    node: str
    state: WorkerState
    lease_seconds: float
    started_at: datetime
    last_seen_at: datetime

    def state_at(self, now: datetime) -> WorkerState:
        silent = timedelta(seconds=max(SILENT_SECONDS, self.lease_seconds))
        return WorkerState.GONE if self.last_seen_at <= now - silent else self.state

    def asks_for(self, type_: str) -> bool:
        return self.types is None or type_ in self.types


class Absence(NamedTuple):
    """No live worker asks for a task. `last_worker` asked for it last, as far as is recorded."""

    text: str
    last_worker: str | None
    last_seen_at: datetime | None


def absence_of(queue: str, type_: str, workers: Sequence[WorkerInfo], now: datetime) -> Absence | None:
    """Return why no worker takes the tasks of a queue and type; None if a live worker asks for them.

    `workers`: those that have asked for the queue, the last seen first.
    """
    live = [worker for worker in workers if worker.state_at(now) is WorkerState.LIVE]
    if any(worker.asks_for(type_) for worker in live):
        return None
    if not live:
        return _without_worker(f'queue "{queue}"', workers[0] if workers else None, now)
    last = next((worker for worker in workers if worker.asks_for(type_)), None)
    absence = _without_worker(f'type "{type_}"', last, now)
    return absence._replace(text=f"{absence.text}; {_asked_instead(queue, type_, live)}")


def _without_worker(what: str, last: WorkerInfo | None, now: datetime) -> Absence:
    if last is None:
        return Absence(f"no worker has asked for the {what} in the last 7 days", None, None)
    at = last.last_seen_at
    shown = f"{at:%H:%M} UTC" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M} UTC"
    return Absence(f"no worker has asked for the {what} since {shown}, when {last.worker} was last seen", last.worker, at)


def _asked_instead(queue: str, type_: str, live: Sequence[WorkerInfo]) -> str:
    """Return the types that the workers of the queue ask for, similar names first: the function may have been renamed."""
    types = sorted({name for worker in live for name in worker.types or ()})
    similar = difflib.get_close_matches(type_, types, _MAX_NAMED)
    named = (similar + [name for name in types if name not in similar])[:_MAX_NAMED]
    more = f" and {len(types) - len(named)} more" if len(types) > len(named) else ""
    return f'the workers on the queue "{queue}" ask for {", ".join(named)}{more}; was the function renamed?'
