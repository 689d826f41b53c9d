"""The verbs on API keys of the PostgreSQL store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import asyncpg
import msgspec

from everbeat.core.access import AuditLogEntry
from everbeat.core.keys import ApiKey
from everbeat.store.key_rows import key_from_row, key_to_row
from everbeat.store.postgres.audit_log import write_audit_log
from everbeat.store.postgres.connections import Connection, PostgresConnections, execute_on, fetch_on
from everbeat.store.queries import Query
from everbeat.store.values import IdempotentResponse, KeyChange


class _Rollback(Exception):
    """Raised inside a transaction to roll it back."""

    def __init__(self, change: KeyChange) -> None:
        self.change = change


class _Base(Protocol):
    """What the other parts of the store lend to this one."""

    _connections: PostgresConnections
    _queries: dict[str, Query]

    async def _fetch(self, block: str, /, **values: Any) -> list[asyncpg.Record]: ...
    async def _execute(self, block: str, /, **values: Any) -> int: ...


class PostgresKeys(_Base):
    async def key_find(
        self, *, hashes: Sequence[bytes] = (), ids: Sequence[UUID] = (), now: datetime | None = None
    ) -> tuple[datetime, list[ApiKey]]:
        rows = await self._fetch("key_find", hashes=list(hashes), ids=list(ids), now=now)
        return rows[0]["moment"], [key_from_row(row) for row in rows if row["id"] is not None]

    async def key_exists(self, *, now: datetime | None = None) -> bool:
        return bool((await self._fetch("key_exists", now=now))[0]["is_there"])

    async def key_list(self, tenant_id: UUID | None, *, after: UUID | None, limit: int) -> list[ApiKey]:
        rows = await self._fetch("key_list", tenant_id=tenant_id, after=after or UUID(int=0), limit=limit)
        return [key_from_row(row) for row in rows]

    async def key_create(
        self,
        keys: Sequence[ApiKey],
        *,
        only_first: bool = False,
        response_tenant_id: UUID | None = None,
        response: IdempotentResponse | None = None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> KeyChange:
        try:
            async with self._connections.transaction("api", "key_create") as connection:
                if only_first and await self._is_any_usable(connection, now):
                    return KeyChange.LATE
                for key in keys:
                    if await execute_on(connection, self._queries["key_create"], **key_to_row(key), now=now) != 1:
                        raise _Rollback(KeyChange.ABSENT)
                if response is not None:
                    kept = {
                        **msgspec.structs.asdict(response),
                        "tenant_id": response_tenant_id or keys[0].tenant_id,
                        "now": now,
                    }
                    if await execute_on(connection, self._queries["idempotent_response_insert"], **kept) != 1:
                        raise _Rollback(KeyChange.LATE)
                await write_audit_log(connection, self._queries, audit_log, now)
        except _Rollback as undone:
            return undone.change
        return KeyChange.DONE

    async def _is_any_usable(self, connection: Connection, now: datetime | None) -> bool:
        await fetch_on(connection, self._queries["key_lock"])
        (row,) = await fetch_on(connection, self._queries["key_exists"], now=now)
        return bool(row["is_there"])

    async def key_revoke(
        self,
        tenant_id: UUID | None,
        ids: Sequence[UUID],
        *,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> KeyChange:
        try:
            async with self._connections.transaction("api", "key_revoke") as connection:
                await fetch_on(connection, self._queries["key_lock"])
                admins = await self._count_admins(connection, now)
                for id_ in ids:
                    values = {"id": id_, "tenant_id": tenant_id, "now": now}
                    if await execute_on(connection, self._queries["key_revoke"], **values) != 1:
                        raise _Rollback(KeyChange.ABSENT)
                if admins and not await self._count_admins(connection, now):
                    raise _Rollback(KeyChange.LAST_ADMIN)
                await write_audit_log(connection, self._queries, audit_log, now)
        except _Rollback as undone:
            return undone.change
        return KeyChange.DONE

    async def _count_admins(self, connection: Connection, now: datetime | None) -> int:
        (row,) = await fetch_on(connection, self._queries["key_admins"], now=now)
        return int(row["count"])

    async def key_touch(self, ids: Sequence[UUID], *, now: datetime | None = None) -> int:
        return await self._execute("key_touch", ids=list(ids), now=now)
