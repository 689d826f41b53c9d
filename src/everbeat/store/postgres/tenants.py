"""Tenant verbs of the PostgreSQL store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg

from everbeat.core.access import AuditLogEntry
from everbeat.core.errors import StoreRefused
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.postgres.audit_log import write_audit_log
from everbeat.store.postgres.base import PostgresBase
from everbeat.store.postgres.connections import execute_on
from everbeat.store.shared import Rollback
from everbeat.store.tenant_rows import (
    tenant_to_row,
)
from everbeat.store.values import (
    IdempotentResponse,
    TenantWrite,
)


class PostgresTenants(PostgresBase):
    async def tenant_write(
        self,
        writes: Sequence[TenantWrite],
        *,
        response_tenant_id: UUID = DEFAULT_TENANT,
        response: IdempotentResponse | None = None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> bool:
        async def write() -> None:
            async with self._transaction("tenant_write") as connection:
                for write in writes:
                    block = self._queries["tenant_insert" if write.expected is None else "tenant_replace"]
                    if await execute_on(connection, block, **tenant_to_row(write)) != 1:
                        raise Rollback
                    await execute_on(connection, self._queries["tenant_retention_write"], **tenant_to_row(write))
                if response is not None and not await self._keep_response(connection, response_tenant_id, response, now):
                    raise Rollback
                await write_audit_log(connection, self._queries, audit_log, now)

        try:
            await self._retry(write)
        except Rollback:
            return False
        except StoreRefused as error:
            if not isinstance(error.__cause__, asyncpg.UniqueViolationError):
                raise
            return False  # a new name is taken
        return True
