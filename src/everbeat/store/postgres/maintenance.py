"""Migrations and the retention of month tables in the PostgreSQL store."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar

import asyncpg

from everbeat.core.errors import StoreError, StoreLocked, StoreUnusable
from everbeat.store.migrate import Migration, missing_migrations
from everbeat.store.postgres.base import PostgresBase
from everbeat.store.postgres.connections import execute_on, fetch_on
from everbeat.store.values import Notice

T = TypeVar("T")


_MIGRATION_SECONDS = 3600
_LOCK_TRIES = 5
_PRUNE_LOCK = "300ms"
_MIGRATION_LOCK = "5s"
# The table does not exist or is being detached. Another node may prune it at the same time after a change of ownership.
_DROPPED_BY_OTHERS = ("42P01", "55000")
_MONTH_TABLE = re.compile(r"(ticks|task_history|attempts|task_log)_(\d{4})_(\d{2})")


class PostgresMaintenance(PostgresBase):
    async def schema_version(self) -> tuple[int, int]:
        needed = self._migrations[-1].number
        async with self._connections.use(self._pool_name, "migration_version") as connection:
            (row,) = await fetch_on(connection, self._queries["migration_exists"])
            if not row["is_there"]:
                return 0, needed
            (row,) = await fetch_on(connection, self._queries["migration_version"])
            return row["version"], needed

    async def migrate(self) -> list[str]:
        """Apply the missing migrations. Each one commits together with its number, so an interrupted run can be repeated.

        An empty database gets all of them in one transaction: a node that starts meanwhile must not take it for an old one.
        """
        applied: list[str] = []
        version, needed = await self.schema_version()
        while version != needed:
            try:
                migrations = await self._retry_when_locked(self._migrate_next)
            except StoreUnusable as error:
                if not isinstance(error.__cause__, asyncpg.InsufficientPrivilegeError):
                    raise
                raise StoreUnusable(
                    f"the database is at migration {version} of {needed}, and this role cannot migrate it ({error.__cause__}); "
                    "run everbeat migrate as the role that owns the tables"
                ) from error.__cause__
            if not migrations:
                break
            applied += [migration.name for migration in migrations]
            version = migrations[-1].number
        return applied

    async def _migrate_next(self) -> list[Migration]:
        async with self._connections.transaction(
            self._pool_name,
            "migrate",
            timeout_seconds=_MIGRATION_SECONDS,
            statement_timeout=f"{_MIGRATION_SECONDS}s",
            lock_timeout=_MIGRATION_LOCK,
        ) as connection:
            await fetch_on(connection, self._queries["migration_lock"])
            await connection.execute(self._queries["migration_table"].sql)
            (row,) = await fetch_on(connection, self._queries["migration_version"])
            missing = missing_migrations(self._migrations, row["version"])
            if not missing:
                return []
            migrations = missing if row["version"] == 0 else missing[:1]
            for migration in migrations:
                await connection.execute(migration.sql, timeout=_MIGRATION_SECONDS)
                await execute_on(connection, self._queries["migration_insert"], number=migration.number, name=migration.name)
            # Delivered with the commit, so that running nodes stop before a node of the new version writes.
            payload = f"{Notice.SCHEMA.value}:{self._connections.identity}"
            await fetch_on(connection, self._queries["notice_send"], payload=payload)
            return migrations

    async def _retry_when_locked(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat work that needs a lock on a table in use, if it cannot get the lock within the lock timeout."""
        for _ in range(_LOCK_TRIES - 1):
            try:
                return await work()
            except StoreLocked:
                await asyncio.sleep(random.uniform(0.1, 1.0))
        return await work()

    async def audit_log_prune(self, *, before: datetime, limit: int) -> int:
        return int((await self._read("audit_log_prune", before_at=before, limit=limit))[0]["count"])

    async def month_prune(self, *, before: datetime, limit: int) -> int:
        dropped = 0
        for row in await self._read("month_list"):
            match = _MONTH_TABLE.fullmatch(row["name"])
            if match is None or (int(match[2]), int(match[3])) >= (before.year, before.month) or dropped >= limit:
                continue
            try:
                is_dropped = await (self._drop_month(match, row) if row["is_mine"] else self._drop_month_as_owner(match))
            except StoreError as error:
                if getattr(error.__cause__, "sqlstate", None) not in _DROPPED_BY_OTHERS:
                    raise
                is_dropped = False
            self._database.months.clear()
            dropped += is_dropped
        return dropped

    async def _drop_month(self, match: re.Match[str], row: asyncpg.Record) -> bool:
        detach = "month_detach_finish" if row["is_pending"] else "month_detach"
        blocks = [detach, "month_drop"] if row["is_attached"] else ["month_drop"]
        async with self._connections.outside_transaction(self._pool_name, "month_prune") as connection:
            for block in blocks:
                sql = self._queries[block].sql.replace("parent_table", match[1])
                await connection.execute(sql.replace("month_table", match[0]))
        return True

    async def _drop_month_as_owner(self, match: re.Match[str]) -> bool:
        """Drop a month with the function of the table owner. False if it cannot lock the ledger; a later run tries again.

        The function cannot detach concurrently. It needs a short exclusive lock on the whole ledger.
        """

        async def drop() -> None:
            async with self._connections.transaction(self._pool_name, "month_prune", lock_timeout=_PRUNE_LOCK) as connection:
                await fetch_on(connection, self._queries["month_drop_as_owner"], parent=match[1], child=match[0])

        try:
            await self._retry_when_locked(drop)
        except StoreLocked:
            return False
        return True
