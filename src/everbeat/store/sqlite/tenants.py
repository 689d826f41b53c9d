"""The verbs on tenants and the audit trail of the SQLite store: each runs the blocks of its name in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import msgspec

from everbeat.core.access import AuditLogEntry
from everbeat.core.errors import StoreRefused
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tenants import Tenant
from everbeat.store.rows import text_of
from everbeat.store.sqlite.connections import Connections, Row, Session, hex_text
from everbeat.store.sqlite.trail import write_trail
from everbeat.store.tenant_rows import audit_from_row, audit_window, tenant_from_row, tenant_to_row
from everbeat.store.values import AuditFilter, IdempotentAnswer, TenantWrite

_NAME_TAKEN = "UNIQUE constraint failed: tenants.name"


class _Undo(Exception):
    """Raised inside a transaction to roll it back."""


class _Base(Protocol):
    """What the other half of the store lends to this one."""

    _connections: Connections
    _sql: dict[str, str]

    def _moment(self, now: datetime | None) -> datetime: ...
    async def _read(self, block: str, /, **values: Any) -> list[Row]: ...


class SqliteTenants(_Base):
    async def tenant_list(self, *, after_name: str | None, limit: int) -> list[Tenant]:
        return [tenant_from_row(row) for row in await self._read("tenant_list", after_name=after_name or "", limit=limit)]

    async def tenant_find(self, *, ids: Sequence[UUID] = (), names: Sequence[str] = ()) -> list[Tenant]:
        rows = await self._read("tenant_find", ids=hex_text(ids), names=text_of(list(names)))
        return [tenant_from_row(row) for row in rows]

    async def tenant_write(
        self,
        writes: Sequence[TenantWrite],
        *,
        keeper: UUID = DEFAULT_TENANT,
        answer: IdempotentAnswer | None = None,
        trail: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> bool:
        def work(session: Session) -> None:
            moment = self._moment(now)
            for write in writes:
                block = self._sql["tenant_insert" if write.expected is None else "tenant_replace"]
                if session.change(block, tenant_to_row(write)) != 1:
                    raise _Undo
            if answer is not None:
                kept = {**msgspec.structs.asdict(answer), "tenant_id": keeper, "now": moment}
                if session.change(self._sql["answer_insert"], kept) != 1:
                    raise _Undo
            write_trail(session, self._sql, trail, moment)

        try:
            await self._connections.write("tenant_write", work)
        except _Undo:
            return False
        except StoreRefused as error:
            if _NAME_TAKEN not in str(error):
                raise
            return False
        return True

    async def audit_list(
        self, tenant_id: UUID | None, filter_: AuditFilter, *, before: tuple[datetime, UUID] | None, limit: int
    ) -> list[AuditLogEntry]:
        window = audit_window(filter_, before)
        if tenant_id is None:
            rows = await self._read("audit_list_all", limit=limit, **window)
        else:
            rows = await self._read("audit_list", tenant_id=tenant_id, limit=limit, **window)
        return [audit_from_row(row) for row in rows]

    async def answer_find(self, tenant_id: UUID, key: str, *, now: datetime | None = None) -> IdempotentAnswer | None:
        rows = await self._read("answer_find", tenant_id=tenant_id, key=key, now=self._moment(now))
        return IdempotentAnswer(**rows[0]) if rows else None
