"""A node for tests: the engine of a real node without its background loops, on a database with a fake clock."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

from everbeat.api.app import ApiContext, Health, build_app
from everbeat.client.registration import unfinished
from everbeat.client.registry import Registry
from everbeat.clock import DatabaseClock
from everbeat.config import Settings
from everbeat.core.partitioning import PARTITIONS
from everbeat.core.protocol import (
    DEFAULT_QUEUE,
    LeaseClaimRequest,
    LeaseCompleteRequest,
    LeaseCompletion,
    LeaseFailRequest,
    LeaseHeartbeat,
    LeaseHeartbeatRequest,
)
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import ClaimedTask
from everbeat.engine import Engine
from everbeat.services.blobs import BlobStore
from everbeat.services.leases import LeaseService
from everbeat.services.schedules import MAX_BATCH
from everbeat.services.tasks import TaskService
from everbeat.store.sqlite.store import SqliteStore
from everbeat.store.values import DueScan, ScheduleFilter
from everbeat.testing.clock import FakeClock
from everbeat.worker.calls import Interrupted, Outcome
from everbeat.worker.running_task import RunningTask

WORKER = "test"
_MAX_LEASE_SECONDS = 3600.0
_UNLIMITED_SECONDS = 100 * 366 * 86_400.0
_MAX_SCHEDULES = 100_000

RunState = Literal["completed", "retry", "dead", "failed"]


class _TimedStore(SqliteStore):
    """A store that uses a fake clock as the database clock."""

    def __init__(self, path: Path, clock: FakeClock) -> None:
        super().__init__(path)
        self._fake_clock = clock

    def _moment(self, now: datetime | None) -> datetime:
        return now if now is not None else self._fake_clock.now()

    async def schedule_due(
        self, partitions: Sequence[int], *, horizon_seconds: float, limit: int, now: datetime | None = None
    ) -> DueScan:
        """Scan only the partitions that have schedules, because a test scans often and has few schedules."""
        active = await self.schedule_list(
            DEFAULT_TENANT, ScheduleFilter(status="active"), after_name=None, limit=_MAX_SCHEDULES
        )
        used = sorted({schedule.partition for schedule in active}.intersection(partitions))
        return await super().schedule_due(used, horizon_seconds=horizon_seconds, limit=limit, now=now)


class SteppedNode:
    """The engine of a real node, run step by step by the harness. Everything runs on the background thread's event loop."""

    def __init__(self, path: Path, clock: FakeClock, registry: Registry) -> None:
        self._clock = clock
        self._registry = registry
        self._store = store = _TimedStore(path, clock)
        settings = Settings(
            node_name=WORKER,
            lease_seconds=_UNLIMITED_SECONDS,
            task_total_seconds=_UNLIMITED_SECONDS,
            retention_days=_UNLIMITED_SECONDS / 86_400,
        )
        blobs = BlobStore(path.absolute().with_name(f"{path.stem}-blobs").as_uri())
        # Without jitter, a retry is due exactly after the delay of the policy.
        self._engine = Engine(store, DatabaseClock(lambda: 0.0), settings, blobs=blobs, random_fraction=lambda: 1.0)

    @property
    def tasks(self) -> TaskService:
        return self._engine.tasks

    @property
    def leases(self) -> LeaseService:
        return self._engine.leases

    @functools.cached_property
    def asgi(self) -> Any:
        """The HTTP API. Built on first use, because building it is slow and most tests do not need it."""

        async def ready() -> Health:
            return Health(True, {})

        return build_app(
            ApiContext.from_engine(self._engine, health=lambda: Health(True, {}), ready=ready, metrics=lambda: b"")
        )

    async def start(self) -> Self:
        await self._store.migrate()
        await self._store.open()
        while await self._engine.ownership.run_once():
            pass
        declared = list(unfinished(self._registry, self._clock.now()).values())
        for start in range(0, len(declared), MAX_BATCH):
            await self._engine.schedules.put_batch(DEFAULT_TENANT, declared[start : start + MAX_BATCH])
        return self

    async def stop(self) -> None:
        await self._engine.ticker.close()
        await self._store.close()

    async def make_ready(self) -> None:
        """Fire due ticks and make due tasks ready, at the current time of the clock."""
        now = self._clock.now()
        engine = self._engine
        # The overlap releaser runs twice: first for the schedules it was notified of, then for all of them.
        for loop in (engine.ticker, engine.promoter, engine.overlap, engine.overlap):
            while await loop.run_once(now):
                pass

    async def claim(self) -> ClaimedTask | None:
        claim = LeaseClaimRequest(
            worker=WORKER,
            queues=self._registry.queues() or [DEFAULT_QUEUE],
            types=sorted(self._registry.tasks) or None,
            lease_seconds=_MAX_LEASE_SECONDS,
        )
        claimed = await self.leases.claim(DEFAULT_TENANT, claim, now=self._clock.now())
        return claimed[0] if claimed else None

    async def report(self, running_task: RunningTask, outcome: Outcome) -> RunState:
        task = running_task.task
        update = None if running_task.context is None else running_task.context.take_update()
        if update is not None:
            heartbeat = LeaseHeartbeat(id=task.id, fence=task.fence, progress=update.progress, log=update.log)
            await self.leases.heartbeat(DEFAULT_TENANT, LeaseHeartbeatRequest(worker=WORKER, leases=[heartbeat]))
        if isinstance(outcome, LeaseCompletion):
            await self.leases.complete(DEFAULT_TENANT, LeaseCompleteRequest(worker=WORKER, results=[outcome]))
            return "completed"
        if isinstance(outcome, Interrupted):
            raise asyncio.CancelledError
        (result,) = await self.leases.fail(DEFAULT_TENANT, LeaseFailRequest(worker=WORKER, failures=[outcome]))
        return result.next or "failed"

    async def next_at(self, until: datetime) -> datetime | None:
        """Return the next time at which a tick or a delayed task is due, if it is not after `until`."""
        now = self._clock.now()
        horizon = (until - now).total_seconds()
        scan = await self._store.schedule_due(range(PARTITIONS), horizon_seconds=horizon, limit=1, now=now)
        promoted = await self._store.task_promote(limit=1, now=now)
        times = [*(schedule.due_at for schedule in scan.schedules), *([] if promoted.next_at is None else [promoted.next_at])]
        return min((due_at for due_at in times if now < due_at <= until), default=None)
