"""API key verbs of the SQLite store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.keys import ApiKey
from everbeat.store.key_rows import is_last_admin, key_from_row, key_to_row
from everbeat.store.rows import (
    text_of,
)
from everbeat.store.shared import Rollback
from everbeat.store.sqlite.audit_log import write_audit_log
from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.sqlite.connections import SqliteSession
from everbeat.store.sqlite.conversions import hex_text
from everbeat.store.values import (
    IdempotentResponse,
    KeyChange,
)


class SqliteKeys(SqliteBase):
    async def key_find(
        self, *, hashes: Sequence[bytes] = (), ids: Sequence[UUID] = (), now: datetime | None = None
    ) -> tuple[datetime, list[ApiKey]]:
        moment = self._moment(now)
        rows = await self._read("key_find", hashes=text_of([one.hex() for one in hashes]), ids=hex_text(ids))
        return moment, [key_from_row(row) for row in rows]

    async def key_create(
        self,
        keys: Sequence[ApiKey],
        *,
        only_first: bool = False,
        response_tenant_id: UUID | None = None,
        response: IdempotentResponse | None = None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> KeyChange:
        def work(session: SqliteSession) -> KeyChange:
            moment = self._moment(now)
            if only_first and session.rows(self._blocks["key_exists"], {"now": moment})[0]["is_there"]:
                return KeyChange.CONFLICT
            for key in keys:
                if session.change(self._blocks["key_create"], {**key_to_row(key), "now": moment}) != 1:
                    raise Rollback(KeyChange.ABSENT)
            owner = response_tenant_id or keys[0].tenant_id
            if response is not None and not self._keep_response(session, owner, response, moment):
                raise Rollback(KeyChange.CONFLICT)
            write_audit_log(session, self._blocks, audit_log, moment)
            return KeyChange.DONE

        return await self._with_rollback("key_create", work)

    async def key_revoke(
        self,
        tenant_id: UUID | None,
        ids: Sequence[UUID],
        *,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> KeyChange:
        def work(session: SqliteSession) -> KeyChange:
            moment = self._moment(now)
            (before,) = session.rows(self._blocks["key_admins"], {"now": moment})
            for id_ in ids:
                if session.change(self._blocks["key_revoke"], {"id": id_, "tenant_id": tenant_id, "now": moment}) < 1:
                    raise Rollback(KeyChange.ABSENT)
            (after,) = session.rows(self._blocks["key_admins"], {"now": moment})
            if is_last_admin(before, after):
                raise Rollback(KeyChange.LAST_ADMIN)
            write_audit_log(session, self._blocks, audit_log, moment)
            return KeyChange.DONE

        return await self._with_rollback("key_revoke", work)

    async def _with_rollback(self, verb: str, work: Any) -> KeyChange:
        try:
            change: KeyChange = await self._connections.write(verb, work)
        except Rollback as rollback:
            change = rollback.result
        return change
