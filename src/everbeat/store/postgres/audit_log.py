"""Writes audit log entries in the transaction of the change that they describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from everbeat.core.access import AuditLogEntry
from everbeat.store.postgres.connections import Connection, execute_on
from everbeat.store.queries import Query
from everbeat.store.tenant_rows import audit_log_columns


async def write_audit_log(
    connection: Connection, queries: Mapping[str, Query], audit_log: Sequence[AuditLogEntry], now: datetime | None
) -> None:
    if audit_log:
        await execute_on(connection, queries["audit_log_insert"], now=now, **audit_log_columns(audit_log))
