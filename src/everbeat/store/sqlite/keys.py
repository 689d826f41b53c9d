"""The verbs on API keys of the SQLite store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import msgspec

from everbeat.core.access import AuditLogEntry
from everbeat.core.keys import ApiKey
from everbeat.store.key_rows import key_from_row, key_to_row
from everbeat.store.rows import text_of
from everbeat.store.sqlite.audit_log import write_audit_log
from everbeat.store.sqlite.connections import Row, SqliteConnections, SqliteSession, hex_text
from everbeat.store.values import IdempotentResponse, KeyChange


class _Rollback(Exception):
    """Raised inside a transaction to roll it back."""

    def __init__(self, change: KeyChange) -> None:
        self.change = change


class _Base(Protocol):
    """What the other parts of the store lend to this one."""

    _connections: SqliteConnections
    _sql: dict[str, str]

    def _moment(self, now: datetime | None) -> datetime: ...
    async def _read(self, block: str, /, **values: Any) -> list[Row]: ...
    async def _change(self, block: str, /, **values: Any) -> int: ...


class SqliteKeys(_Base):
    async def key_find(
        self, *, hashes: Sequence[bytes] = (), ids: Sequence[UUID] = (), now: datetime | None = None
    ) -> tuple[datetime, list[ApiKey]]:
        moment = self._moment(now)
        rows = await self._read("key_find", hashes=text_of([one.hex() for one in hashes]), ids=hex_text(ids))
        return moment, [key_from_row(row) for row in rows]

    async def key_exists(self, *, now: datetime | None = None) -> bool:
        return bool((await self._read("key_exists", now=self._moment(now)))[0]["is_there"])

    async def key_list(self, tenant_id: UUID | None, *, after: UUID | None, limit: int) -> list[ApiKey]:
        rows = await self._read("key_list", tenant_id=tenant_id, after=after or UUID(int=0), limit=limit)
        return [key_from_row(row) for row in rows]

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
            if only_first and session.rows(self._sql["key_exists"], {"now": moment})[0]["is_there"]:
                return KeyChange.LATE
            for key in keys:
                if session.change(self._sql["key_create"], {**key_to_row(key), "now": moment}) != 1:
                    raise _Rollback(KeyChange.ABSENT)
            if response is not None:
                kept = {**msgspec.structs.asdict(response), "tenant_id": response_tenant_id or keys[0].tenant_id, "now": moment}
                if session.change(self._sql["idempotent_response_insert"], kept) != 1:
                    raise _Rollback(KeyChange.LATE)
            write_audit_log(session, self._sql, audit_log, moment)
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
            admins = session.rows(self._sql["key_admins"], {"now": moment})[0]["count"]
            for id_ in ids:
                if session.change(self._sql["key_revoke"], {"id": id_, "tenant_id": tenant_id, "now": moment}) != 1:
                    raise _Rollback(KeyChange.ABSENT)
            if admins and not session.rows(self._sql["key_admins"], {"now": moment})[0]["count"]:
                raise _Rollback(KeyChange.LAST_ADMIN)
            write_audit_log(session, self._sql, audit_log, moment)
            return KeyChange.DONE

        return await self._with_rollback("key_revoke", work)

    async def key_touch(self, ids: Sequence[UUID], *, now: datetime | None = None) -> int:
        return await self._change("key_touch", ids=hex_text(ids), now=self._moment(now))

    async def _with_rollback(self, verb: str, work: Any) -> KeyChange:
        try:
            change: KeyChange = await self._connections.write(verb, work)
        except _Rollback as undone:
            return undone.change
        return change
