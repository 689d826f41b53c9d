"""The verbs of the roll-up of the ledger of the PostgreSQL store that need a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from everbeat.core.ledger_days import LedgerDay
from everbeat.store.day_rows import day_from_row, day_to_row, differences
from everbeat.store.postgres.base import PostgresBase
from everbeat.store.postgres.connections import execute_on, fetch_on
from everbeat.store.rows import text_of


class PostgresLedgerDays(PostgresBase):
    async def ledger_day_write(self, days: Sequence[LedgerDay]) -> None:
        async def write() -> None:
            async with self._transaction("ledger_day_write") as connection:
                await fetch_on(connection, self._queries["ledger_day_lock"])
                replaced = await fetch_on(
                    connection,
                    self._queries["ledger_day_replaced"],
                    days=[one.day for one in days],
                    ids=[one.schedule_id for one in days],
                    tenant_ids=list({one.tenant_id for one in days}),
                )
                rows = text_of([day_to_row(one) for one in days])
                await execute_on(connection, self._queries["ledger_day_write"], rows=rows)
                added = text_of(differences(days, [day_from_row(row) for row in replaced]))
                await execute_on(connection, self._queries["ledger_day_add"], rows=added)

        await self._retry(write)

    async def ledger_day_prune(self, *, before: datetime, limit: int) -> int:
        deleted = await self._change("ledger_day_prune", before_at=before, limit=limit)
        return deleted + await self._change("ledger_day_prune_tenants", before_at=before, limit=limit)
