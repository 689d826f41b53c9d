"""The base of all verbs of the SQLite store: the connections, the clock, and how a block is run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from everbeat.core.access import AuditLogEntry
from everbeat.store.base import Observer
from everbeat.store.migrate import load_migrations
from everbeat.store.shared import SharedVerbs
from everbeat.store.sqlite.audit_log import write_audit_log
from everbeat.store.sqlite.blocks import load_typed_blocks
from everbeat.store.sqlite.connections import Row, SqliteConnections, SqliteSession
from everbeat.store.sqlite.conversions import bound, from_microseconds
from everbeat.store.values import (
    IdempotentResponse,
)

_PACKAGE = "everbeat.store.sqlite"


class SqliteBase(SharedVerbs):
    def __init__(self, path: Path, observer: Observer | None) -> None:
        self._path = path
        self._blocks = load_typed_blocks(_PACKAGE)
        self._migrations = load_migrations(_PACKAGE)
        self._connections = SqliteConnections(path, writer_setup_sql=self._blocks["tick_fire_table"].sql, observer=observer)

    def _moment(self, now: datetime | None) -> datetime:
        return now if now is not None else from_microseconds(time.time_ns() // 1000)

    async def clock(self, *, now: datetime | None = None) -> datetime:
        return self._moment(now)

    async def _read(self, block: str, /, **values: Any) -> list[Row]:
        values = self._bound(values)
        return await self._connections.read(block, lambda session: session.rows(self._blocks[block], values))

    async def _change(self, block: str, /, **values: Any) -> int:
        values = self._bound(values)
        return await self._connections.write(block, lambda session: session.change(self._blocks[block], values))

    async def _change_with_audit_log(
        self, block: str, audit_log: Sequence[AuditLogEntry], now: datetime | None, /, **values: Any
    ) -> int:
        values = self._bound(values)

        def work(session: SqliteSession) -> int:
            changed = session.change(self._blocks[block], values)
            if changed:
                write_audit_log(session, self._blocks, audit_log, self._moment(now))
            return changed

        return await self._connections.write(block, work)

    def _bound(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values as SQLite parameters: lists as JSON, because it has no arrays, and `now` from the process clock."""
        converted = bound(values)
        return {**converted, "now": self._moment(converted["now"])} if "now" in converted else converted

    def _keep_response(self, session: SqliteSession, tenant_id: UUID, response: IdempotentResponse, moment: datetime) -> bool:
        """Store a response. Returns False if its key is in use."""
        values = {**msgspec.structs.asdict(response), "tenant_id": tenant_id, "now": moment}
        return session.change(self._blocks["idempotent_response_keep"], values) == 1
