"""API key verbs of the PostgreSQL store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.keys import ApiKey
from everbeat.store.key_rows import is_last_admin, key_from_row, key_to_row
from everbeat.store.postgres.audit_log import write_audit_log
from everbeat.store.postgres.base import PostgresBase
from everbeat.store.postgres.connections import Connection, execute_on, fetch_on
from everbeat.store.shared import Rollback
from everbeat.store.values import (
    IdempotentResponse,
    KeyChange,
)


class PostgresKeys(PostgresBase):
    async def key_find(
        self, *, hashes: Sequence[bytes] = (), ids: Sequence[UUID] = (), now: datetime | None = None
    ) -> tuple[datetime, list[ApiKey]]:
        rows = await self._read("key_find", hashes=list(hashes), ids=list(ids), now=now)
        return rows[0]["moment"], [key_from_row(row) for row in rows if row["id"] is not None]

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
        async def write() -> KeyChange:
            async with self._transaction("key_create") as connection:
                if only_first and await self._has_usable_key(connection, now):
                    return KeyChange.CONFLICT
                for key in keys:
                    if await execute_on(connection, self._queries["key_create"], **key_to_row(key), now=now) != 1:
                        raise Rollback(KeyChange.ABSENT)
                owner = response_tenant_id or keys[0].tenant_id
                if response is not None and not await self._keep_response(connection, owner, response, now):
                    raise Rollback(KeyChange.CONFLICT)
                await write_audit_log(connection, self._queries, audit_log, now)
            return KeyChange.DONE

        return await self._write_or_roll_back(write)

    async def _write_or_roll_back(self, write: Callable[[], Awaitable[KeyChange]]) -> KeyChange:
        try:
            return await self._retry(write)
        except Rollback as rollback:
            change: KeyChange = rollback.result
            return change

    async def _has_usable_key(self, connection: Connection, now: datetime | None) -> bool:
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
        async def write() -> KeyChange:
            async with self._transaction("key_revoke") as connection:
                await fetch_on(connection, self._queries["key_lock"])
                (before,) = await fetch_on(connection, self._queries["key_admins"], now=now)
                for id_ in ids:
                    values = {"id": id_, "tenant_id": tenant_id, "now": now}
                    if await execute_on(connection, self._queries["key_revoke"], **values) < 1:
                        raise Rollback(KeyChange.ABSENT)
                (after,) = await fetch_on(connection, self._queries["key_admins"], now=now)
                if is_last_admin(before, after):
                    raise Rollback(KeyChange.LAST_ADMIN)
                await write_audit_log(connection, self._queries, audit_log, now)
            return KeyChange.DONE

        return await self._write_or_roll_back(write)
