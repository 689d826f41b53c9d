"""Partition and node verbs of the PostgreSQL store.

Ownership uses a separate pool, `lease`, so that a renewal does not wait for other work.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from everbeat.core.capacity import NodeLoad
from everbeat.store.postgres.base import PostgresBase
from everbeat.store.postgres.connections import execute_on
from everbeat.store.rows import (
    node_from_row,
)
from everbeat.store.values import (
    NodeHeartbeat,
    NodeInfo,
    PartitionRenewal,
)


class PostgresPartitions(PostgresBase):
    async def partition_renew(
        self, heartbeat: NodeHeartbeat, wanted: frozenset[int], *, now: datetime | None = None
    ) -> PartitionRenewal:
        (row,) = await self._connections.fetch(
            "lease",
            self._queries["partition_renew"],
            now=now,
            node=heartbeat.id,
            name=heartbeat.name,
            roles=",".join(heartbeat.roles),
            version=heartbeat.version,
            lease_seconds=heartbeat.lease_seconds,
            lag_seconds=heartbeat.lag_seconds,
            fired_per_second=heartbeat.fired_per_second,
            capacity=heartbeat.capacity,
            deliveries=heartbeat.deliveries,
            wanted=sorted(wanted),
            schema=self._migrations[-1].number,
        )
        owned = dict(zip(row["owned"], row["epochs"], strict=True))
        loads = {id_: NodeLoad(*load) for id_, *load in zip(row["live"], row["capacities"], row["lags"], strict=True)}
        return PartitionRenewal(
            row["moment"], owned, frozenset(row["live"]), row["clock_back_seconds"], frozenset(row["locked"]), loads
        )

    async def partition_release(self, node_id: UUID) -> int:
        async with self._connections.transaction("lease", "partition_release") as connection:
            released = await execute_on(connection, self._queries["partition_release"], node=node_id)
            await execute_on(connection, self._queries["node_delete"], node=node_id)
        return released

    async def node_list(self, *, now: datetime | None = None) -> tuple[datetime, list[NodeInfo]]:
        rows = await self._read("node_list", now=now)
        moment = rows[0]["moment"] if rows else await self.clock(now=now)
        return moment, [node_from_row(row) for row in rows]
