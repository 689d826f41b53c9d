"""WebhookEndpoint verbs, which are the same in both dialects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from everbeat.core.access import AuditLogEntry
from everbeat.core.endpoints import WebhookEndpoint
from everbeat.store.shared import SharedVerbs


class EndpointVerbs(SharedVerbs):
    """The verbs on endpoints and on secrets of the server. Each dialect adds its operations."""

    async def endpoint_list(self, tenant_id: UUID, *, after_name: str | None, limit: int) -> list[WebhookEndpoint]:
        rows = await self._read("endpoint_list", tenant_id=tenant_id, after_name=after_name or "", limit=limit)
        return [_endpoint(row) for row in rows]

    async def endpoint_find(self, keys: Sequence[tuple[UUID, str]]) -> list[WebhookEndpoint]:
        tenant_ids, names = [tenant_id for tenant_id, _ in keys], [name for _, name in keys]
        return [_endpoint(row) for row in await self._read("endpoint_find", tenant_ids=tenant_ids, names=names)]

    async def endpoint_write(
        self,
        endpoint: WebhookEndpoint,
        *,
        expected: int | None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> bool:
        values = msgspec.structs.asdict(endpoint)
        values["headers"] = msgspec.json.encode(endpoint.headers).decode()
        if expected is None:
            return await self._change_with_audit_log("endpoint_insert", audit_log, now, **values) == 1
        return await self._change_with_audit_log("endpoint_replace", audit_log, now, **values, expected=expected) == 1

    async def endpoint_delete(
        self, tenant_id: UUID, name: str, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> int:
        return await self._change_with_audit_log("endpoint_delete", audit_log, now, tenant_id=tenant_id, name=name)

    async def server_secret(self, name: str, candidate: str, *, now: datetime | None = None) -> str:
        if not (found := await self._read("server_secret_find", name=name)):
            await self._change("server_secret_insert", name=name, secret=candidate, now=now)
            found = await self._read("server_secret_find", name=name)
        secret: str = found[0]["secret"]
        return secret


def _endpoint(row: Mapping[str, Any]) -> WebhookEndpoint:
    return WebhookEndpoint(**{**row, "headers": msgspec.json.decode(row["headers"], type=dict[str, str])})
