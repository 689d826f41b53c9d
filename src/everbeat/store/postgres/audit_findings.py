"""The verbs of audit findings of the PostgreSQL store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from everbeat.core.audit_findings import AuditFinding, Resolution
from everbeat.store.finding_rows import finding_from_row, finding_to_row
from everbeat.store.postgres.base import PostgresBase
from everbeat.store.postgres.connections import fetch_on


class PostgresAuditFindings(PostgresBase):
    async def finding_record(self, findings: Sequence[AuditFinding]) -> list[AuditFinding]:
        async def write() -> list[AuditFinding]:
            opened: list[AuditFinding] = []
            async with self._transaction("finding_record") as connection:
                for finding in findings:
                    rows = await fetch_on(connection, self._queries["finding_record"], **finding_to_row(finding))
                    opened += map(finding_from_row, rows)
            return opened

        return await self._retry(write)

    async def finding_resolve(
        self, resolutions: Mapping[UUID, Resolution], *, now: datetime | None = None
    ) -> list[AuditFinding]:
        async def write() -> list[AuditFinding]:
            resolved: list[AuditFinding] = []
            async with self._transaction("finding_resolve") as connection:
                for id_, resolution in sorted(resolutions.items()):
                    values = {"id": id_, "resolution": resolution.value, "now": now}
                    resolved += map(finding_from_row, await fetch_on(connection, self._queries["finding_resolve"], **values))
            return resolved

        return await self._retry(write)
