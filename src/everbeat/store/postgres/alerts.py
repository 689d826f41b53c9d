"""Alert verbs of the PostgreSQL store: changes of several tables in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from everbeat.core.access import AuditLogEntry
from everbeat.core.incidents import Incident
from everbeat.store.alert_verbs import AlertVerbs, Step
from everbeat.store.postgres.audit_log import write_audit_log
from everbeat.store.postgres.connections import execute_on, fetch_on
from everbeat.store.postgres.tasks import PostgresTasks, key_columns, task_columns
from everbeat.store.values import AlertEvaluation


class PostgresAlerts(AlertVerbs, PostgresTasks):
    async def _change_in_order(self, steps: Sequence[Step], audit_log: Sequence[AuditLogEntry], now: datetime | None) -> int:
        (first, values), *others = steps

        async def write() -> int:
            async with self._transaction(first) as connection:
                changed = await execute_on(connection, self._queries[first], **values)
                if changed:
                    for block, given in others:
                        await execute_on(connection, self._queries[block], **given)
                    await write_audit_log(connection, self._queries, audit_log, now)
            return changed

        return await self._retry(write)

    async def alert_apply(self, evaluation: AlertEvaluation, *, now: datetime | None = None) -> bool:
        tenant_id, queries = evaluation.tenant_id, self._queries

        async def write() -> bool:
            async with self._transaction("alert_apply") as connection:
                values = {"tenant_id": tenant_id, "version": evaluation.version, "positions": evaluation.positions}
                if await execute_on(connection, queries["alert_apply"], **values) == 0:
                    return False
                if evaluation.signal_ids:
                    ids = list(evaluation.signal_ids)
                    await execute_on(connection, queries["alert_apply_signals"], tenant_id=tenant_id, ids=ids)
                # First the incidents that end: one that opens may have the same rule and subject.
                for block, incidents in (
                    ("alert_apply_changed", evaluation.changed),
                    ("alert_apply_opened", evaluation.opened),
                ):
                    if incidents:
                        text = _records(incidents)
                        await execute_on(connection, queries[block], tenant_id=tenant_id, incidents=text)
                if evaluation.tasks:
                    columns = {**task_columns(evaluation.tasks), **key_columns(evaluation.tasks, {})}
                    await fetch_on(connection, queries["task_submit"], **columns, now=now)
            return True

        return await self._retry(write)


def _records(incidents: Sequence[Incident]) -> str:
    return msgspec.json.encode(incidents).decode()
