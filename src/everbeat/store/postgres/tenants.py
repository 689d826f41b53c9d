"""The verbs on tenants and the audit trail of the PostgreSQL store: each runs the block of its name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import asyncpg
import msgspec

from everbeat.core.access import AuditLogEntry
from everbeat.core.errors import StoreRefused
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tenants import Tenant
from everbeat.store.postgres.audit_log import write_audit_log
from everbeat.store.postgres.connections import Connection, execute_on
from everbeat.store.queries import Query
from everbeat.store.tenant_rows import audit_log_entry_from_row, audit_log_window, tenant_from_row, tenant_to_row
from everbeat.store.values import AuditLogFilter, IdempotentResponse, TenantWrite


class _Rollback(Exception):
    """Raised inside a transaction to roll it back."""


class _Base(Protocol):
    """What the other half of the store lends to this one."""

    _queries: dict[str, Query]

    async def _fetch(self, block: str, /, **values: Any) -> list[asyncpg.Record]: ...
    def _transaction(self, verb: str) -> AbstractAsyncContextManager[Connection]: ...


class PostgresTenants(_Base):
    async def tenant_list(self, *, after_name: str | None, limit: int) -> list[Tenant]:
        return [tenant_from_row(row) for row in await self._fetch("tenant_list", after_name=after_name or "", limit=limit)]

    async def tenant_find(self, *, ids: Sequence[UUID] = (), names: Sequence[str] = ()) -> list[Tenant]:
        return [tenant_from_row(row) for row in await self._fetch("tenant_find", ids=list(ids), names=list(names))]

    async def tenant_write(
        self,
        writes: Sequence[TenantWrite],
        *,
        response_tenant_id: UUID = DEFAULT_TENANT,
        response: IdempotentResponse | None = None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> bool:
        try:
            async with self._transaction("tenant_write") as connection:
                for write in writes:
                    block = self._queries["tenant_insert" if write.expected is None else "tenant_replace"]
                    if await execute_on(connection, block, **tenant_to_row(write)) != 1:
                        raise _Rollback
                if response is not None:
                    kept = {**msgspec.structs.asdict(response), "tenant_id": response_tenant_id, "now": now}
                    if await execute_on(connection, self._queries["idempotent_response_insert"], **kept) != 1:
                        raise _Rollback
                await write_audit_log(connection, self._queries, audit_log, now)
        except _Rollback:
            return False
        except StoreRefused as error:
            if not isinstance(error.__cause__, asyncpg.UniqueViolationError):
                raise
            return False  # the new name of one is taken
        return True

    async def audit_log_list(
        self, tenant_id: UUID | None, filter_: AuditLogFilter, *, before: tuple[datetime, UUID] | None, limit: int
    ) -> list[AuditLogEntry]:
        window = audit_log_window(filter_, before)
        if tenant_id is None:
            rows = await self._fetch("audit_log_list_all", limit=limit, **window)
        else:
            rows = await self._fetch("audit_log_list", tenant_id=tenant_id, limit=limit, **window)
        return [audit_log_entry_from_row(row) for row in rows]

    async def idempotent_response_find(
        self, tenant_id: UUID, key: str, *, now: datetime | None = None
    ) -> IdempotentResponse | None:
        rows = await self._fetch("idempotent_response_find", tenant_id=tenant_id, key=key, now=now)
        return IdempotentResponse(**dict(rows[0])) if rows else None
