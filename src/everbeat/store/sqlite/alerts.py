"""Alert verbs of the SQLite store: changes of several tables in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from everbeat.core.access import AuditLogEntry
from everbeat.store.alert_verbs import AlertVerbs, Step
from everbeat.store.sqlite.audit_log import write_audit_log
from everbeat.store.sqlite.connections import SqliteSession
from everbeat.store.sqlite.conversions import hex_text, to_microseconds
from everbeat.store.sqlite.tasks import SqliteTasks
from everbeat.store.values import AlertEvaluation


class SqliteAlerts(AlertVerbs, SqliteTasks):
    async def _change_in_order(self, steps: Sequence[Step], audit_log: Sequence[AuditLogEntry], now: datetime | None) -> int:
        (first, values), *others = [(block, self._bound(dict(given))) for block, given in steps]

        def work(session: SqliteSession) -> int:
            changed = session.change(self._blocks[first], values)
            if changed:
                for block, given in others:
                    session.change(self._blocks[block], given)
                write_audit_log(session, self._blocks, audit_log, self._moment(now))
            return changed

        return await self._connections.write(first, work)

    async def alert_apply(self, evaluation: AlertEvaluation, *, now: datetime | None = None) -> bool:
        tenant_id = evaluation.tenant_id

        def work(session: SqliteSession) -> bool:
            values = {"tenant_id": tenant_id, "version": evaluation.version, "positions": evaluation.positions}
            if session.change(self._blocks["alert_apply"], values) == 0:
                return False
            ids = hex_text(evaluation.signal_ids)
            session.change(self._blocks["alert_apply_signals"], {"tenant_id": tenant_id, "ids": ids})
            # First the incidents that end: one that opens may have the same rule and subject.
            changed = [msgspec.structs.asdict(one) for one in evaluation.changed]
            session.change_many(self._blocks["alert_apply_changed"], changed)
            opened = [msgspec.structs.asdict(one) for one in evaluation.opened]
            session.change_many(self._blocks["alert_apply_opened"], opened)
            self._insert(session, evaluation.tasks, to_microseconds(self._moment(now)))
            return True

        return await self._connections.write("alert_apply", work)
