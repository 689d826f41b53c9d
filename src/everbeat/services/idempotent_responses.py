"""Answers kept under idempotency keys, for work that does no harm when it is done again: then only the answer must not differ.

Work that must not be done twice keeps its key in its own transaction instead: schedules that are created, tasks, tenants.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from uuid import UUID

from everbeat.services.idempotency import EncodedResponse, Idempotency, repeated
from everbeat.store.base import Store
from everbeat.store.values import IdempotentResponse


class IdempotentResponses:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def once(
        self,
        tenant_id: UUID,
        idempotency: Idempotency | None,
        do: Callable[[], Awaitable[bytes]],
        *,
        now: datetime | None = None,
    ) -> EncodedResponse:
        """What `do` answers, or answered the first time under this key. Of two at once, the first to end speaks for both."""
        if idempotency is None:
            return EncodedResponse(200, await do())
        if (known := await self._known(tenant_id, idempotency, now)) is not None:
            return known
        body = await do()
        response = IdempotentResponse(key=idempotency.key, fingerprint=idempotency.fingerprint, status=200, body=body)
        if await self._store.idempotent_response_keep(tenant_id, response, now=now):
            return EncodedResponse(200, body)
        return await self._known(tenant_id, idempotency, now) or EncodedResponse(200, body)

    async def _known(self, tenant_id: UUID, idempotency: Idempotency, now: datetime | None) -> EncodedResponse | None:
        found = (await self._store.schedule_find(tenant_id, key=idempotency.key, now=now)).response
        return None if found is None else repeated(found, idempotency)
