"""The verbs of the roll-up of the ledger of the SQLite store that need a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from everbeat.core.ledger_days import LedgerDay
from everbeat.store.day_rows import day_from_row, day_to_row, differences
from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.sqlite.connections import SqliteSession
from everbeat.store.sqlite.conversions import bound


class SqliteLedgerDays(SqliteBase):
    async def ledger_day_write(self, days: Sequence[LedgerDay]) -> None:
        keys = {
            "days": [one.day for one in days],
            "ids": [one.schedule_id for one in days],
            "tenant_ids": list({one.tenant_id for one in days}),
        }

        def work(session: SqliteSession) -> None:
            replaced = [day_from_row(row) for row in session.rows(self._blocks["ledger_day_replaced"], bound(keys))]
            session.change_many(self._blocks["ledger_day_write"], [day_to_row(one) for one in days])
            session.change_many(self._blocks["ledger_day_add"], differences(days, replaced))

        await self._connections.write("ledger_day_write", work)

    async def ledger_day_prune(self, *, before: datetime, limit: int) -> int:
        values = {"before_at": before, "limit": limit}

        def work(session: SqliteSession) -> int:
            return sum(
                session.change(self._blocks[block], values) for block in ("ledger_day_prune", "ledger_day_prune_tenants")
            )

        return await self._connections.write("ledger_day_prune", work)
