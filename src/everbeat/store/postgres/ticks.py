"""Tick verbs of the PostgreSQL store."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import datetime
from uuid import UUID

import asyncpg

from everbeat.store.postgres.base import PostgresBase
from everbeat.store.rows import (
    SkipColumns,
    fire_result_from_rows,
)
from everbeat.store.values import (
    FireResult,
    Firing,
)


class PostgresTicks(PostgresBase):
    async def tick_fire(self, node_id: UUID, firings: Sequence[Firing], *, now: datetime | None = None) -> FireResult:
        skips = SkipColumns.of_firings(firings)
        ids, _, partitions, epochs, revisions, expected, fires, task_ids, cursors, next_ticks, dues, _ = (
            map(list, zip(*firings, strict=True)) if firings else ([] for _ in range(12))
        )

        def fire() -> Awaitable[list[asyncpg.Record]]:
            return self._read(
                "tick_fire",
                now=now,
                node=node_id,
                ids=ids,
                partitions=partitions,
                epochs=epochs,
                revisions=revisions,
                expected=expected,
                fires=fires,
                task_ids=task_ids,
                cursors=cursors,
                next_ticks=next_ticks,
                dues=dues,
                **skips.columns,
            )

        rows = await self._with_months([*filter(None, fires), *skips.columns["skip_firsts"]], fire)
        return fire_result_from_rows(rows, firings)
