"""Workers and queues: what nodes have learned about workers from their claims and heartbeats, and the lists that the API shows.

The record is a hint for people: it decides nothing. A node keeps what it learns in memory and writes it in batches, new workers
within a second and known ones every 10 seconds. If a node crashes, the workers claim on another one, which writes them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from everbeat.core.errors import EverbeatError
from everbeat.core.protocol import LeaseClaimRequest, LeaseHeartbeatRequest
from everbeat.core.targets import is_reserved_queue
from everbeat.core.workers import Absence, WorkerInfo, WorkerSighting, WorkerState, absence_of
from everbeat.services.loops import wait_for_event
from everbeat.store.base import Store

# Limits of the memory that the workers of one tenant take on a node. Workers beyond them are not recorded.
MAX_WORKERS_PER_TENANT = 2000
MAX_NAME_CHARACTERS_PER_TENANT = 4_000_000

_WRITE_SECONDS = 10.0
_NEW_SECONDS = 1.0
_FORGET_SECONDS = 120.0
_LAST_WRITE_SECONDS = 1.0
_MAX_ROWS = 500
_MAX_COMPARED = 1000


class _Known:
    """A worker that this node has seen. `size`: the characters of its names."""

    __slots__ = ("is_written", "seen_at", "sighting", "size")

    def __init__(self, sighting: WorkerSighting, seen_at: float) -> None:
        self.sighting = sighting
        self.seen_at = seen_at
        self.is_written = False
        self.size = len(sighting.worker) + sum(map(len, (*(sighting.queues or ()), *(sighting.types or ()))))


class WorkerRecorder:
    """Remembers the workers that claim and send heartbeats on this node. The loop writes them to the database."""

    name = "workers"
    deadline_seconds = 10.0

    def __init__(self, store: Store, node: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._node = node
        self._monotonic = monotonic
        self._known: dict[tuple[UUID | None, str], _Known] = {}
        self._sizes: Counter[UUID | None] = Counter()
        self._counts: Counter[UUID | None] = Counter()
        self._is_changed = asyncio.Event()

    def claimed(self, lease_tenant_id: UUID | None, claim: LeaseClaimRequest) -> None:
        """Note a claim. Called for every claim, so a known worker only costs a lookup and a comparison."""
        key = (lease_tenant_id, claim.worker)
        known = self._known.get(key)
        queues = tuple(claim.queues)
        types = None if claim.types is None else tuple(claim.types)
        if known is not None and known.sighting.queues == queues and known.sighting.types == types:
            known.seen_at, known.is_written = self._monotonic(), False
            if known.sighting.state is not WorkerState.LIVE:
                known.sighting = known.sighting._replace(state=WorkerState.LIVE)
            return
        sighting = WorkerSighting(
            lease_tenant_id,
            claim.worker,
            0.0,
            WorkerState.LIVE,
            queues,
            types,
            claim.concurrency,
            claim.version,
            claim.lease_seconds,
        )
        self._remember(key, sighting)

    def heartbeat(self, lease_tenant_id: UUID | None, heartbeat: LeaseHeartbeatRequest) -> None:
        key = (lease_tenant_id, heartbeat.worker)
        known = self._known.get(key)
        if known is None:
            self._remember(key, WorkerSighting(lease_tenant_id, heartbeat.worker, 0.0, heartbeat.state))
            return
        known.seen_at, known.is_written = self._monotonic(), False
        # A stopping worker still renews its leases; only a claim makes it live again.
        if heartbeat.state is not WorkerState.LIVE and known.sighting.state is not heartbeat.state:
            known.sighting = known.sighting._replace(state=heartbeat.state)
            self._is_changed.set()

    def _remember(self, key: tuple[UUID | None, str], sighting: WorkerSighting) -> None:
        self._forget(key)
        known = _Known(sighting, self._monotonic())
        tenant_id = key[0]
        if (
            self._counts[tenant_id] >= MAX_WORKERS_PER_TENANT
            or self._sizes[tenant_id] + known.size > MAX_NAME_CHARACTERS_PER_TENANT
        ):
            return
        self._known[key] = known
        self._counts[tenant_id] += 1
        self._sizes[tenant_id] += known.size
        self._is_changed.set()

    def _forget(self, key: tuple[UUID | None, str]) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self._counts[key[0]] -= 1
            self._sizes[key[0]] -= known.size

    # The loop

    async def run_once(self, now: datetime | None = None) -> bool:
        moment = self._monotonic()
        waiting = [known for known in self._known.values() if not known.is_written]
        for start in range(0, len(waiting), _MAX_ROWS):
            await self._write(waiting[start : start + _MAX_ROWS], moment, now)
        for key in [key for key, known in self._known.items() if moment - known.seen_at > _FORGET_SECONDS]:
            self._forget(key)
        return False

    async def _write(self, batch: Sequence[_Known], moment: float, now: datetime | None) -> None:
        for known in batch:  # before the write: what is seen during it is written next time
            known.is_written = True
        sightings = [known.sighting._replace(age_seconds=max(0.0, moment - known.seen_at)) for known in batch]
        try:
            await self._store.worker_write(self._node, sightings, now=now)
        except BaseException:
            for known in batch:
                known.is_written = False
            raise

    async def wait(self) -> None:
        await asyncio.sleep(_NEW_SECONDS)
        await wait_for_event(self._is_changed, _WRITE_SECONDS - _NEW_SECONDS)

    async def close(self) -> None:
        """Write what is not written yet, such as that the worker in this process has stopped. If that fails, it is lost."""
        with contextlib.suppress(EverbeatError, TimeoutError):
            await asyncio.wait_for(self.run_once(), _LAST_WRITE_SECONDS)


class WorkerView(NamedTuple):
    """A worker, its state now, and how many tasks of the tenant it runs."""

    info: WorkerInfo
    state: WorkerState
    running: int


class QueueView(NamedTuple):
    """A queue: its tasks, its live workers, and the worker that was seen last."""

    queue: str
    ready: int = 0
    scheduled: int = 0
    held: int = 0
    running: int = 0
    oldest_ready_seconds: float | None = None
    workers: int = 0
    last_worker: str | None = None
    last_worker_seen_at: datetime | None = None


class WorkerDirectory:
    """The lists of workers and queues of a tenant, and whether a worker asks for a task."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def page(
        self,
        tenant_id: UUID,
        *,
        queue: str | None = None,
        before: tuple[datetime, UUID] | None = None,
        limit: int,
        now: datetime | None = None,
    ) -> list[WorkerView]:
        """Return the workers of the tenant, and the fleets, which may run its tasks too; the last seen first."""
        infos = await self._store.worker_list(tenant_id, queue=queue, before=before, limit=limit)
        moment = await self._store.clock(now=now)
        running = await self._store.worker_running(tenant_id, [info.worker for info in infos])
        return [WorkerView(info, info.state_at(moment), running.get(info.worker, 0)) for info in infos]

    async def queues(self, tenant_id: UUID, paused: Sequence[str] = (), *, now: datetime | None = None) -> list[QueueView]:
        """Return the queues with live tasks, those that workers have asked for, and the paused ones, in order of name."""
        moment = await self._store.clock(now=now)
        views = {queue: QueueView(queue) for queue in paused}
        for tasks in await self._store.task_queue_list(tenant_id):
            oldest = tasks.oldest_ready_at
            age = None if oldest is None else max(0.0, (moment - oldest).total_seconds())
            views[tasks.queue] = QueueView(*tasks[:5], oldest_ready_seconds=age)
        for asked in await self._store.worker_queues(tenant_id, now=now):
            view = views.get(asked.queue) or QueueView(asked.queue)
            views[asked.queue] = view._replace(
                workers=asked.workers, last_worker=asked.last_worker, last_worker_seen_at=asked.last_seen_at
            )
        return [views[queue] for queue in sorted(views) if not is_reserved_queue(queue)]

    async def absence(self, tenant_id: UUID, queue: str, type_: str, *, now: datetime | None = None) -> Absence | None:
        """Return why no worker takes tasks of this queue and type; None if a live worker asks for them."""
        infos = await self._store.worker_list(tenant_id, queue=queue, limit=_MAX_COMPARED)
        return absence_of(queue, type_, infos, await self._store.clock(now=now))
