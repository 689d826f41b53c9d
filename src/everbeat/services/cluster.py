"""The state of the cluster according to the database: nodes, partitions, lag, queues."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from everbeat.store.base import Store
from everbeat.store.values import NodeInfo, PartitionInfo, QueueDepth


class ClusterView(NamedTuple):
    now: datetime
    nodes: list[NodeInfo]
    partitions: list[PartitionInfo]
    queues: list[QueueDepth]
    schedules: dict[str, int]
    faulty: int

    def is_alive(self, node: NodeInfo) -> bool:
        return (self.now - node.seen_at).total_seconds() < node.lease_seconds

    @property
    def unowned(self) -> int:
        return sum(one.owner is None or one.lease_until is None or one.lease_until <= self.now for one in self.partitions)


class ClusterService:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def view(
        self,
        tenant_id: UUID,
        *,
        all_tenants: bool = False,
        schedules: dict[str, int] | None = None,
        now: datetime | None = None,
    ) -> ClusterView:
        """Return the state of the cluster. `all_tenants`: with the queues of all tenants, for operators.

        `schedules`: the numbers of schedules by status, if they are known.
        """
        moment, nodes = await self._store.node_list(now=now)
        return ClusterView(
            now=moment,
            nodes=nodes,
            partitions=await self._store.partition_list(),
            queues=await self._store.task_depths(None if all_tenants else tenant_id),
            schedules=await self._store.schedule_count(tenant_id) if schedules is None else schedules,
            faulty=len(await self._store.schedule_faulty(tenant_id, limit=1000)),
        )
