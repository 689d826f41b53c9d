"""The verbs of audit findings of the SQLite store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from everbeat.core.audit_findings import AuditFinding, Resolution
from everbeat.store.finding_rows import finding_from_row, finding_to_row
from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.sqlite.connections import SqliteSession


class SqliteAuditFindings(SqliteBase):
    async def finding_record(self, findings: Sequence[AuditFinding]) -> list[AuditFinding]:
        def work(session: SqliteSession) -> list[AuditFinding]:
            rows = [session.rows(self._blocks["finding_record"], finding_to_row(finding)) for finding in findings]
            return [finding_from_row(row) for found in rows for row in found]

        return await self._connections.write("finding_record", work)

    async def finding_resolve(
        self, resolutions: Mapping[UUID, Resolution], *, now: datetime | None = None
    ) -> list[AuditFinding]:
        def work(session: SqliteSession) -> list[AuditFinding]:
            moment = self._moment(now)
            block = self._blocks["finding_resolve"]
            rows = [
                session.rows(block, {"id": id_, "resolution": resolution.value, "now": moment})
                for id_, resolution in sorted(resolutions.items())
            ]
            return [finding_from_row(row) for found in rows for row in found]

        return await self._connections.write("finding_resolve", work)
