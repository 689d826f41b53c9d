"""The pruner: prepares the tables for the coming months, and removes data past its retention."""

from __future__ import annotations

from datetime import datetime, timedelta

from everbeat.core.retention import RetentionPeriods
from everbeat.services.events import Emit, Pruned, ignore
from everbeat.services.maintenance.collector import Collector
from everbeat.services.maintenance.retention import Retention
from everbeat.services.maintenance.singleton import SingletonLoop
from everbeat.services.ownership import Ownership
from everbeat.store.base import Store


class Pruner(SingletonLoop):
    """Prepares the tables for the coming months, and removes data past its retention, in batches of limited size."""

    name = "pruner"
    deadline_seconds = 120.0

    def __init__(
        self,
        store: Store,
        ownership: Ownership,
        periods: RetentionPeriods,
        *,
        drops_months: bool = True,
        collector: Collector | None = None,
        emit: Emit = ignore,
        interval_seconds: float = 600,
        batch_size: int = 5000,
        budget_seconds: float = 2.0,
    ) -> None:
        super().__init__(ownership, interval_seconds)
        self._store = store
        self._retention = Retention(
            store,
            periods,
            drops_months=drops_months,
            batch_size=batch_size,
            budget_seconds=budget_seconds,
            emit=emit,
        )
        self._collector = collector
        self._emit = emit

    async def run_once(self, now: datetime | None = None) -> bool:
        if not self.is_owner():
            return False
        moment = await self._store.clock(now=now)
        await self._store.month_ensure([moment + timedelta(days=days) for days in (0, 31, 62)])
        await self._store.node_prune(unseen_seconds=3600, now=now)
        has_more = await self._retention.step(now)
        # Last, so that an unavailable blob store does not delay the rest.
        return await self._collect(moment) or has_more

    async def _collect(self, moment: datetime) -> bool:
        if self._collector is None:
            return False
        removed, has_more = await self._collector.collect(moment)
        if removed:
            self._emit(Pruned("blobs", removed))
        return has_more
