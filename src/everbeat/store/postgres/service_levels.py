"""Service level verbs of the PostgreSQL store."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from everbeat.core.service_levels import LevelBucket
from everbeat.store.postgres.base import PostgresBase


class PostgresServiceLevels(PostgresBase):
    async def service_level_write(self, node_id: UUID, buckets: Sequence[LevelBucket]) -> int:
        return await self._change(
            "service_level_write",
            node=node_id,
            ats=[one.at for one in buckets],
            fire_goods=[one.fire_good for one in buckets],
            fire_totals=[one.fire_total for one in buckets],
            pickup_goods=[one.pickup_good for one in buckets],
            pickup_totals=[one.pickup_total for one in buckets],
            success_goods=[one.success_good for one in buckets],
            success_totals=[one.success_total for one in buckets],
            available_minutes=[one.available_minutes for one in buckets],
            unavailable_minutes=[one.unavailable_minutes for one in buckets],
        )
