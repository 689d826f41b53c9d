"""Samples of the PostgreSQL store for metrics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import asyncpg

from everbeat.store.migrate import Migration
from everbeat.store.postgres.base import PostgresBase
from everbeat.store.postgres.connections import fetch_on
from everbeat.store.samples import DatabaseSample, PoolUse, ReadySample, TableSample

_TABLE = re.compile(r"(?m)^CREATE TABLE (\w+)")
# A bitmap is built completely before the first row is returned, however small the limit is.
SAMPLE_SETTINGS = {"enable_bitmapscan": "off"}


def tables_of(migrations: Sequence[Migration]) -> list[str]:
    """The tables that the migrations create. The database may have others: those of the application that embeds a node."""
    return [name for migration in migrations for name in _TABLE.findall(migration.sql)]


class PostgresSamples(PostgresBase):
    async def _read_sample(self, block: str, /, **values: Any) -> list[asyncpg.Record]:
        async with self._transaction(block, **SAMPLE_SETTINGS) as connection:
            return await fetch_on(connection, self._queries[block], **values)

    async def sample_ready(self, *, max_queues: int, max_flows: int, limit: int) -> list[ReadySample]:
        rows = await self._read_sample("sample_ready", max_queues=max_queues, max_flows=max_flows, limit=limit)
        return [ReadySample(**row) for row in rows]

    async def sample_database(self) -> DatabaseSample:
        (row,) = await self._read("sample_database")
        tables = await self._read("sample_tables", tables=tables_of(self._migrations))
        wal_bytes = (await self._read("sample_wal"))[0]["bytes"] if row["can_list_wal"] else None
        found = [TableSample(**one) for one in tables]
        return DatabaseSample(row["bytes"], None, wal_bytes, row["oldest_transaction_seconds"], found)

    def pool_use(self) -> list[PoolUse]:
        return self._connections.pool_use()
