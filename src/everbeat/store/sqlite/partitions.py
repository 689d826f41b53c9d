"""Partition and node verbs of the SQLite store."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from everbeat.core.capacity import NodeLoad
from everbeat.store.rows import (
    node_from_row,
    text_of,
)
from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.sqlite.connections import SqliteSession
from everbeat.store.values import (
    NodeHeartbeat,
    NodeInfo,
    PartitionRenewal,
)


class SqlitePartitions(SqliteBase):
    async def partition_renew(
        self, heartbeat: NodeHeartbeat, wanted: frozenset[int], *, now: datetime | None = None
    ) -> PartitionRenewal:
        def work(session: SqliteSession) -> PartitionRenewal:
            moment = self._moment(now)
            values = {
                "now": moment,
                "node": heartbeat.id,
                "name": heartbeat.name,
                "roles": ",".join(heartbeat.roles),
                "version": heartbeat.version,
                "lease_seconds": heartbeat.lease_seconds,
                "lag_seconds": heartbeat.lag_seconds,
                "fired_per_second": heartbeat.fired_per_second,
                "capacity": heartbeat.capacity,
                "deliveries": heartbeat.deliveries,
                "wanted": text_of(sorted(wanted)),
                "schema": self._migrations[-1].number,
            }
            newest = session.rows(self._blocks["partition_renew_newest"])[0]["newest_at"]
            session.change(self._blocks["partition_renew_heartbeat"], values)
            changed = session.rows(self._blocks["partition_renew"], values)
            live = session.rows(self._blocks["partition_renew_live"], values)
            return PartitionRenewal(
                now=moment,
                owned={row["partition"]: row["epoch"] for row in changed if row["owner"] is not None},
                live=frozenset(row["id"] for row in live),
                clock_back_seconds=0.0 if newest is None else (newest - moment).total_seconds(),
                loads={row["id"]: NodeLoad(row["capacity"], row["lag_seconds"]) for row in live},
            )

        return await self._connections.write("partition_renew", work)

    async def partition_release(self, node_id: UUID) -> int:
        def work(session: SqliteSession) -> int:
            session.change(self._blocks["node_delete"], {"node": node_id})
            return session.change(self._blocks["partition_release"], {"node": node_id})

        return await self._connections.write("partition_release", work)

    async def node_list(self, *, now: datetime | None = None) -> tuple[datetime, list[NodeInfo]]:
        return self._moment(now), [node_from_row(row) for row in await self._read("node_list")]
