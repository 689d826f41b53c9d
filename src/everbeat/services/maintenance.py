"""Maintenance loops of the owner of partition 0: the auditor and the pruner."""

from __future__ import annotations

from datetime import datetime, timedelta

from everbeat.core.schedules import Schedule
from everbeat.core.workers import MAX_WORKERS_KEPT, RETENTION_SECONDS
from everbeat.services.collector import Collector
from everbeat.services.events import Emit, Pruned, TicksOverdue, ignore
from everbeat.services.loops import Periodic, wait_for_event
from everbeat.services.ownership import Ownership
from everbeat.store.base import Store

_SINGLETON_PARTITION = 0
_OVERDUE_LISTED = 100


class SingletonLoop(Periodic):
    """A loop that only works on the owner of partition 0. Other nodes check regularly whether they have become the owner."""

    def __init__(self, ownership: Ownership, interval_seconds: float) -> None:
        super().__init__(interval_seconds)
        self._ownership = ownership

    def is_owner(self) -> bool:
        return self._ownership.owns(_SINGLETON_PARTITION)

    async def wait(self) -> None:
        await wait_for_event(self._woken, self._interval if self.is_owner() else min(self._interval, 2.0))


class Auditor(SingletonLoop):
    """Reports ticks that should have fired and did not."""

    name = "auditor"
    deadline_seconds = 30.0

    def __init__(
        self,
        store: Store,
        ownership: Ownership,
        *,
        late_seconds: float,
        emit: Emit = ignore,
        interval_seconds: float = 15,
    ) -> None:
        super().__init__(ownership, interval_seconds)
        self._store = store
        self._late_seconds = late_seconds
        self._emit = emit

    async def run_once(self, now: datetime | None = None) -> bool:
        if not self.is_owner():
            self._emit(TicksOverdue(0, 0.0, []))
            return False
        overdue = await self._store.schedule_overdue(late_seconds=self._late_seconds, limit=_OVERDUE_LISTED, now=now)
        moment = await self._store.clock(now=now)
        self._emit(TicksOverdue(len(overdue), _oldest_seconds(overdue, moment), [one.spec.name for one in overdue[:5]]))
        return False


def _oldest_seconds(overdue: list[Schedule], moment: datetime) -> float:
    return max(((moment - one.due_at).total_seconds() for one in overdue if one.due_at is not None), default=0.0)


class Pruner(SingletonLoop):
    """Prepares the tables for the coming months, and removes data past its retention, in batches of limited size."""

    name = "pruner"
    deadline_seconds = 120.0

    def __init__(
        self,
        store: Store,
        ownership: Ownership,
        *,
        retention_days: float,
        audit_log_retention_days: float = 400.0,
        collector: Collector | None = None,
        emit: Emit = ignore,
        interval_seconds: float = 600,
        batch_size: int = 5000,
    ) -> None:
        super().__init__(ownership, interval_seconds)
        self._store = store
        self._retention = timedelta(days=retention_days)
        self._audit_log_retention = timedelta(days=audit_log_retention_days)
        self._collector = collector
        self._emit = emit
        self._batch_size = batch_size

    async def run_once(self, now: datetime | None = None) -> bool:
        if not self.is_owner():
            return False
        moment = await self._store.clock(now=now)
        await self._store.month_ensure([moment + timedelta(days=days) for days in (0, 31, 62)])
        await self._store.node_prune(unseen_seconds=3600, now=now)
        pruned = {
            "responses": await self._store.idempotent_response_prune(limit=self._batch_size, now=now),
            "sessions": await self._store.session_prune(limit=self._batch_size, now=now),
            "keys": await self._store.task_key_prune(limit=self._batch_size, now=now),
            "workers": await self._store.worker_prune(
                unseen_seconds=RETENTION_SECONDS, keep=MAX_WORKERS_KEPT, limit=self._batch_size, now=now
            ),
            "operations": await self._store.bulk_prune(
                finished_seconds=self._retention.total_seconds(), limit=self._batch_size, now=now
            ),
            "pauses": await self._store.pause_prune(
                ended_seconds=self._retention.total_seconds(), limit=self._batch_size, now=now
            ),
            "months": await self._store.month_prune(before=moment - self._retention, limit=self._batch_size),
            "audit log entries": await self._store.audit_log_prune(
                before=moment - self._audit_log_retention, limit=self._batch_size
            ),
        }
        for what, count in pruned.items():
            if count:
                self._emit(Pruned(what, count))
        has_more = any(count >= self._batch_size for count in pruned.values())
        # Last, so that an unavailable blob store does not delay the rest.
        return await self._collect(moment) or has_more

    async def _collect(self, moment: datetime) -> bool:
        if self._collector is None:
            return False
        removed, has_more = await self._collector.collect(moment)
        if removed:
            self._emit(Pruned("blobs", removed))
        return has_more
