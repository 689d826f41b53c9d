"""Migrations and retention of the SQLite store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from everbeat.store.migrate import missing_migrations
from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.sqlite.connections import SqliteSession


class SqliteMaintenance(SqliteBase):
    async def schema_version(self) -> tuple[int, int]:
        if not self._path.exists():
            return 0, self._migrations[-1].number

        def work(session: SqliteSession) -> int:
            if not session.rows(self._blocks["migration_exists"])[0]["is_there"]:
                return 0
            return int(session.rows(self._blocks["migration_version"])[0]["version"])

        return await self._connections.read("migration_version", work), self._migrations[-1].number

    async def migrate(self) -> list[str]:
        def work(session: SqliteSession) -> list[str]:
            session.script(self._blocks["migration_table"].sql)
            version = int(session.rows(self._blocks["migration_version"])[0]["version"])
            missing = missing_migrations(self._migrations, version)
            for migration in missing:
                session.script(migration.sql)
                row = {"number": migration.number, "name": migration.name, "now": self._moment(None)}
                session.change(self._blocks["migration_insert"], row)
            return [migration.name for migration in missing]

        return await self._connections.write("migrate", work)

    async def month_ensure(self, months: Sequence[datetime]) -> list[str]:
        return []

    async def audit_log_prune(self, *, before: datetime, limit: int) -> int:
        def work(session: SqliteSession) -> int:
            session.change(self._blocks["audit_log_prune_begin"], {"now": self._moment(None)})
            count = session.change(self._blocks["audit_log_prune"], {"before_at": before, "limit": limit})
            session.change(self._blocks["audit_log_prune_end"])
            return count

        return await self._connections.write("audit_log_prune", work)

    async def month_prune(self, *, before: datetime, limit: int) -> int:
        values = {"before_at": before, "limit": limit}

        def work(session: SqliteSession) -> int:
            blocks = ("month_prune_ticks", "month_prune_history", "month_prune_attempts", "month_prune_log")
            return sum(session.change(self._blocks[block], values) for block in blocks)

        return await self._connections.write("month_prune", work)
