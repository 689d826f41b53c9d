"""Collects the facts about the capacity of a cluster: the busiest second ahead, the nodes, bloat, and slow calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from uuid import UUID

from everbeat.core.capacity_advice import (
    Bloat,
    BusySecond,
    CapacityFacts,
    NodeShare,
    SlowCall,
)
from everbeat.services.cluster import ClusterView
from everbeat.services.forecast import Forecast, ForecastService
from everbeat.store.base import Store

SlowCalls = Callable[[], list[SlowCall]]

# The forecast of many schedules takes seconds. It is computed once for some minutes; a request does not wait for it longer.
_MAX_WAIT_SECONDS = 0.25
_MAX_TABLES = 10


class CapacityService:
    def __init__(self, store: Store, forecast: ForecastService) -> None:
        self._store = store
        self._forecast = forecast
        self._computing: dict[UUID, asyncio.Task[Forecast]] = {}
        # Set by the server, which measures the calls.
        self.slow_calls: SlowCalls = list

    async def facts(self, view: ClusterView, tenant_id: UUID, *, for_operator: bool) -> CapacityFacts:
        """Return the facts. Those about the database are for operators only."""
        busiest = await self._busiest(tenant_id)
        nodes = _shares(view)
        if not for_operator:
            return CapacityFacts(busiest, nodes, [], None, [])
        database = await self._store.sample_database()
        tables = [Bloat(one.table, one.bytes, one.live_rows, one.dead_rows) for one in database.tables]
        return CapacityFacts(
            busiest=busiest,
            nodes=nodes,
            tables=sorted(tables, key=lambda one: -one.bytes)[:_MAX_TABLES],
            oldest_transaction_seconds=database.oldest_transaction_seconds,
            slow_calls=self.slow_calls(),
            database_bytes=database.bytes,
            free_bytes=database.free_bytes,
        )

    async def _busiest(self, tenant_id: UUID) -> BusySecond | None:
        """Return the busiest second of the tenant's schedules; None if there is none, or if it is still being computed."""
        task = self._computing.get(tenant_id)
        if task is None:
            task = self._computing[tenant_id] = asyncio.create_task(self._forecast.next_day(tenant_id))
            task.add_done_callback(lambda _done: self._computing.pop(tenant_id, None))
        try:
            found = await asyncio.wait_for(asyncio.shield(task), _MAX_WAIT_SECONDS)
        except TimeoutError:
            return None
        if found.fullest_at is None:
            return None
        return BusySecond(found.fullest_at, found.fullest, found.fullest_names, found.is_complete)


def _shares(view: ClusterView) -> list[NodeShare]:
    owned = Counter(one.owner for one in view.partitions)
    return [
        NodeShare(node.name, "scheduler" in node.roles, owned[node.id] / len(view.partitions), node.capacity, node.lag_seconds)
        for node in view.nodes
        if view.is_alive(node)
    ]
