"""Worker verbs of the PostgreSQL store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from everbeat.core.workers import WorkerSighting
from everbeat.store.postgres.base import PostgresBase
from everbeat.store.rows import text_of


class PostgresWorkers(PostgresBase):
    async def worker_write(self, node: str, sightings: Sequence[WorkerSighting], *, now: datetime | None = None) -> int:
        ordered = sorted(sightings, key=lambda one: one.id)
        claimed = [one for one in ordered if one.queues is not None]
        seen = [one for one in ordered if one.queues is None]
        changed = 0
        if claimed:
            changed += await self._change(
                "worker_write",
                tenant_ids=[one.tenant_id for one in claimed],
                workers=[one.worker for one in claimed],
                queues=[text_of(one.queues) for one in claimed],
                types=[None if one.types is None else text_of(one.types) for one in claimed],
                concurrencies=[one.concurrency for one in claimed],
                versions=[one.version for one in claimed],
                leases_seconds=[one.lease_seconds for one in claimed],
                now=now,
                node=node,
                **_seen(claimed),
            )
        if seen:
            changed += await self._change("worker_write_seen", now=now, node=node, **_seen(seen))
        return changed


def _seen(sightings: Sequence[WorkerSighting]) -> dict[str, list[object]]:
    return {
        "ids": [one.id for one in sightings],
        "states": [one.state.value for one in sightings],
        "ages_seconds": [one.age_seconds for one in sightings],
    }
