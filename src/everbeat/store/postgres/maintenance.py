"""Migrations and the retention of month tables in the PostgreSQL store."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TypeVar
from uuid import UUID

import asyncpg

from everbeat.core.access import AuditLogEntry
from everbeat.core.errors import StoreError, StoreLocked, StoreUnusable
from everbeat.core.retention import MONTH_TABLES
from everbeat.store.migrate import (
    BASELINE,
    Migration,
    SchemaVersion,
    check_not_newer,
    is_shown,
    is_shown_as,
    missing_migrations,
    record_of,
)
from everbeat.store.postgres.audit_log import write_audit_log
from everbeat.store.postgres.base import PostgresBase
from everbeat.store.postgres.connections import Connection, execute_on, fetch_on
from everbeat.store.rows import FIRST_ID
from everbeat.store.values import Notice

T = TypeVar("T")


_MIGRATION_SECONDS = 3600
_LOCK_TRIES = 5
PRUNE_LOCK = "300ms"
_MIGRATION_LOCK = "5s"
# The table does not exist or is being detached. Another node may prune it at the same time after a change of ownership.
_DROPPED_BY_OTHERS = ("42P01", "55000")
MONTH_TABLE = re.compile(r"(ticks|task_history|attempts|task_log)_(\d{4})_(\d{2})(_detached)?")


class PostgresMaintenance(PostgresBase):
    async def schema_version(self) -> SchemaVersion:
        needed = self._migrations[-1].number
        async with self._connections.use(self._pool_name, "migration_version") as connection:
            (found,) = await fetch_on(connection, self._queries["migration_exists"])
            if not found["is_there"]:
                return SchemaVersion(0, needed)
            (row,) = await fetch_on(
                connection, self._queries["migration_version" if found["has_record"] else "migration_unrecorded"]
            )
            return SchemaVersion(row["version"], needed, row["minimum"] if found["has_record"] else row["version"])

    async def migrate(self, *, visible: int | None = None) -> list[str]:
        """Apply the missing migrations. Each one commits together with its number, so an interrupted run can be repeated.

        An empty database gets all of them in one transaction: a node that starts meanwhile must not take it for an old one.
        """
        applied: list[str] = []
        schema = await self.schema_version()
        version = schema.version
        while version < schema.needed:
            try:
                migrations = await self._retry_when_locked(lambda: self._migrate_next(visible))
            except StoreUnusable as error:
                if not isinstance(error.__cause__, asyncpg.InsufficientPrivilegeError):
                    raise
                raise StoreUnusable(
                    f"the database is at migration {version} of {schema.needed}, and this role cannot migrate it "
                    f"({error.__cause__}); run everbeat migrate as the role that owns the tables"
                ) from error.__cause__
            if not migrations:
                break
            applied += [migration.name for migration in migrations]
            version = migrations[-1].number
        check_not_newer(schema)
        return applied

    async def migration_show(self, visible: int | None) -> None:
        newest = self._migrations[-1].number
        (found,) = await self._read("migration_exists")
        if found["has_record"] and is_shown_as(visible, (await self._read("migration_version"))[0]):
            return  # also for a role that may not change this

        async def show() -> None:
            transaction = self._connections.transaction(self._pool_name, "migration_show", lock_timeout=_MIGRATION_LOCK)
            async with transaction as connection:
                await self._lock_and_read_version(connection)
                values = {"visible": newest if visible is None else visible}
                await execute_on(connection, self._queries["migration_show"], **values)
                if visible is not None:
                    await execute_on(connection, self._queries["migration_hide"], **values)
                await self._notify_of_schema(connection)

        await self._retry_when_locked(show)

    async def _lock_and_read_version(self, connection: Connection) -> asyncpg.Record:
        await fetch_on(connection, self._queries["migration_lock"])
        for block in ("migration_table", "migration_record_table"):
            await connection.execute(self._queries[block].sql)
        seed = {"baseline": BASELINE, "newest": self._migrations[-1].number}
        await execute_on(connection, self._queries["migration_seed"], **seed)
        await connection.execute(self._queries["migration_view"].sql)
        (row,) = await fetch_on(connection, self._queries["migration_version"])
        return row

    async def _notify_of_schema(self, connection: Connection) -> None:
        """Delivered with the commit, so that running nodes stop before a node of the new version writes."""
        payload = f"{Notice.SCHEMA.value}:{self._connections.identity}"
        await fetch_on(connection, self._queries["notice_send"], payload=payload)

    async def _migrate_next(self, visible: int | None) -> list[Migration]:
        async with self._connections.transaction(
            self._pool_name,
            "migrate",
            timeout_seconds=_MIGRATION_SECONDS,
            statement_timeout=f"{_MIGRATION_SECONDS}s",
            lock_timeout=_MIGRATION_LOCK,
        ) as connection:
            row = await self._lock_and_read_version(connection)
            schema = SchemaVersion(row["version"], self._migrations[-1].number, row["minimum"])
            missing = missing_migrations(self._migrations, schema)
            if not missing:
                return []
            migrations = missing if row["version"] == 0 else missing[:1]
            for migration in migrations:
                await connection.execute(migration.sql, timeout=_MIGRATION_SECONDS)
                await execute_on(connection, self._queries["migration_record"], **record_of(migration))
                if is_shown(migration, visible, row["version"], row["visible"]):
                    values = {"number": migration.number, "name": migration.name}
                    await execute_on(connection, self._queries["migration_insert"], **values)
            await self._notify_of_schema(connection)
            return migrations

    async def _retry_when_locked(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat work that needs a lock on a table in use, if it cannot get the lock within the lock timeout."""
        for _ in range(_LOCK_TRIES - 1):
            try:
                return await work()
            except StoreLocked:
                await asyncio.sleep(random.uniform(0.1, 1.0))
        return await work()

    async def fence_raise(self, *, raised_by: int, after: UUID | None, limit: int) -> list[UUID]:
        rows = await self._read("fence_raise", raised_by=raised_by, after=after or FIRST_ID, limit=limit)
        return [row["id"] for row in rows]

    async def database_restored(
        self, *, raised_by: int, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> None:
        async with self._transaction("database_restored") as connection:
            await execute_on(connection, self._queries["database_restored"], raised_by=raised_by)
            for block in ("database_restored_nodes", "database_restored_turns"):
                await execute_on(connection, self._queries[block])
            await write_audit_log(connection, self._queries, audit_log, now)

    async def audit_log_prune(self, *, before: datetime, limit: int) -> int:
        return int((await self._read("audit_log_prune", before_at=before, limit=limit))[0]["count"])

    async def month_prune(self, *, before: datetime, limit: int, tables: Sequence[str] = tuple(MONTH_TABLES)) -> int:
        dropped = 0
        for row in await self._read("month_list"):
            match = MONTH_TABLE.fullmatch(row["name"])
            if match is None or match[1] not in tables or dropped >= limit:
                continue
            if (int(match[2]), int(match[3])) >= (before.year, before.month):
                continue
            try:
                is_dropped = await (self._drop_month(match, row) if row["is_mine"] else self._drop_month_as_owner(match))
            except StoreError as error:
                if not self._is_dropped_by_others(error):
                    raise
                is_dropped = False
            self._database.months.clear()
            dropped += is_dropped
        return dropped

    @staticmethod
    def _is_dropped_by_others(error: StoreError) -> bool:
        return getattr(error.__cause__, "sqlstate", None) in _DROPPED_BY_OTHERS

    async def _drop_month(self, match: re.Match[str], row: asyncpg.Record) -> bool:
        if row["is_attached"]:
            await self._detach_own_month(match, row)
        await self._run_on_month(match, "month_drop")
        return True

    async def _detach_own_month(self, match: re.Match[str], row: asyncpg.Record, *, rename: bool = False) -> None:
        if row["is_attached"]:
            await self._run_on_month(match, "month_detach_finish" if row["is_pending"] else "month_detach")
        if rename:
            await self._run_on_month(match, "month_rename")

    async def _run_on_month(self, match: re.Match[str], *blocks: str) -> None:
        async with self._connections.outside_transaction(self._pool_name, "month_prune") as connection:
            for block in blocks:
                sql = self._queries[block].sql.replace("parent_table", match[1])
                await connection.execute(sql.replace("month_table", match[0]))

    async def _drop_month_as_owner(self, match: re.Match[str]) -> bool:
        """Drop a month with the function of the table owner. False if it cannot lock the ledger; a later run tries again.

        The function cannot detach concurrently. It needs a short exclusive lock on the whole ledger.
        """

        async def drop() -> None:
            async with self._connections.transaction(self._pool_name, "month_prune", lock_timeout=PRUNE_LOCK) as connection:
                await fetch_on(connection, self._queries["month_drop_as_owner"], parent=match[1], child=match[0])

        try:
            await self._retry_when_locked(drop)
        except StoreLocked:
            return False
        return True
