"""Stored responses under idempotency keys, for operations that may run twice: only the response must be the same.

Operations that must not run twice store their key in their own transaction instead: creating schedules, tasks and tenants.
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
        """Return the response of `do`, or the response stored under this key.

        Of concurrent requests with the same key, the first to finish stores the response for all.
        """
        if idempotency is None:
            return EncodedResponse(200, await do())
        if (stored := await self._stored(tenant_id, idempotency, now)) is not None:
            return stored
        body = await do()
        response = IdempotentResponse(key=idempotency.key, fingerprint=idempotency.fingerprint, status=200, body=body)
        if await self._store.idempotent_response_keep(tenant_id, response, now=now):
            return EncodedResponse(200, body)
        return await self._stored(tenant_id, idempotency, now) or EncodedResponse(200, body)

    async def _stored(self, tenant_id: UUID, idempotency: Idempotency, now: datetime | None) -> EncodedResponse | None:
        found = (await self._store.schedule_find(tenant_id, key=idempotency.key, now=now)).response
        return None if found is None else repeated(found, idempotency)
