"""The verbs on tenants and the audit trail of the SQLite store: each runs the blocks of its name in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import msgspec

from everbeat.core.access import AuditLogEntry
from everbeat.core.errors import StoreRefused
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tenants import Tenant
from everbeat.store.rows import text_of
from everbeat.store.sqlite.audit_log import write_audit_log
from everbeat.store.sqlite.connections import Row, SqliteConnections, SqliteSession, hex_text
from everbeat.store.tenant_rows import audit_log_entry_from_row, audit_log_window, tenant_from_row, tenant_to_row
from everbeat.store.values import AuditLogFilter, IdempotentResponse, TenantWrite

_NAME_TAKEN = "UNIQUE constraint failed: tenants.name"


class _Rollback(Exception):
    """Raised inside a transaction to roll it back."""


class _Base(Protocol):
    """What the other half of the store lends to this one."""

    _connections: SqliteConnections
    _sql: dict[str, str]

    def _moment(self, now: datetime | None) -> datetime: ...
    async def _read(self, block: str, /, **values: Any) -> list[Row]: ...


class SqliteTenants(_Base):
    async def tenant_list(self, *, after_name: str | None, limit: int) -> list[Tenant]:
        return [tenant_from_row(row) for row in await self._read("tenant_list", after_name=after_name or "", limit=limit)]

    async def tenant_find(self, *, ids: Sequence[UUID] = (), names: Sequence[str] = ()) -> list[Tenant]:
        rows = await self._read("tenant_find", ids=hex_text(ids), names=text_of(list(names)))
        return [tenant_from_row(row) for row in rows]

    async def tenant_write(
        self,
        writes: Sequence[TenantWrite],
        *,
        response_tenant_id: UUID = DEFAULT_TENANT,
        response: IdempotentResponse | None = None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> bool:
        def work(session: SqliteSession) -> None:
            moment = self._moment(now)
            for write in writes:
                block = self._sql["tenant_insert" if write.expected is None else "tenant_replace"]
                if session.change(block, tenant_to_row(write)) != 1:
                    raise _Rollback
            if response is not None:
                kept = {**msgspec.structs.asdict(response), "tenant_id": response_tenant_id, "now": moment}
                if session.change(self._sql["idempotent_response_insert"], kept) != 1:
                    raise _Rollback
            write_audit_log(session, self._sql, audit_log, moment)

        try:
            await self._connections.write("tenant_write", work)
        except _Rollback:
            return False
        except StoreRefused as error:
            if _NAME_TAKEN not in str(error):
                raise
            return False
        return True

    async def audit_log_list(
        self, tenant_id: UUID | None, filter_: AuditLogFilter, *, before: tuple[datetime, UUID] | None, limit: int
    ) -> list[AuditLogEntry]:
        window = audit_log_window(filter_, before)
        if tenant_id is None:
            rows = await self._read("audit_log_list_all", limit=limit, **window)
        else:
            rows = await self._read("audit_log_list", tenant_id=tenant_id, limit=limit, **window)
        return [audit_log_entry_from_row(row) for row in rows]

    async def idempotent_response_find(
        self, tenant_id: UUID, key: str, *, now: datetime | None = None
    ) -> IdempotentResponse | None:
        rows = await self._read("idempotent_response_find", tenant_id=tenant_id, key=key, now=self._moment(now))
        return IdempotentResponse(**rows[0]) if rows else None
