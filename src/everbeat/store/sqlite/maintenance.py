"""Migrations and retention of the SQLite store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.retention import MONTH_TABLES
from everbeat.store.migrate import BASELINE, SchemaVersion, is_shown, missing_migrations, record_of
from everbeat.store.rows import FIRST_ID
from everbeat.store.sqlite.audit_log import write_audit_log
from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.sqlite.connections import Row, SqliteSession

_MONTH_BLOCKS = {
    "ticks": "month_prune_ticks",
    "task_history": "month_prune_history",
    "attempts": "month_prune_attempts",
    "task_log": "month_prune_log",
}


class SqliteMaintenance(SqliteBase):
    async def schema_version(self) -> SchemaVersion:
        needed = self._migrations[-1].number
        if not self._path.exists():
            return SchemaVersion(0, needed)

        def work(session: SqliteSession) -> SchemaVersion:
            (found,) = session.rows(self._blocks["migration_exists"])
            if not found["is_there"]:
                return SchemaVersion(0, needed)
            (row,) = session.rows(self._blocks["migration_version" if found["has_record"] else "migration_unrecorded"])
            return SchemaVersion(row["version"], needed, row["minimum"] if found["has_record"] else row["version"])

        return await self._connections.read("migration_version", work)

    async def migrate(self, *, visible: int | None = None) -> list[str]:
        def work(session: SqliteSession) -> list[str]:
            row = self._version_to_migrate(session)
            schema = SchemaVersion(row["version"], self._migrations[-1].number, row["minimum"])
            missing = missing_migrations(self._migrations, schema)
            for migration in missing:
                session.script(migration.sql)
                session.change(self._blocks["migration_record"], {**record_of(migration), "now": self._moment(None)})
                if is_shown(migration, visible, row["version"], row["visible"]):
                    values = {"number": migration.number, "name": migration.name, "now": self._moment(None)}
                    session.change(self._blocks["migration_insert"], values)
            return [migration.name for migration in missing]

        return await self._connections.write("migrate", work)

    async def migration_show(self, visible: int | None) -> None:
        values = {"visible": self._migrations[-1].number if visible is None else visible}

        def work(session: SqliteSession) -> None:
            self._version_to_migrate(session)
            session.change(self._blocks["migration_show"], values)
            if visible is not None:
                session.change(self._blocks["migration_hide"], values)

        await self._connections.write("migration_show", work)

    def _version_to_migrate(self, session: SqliteSession) -> Row:
        for block in ("migration_table", "migration_record_table"):
            session.script(self._blocks[block].sql)
        seed = {"baseline": BASELINE, "newest": self._migrations[-1].number}
        session.change(self._blocks["migration_seed"], seed)
        session.script(self._blocks["migration_view"].sql)
        return session.rows(self._blocks["migration_version"])[0]

    async def month_ensure(self, months: Sequence[datetime]) -> list[str]:
        return []

    async def fence_raise(self, *, raised_by: int, after: UUID | None, limit: int) -> list[UUID]:
        values = {"raised_by": raised_by, "after": after or FIRST_ID, "limit": limit}

        def work(session: SqliteSession) -> list[UUID]:
            return [row["id"] for row in session.rows(self._blocks["fence_raise"], values)]

        return await self._connections.write("fence_raise", work)

    async def database_restored(
        self, *, raised_by: int, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> None:
        def work(session: SqliteSession) -> None:
            session.change(self._blocks["database_restored"], {"raised_by": raised_by})
            for block in ("database_restored_nodes", "database_restored_turns"):
                session.change(self._blocks[block])
            write_audit_log(session, self._blocks, audit_log, self._moment(now))

        await self._connections.write("database_restored", work)

    async def audit_log_prune(self, *, before: datetime, limit: int) -> int:
        def work(session: SqliteSession) -> int:
            session.change(self._blocks["audit_log_prune_begin"], {"now": self._moment(None)})
            count = session.change(self._blocks["audit_log_prune"], {"before_at": before, "limit": limit})
            session.change(self._blocks["audit_log_prune_end"])
            return count

        return await self._connections.write("audit_log_prune", work)

    async def month_prune(self, *, before: datetime, limit: int, tables: Sequence[str] = tuple(MONTH_TABLES)) -> int:
        """Delete up to `limit` rows, all of one table, so that the writer is soon free for others."""
        for table in tables:
            if count := await self._change(_MONTH_BLOCKS[table], before_at=before, limit=limit):
                return count
        return 0
