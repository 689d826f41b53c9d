"""Tenant verbs of the SQLite store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.errors import StoreRefused
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.shared import Rollback
from everbeat.store.sqlite.audit_log import write_audit_log
from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.sqlite.connections import SqliteSession
from everbeat.store.tenant_rows import tenant_to_row
from everbeat.store.values import (
    IdempotentResponse,
    TenantWrite,
)

_NAME_TAKEN = "UNIQUE constraint failed: tenants.name"


class SqliteTenants(SqliteBase):
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
                block = self._blocks["tenant_insert" if write.expected is None else "tenant_replace"]
                if session.change(block, tenant_to_row(write)) != 1:
                    raise Rollback
                session.change(self._blocks["tenant_retention_write"], tenant_to_row(write))
            if response is not None and not self._keep_response(session, response_tenant_id, response, moment):
                raise Rollback
            write_audit_log(session, self._blocks, audit_log, moment)

        try:
            await self._connections.write("tenant_write", work)
        except Rollback:
            return False
        except StoreRefused as error:
            if _NAME_TAKEN not in str(error):
                raise
            return False
        return True
