"""Writes lines of the audit trail inside the transaction of the change they tell of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from everbeat.core.access import AuditLogEntry
from everbeat.store.postgres.connections import Connection, execute_on
from everbeat.store.queries import Query
from everbeat.store.tenant_rows import trail_columns


async def write_trail(
    connection: Connection, queries: Mapping[str, Query], trail: Sequence[AuditLogEntry], now: datetime | None
) -> None:
    if trail:
        await execute_on(connection, queries["audit_insert"], now=now, **trail_columns(trail))
