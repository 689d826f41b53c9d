"""Callbacks: destinations that have accepted a task report its end, progress or failure with the token of the attempt."""

from __future__ import annotations

import base64
import secrets
from uuid import UUID

import msgspec

from everbeat.core.callbacks import KEY_BYTES, SECRET_NAME, CallbackClaims, make_token, read_token
from everbeat.core.errors import Unauthenticated
from everbeat.core.protocol import (
    LeaseCompleteRequest,
    LeaseCompletion,
    LeaseFailRequest,
    LeaseFailure,
    LeaseHeartbeat,
    LeaseHeartbeatRequest,
    LeaseHeartbeatResult,
    LeaseResult,
)
from everbeat.services.leases import LeaseService
from everbeat.store.base import Store
from everbeat.store.values import LeaseRef

_WORKER = "callback"
_BAD_TOKEN = "Send the token of this task: Authorization: Bearer followed by the value of everbeat-callback-token."


class CallbackKey:
    """The key of all callback tokens. It is made when it is first needed, and is the same on all nodes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key: bytes | None = None

    async def get(self) -> bytes:
        if self._key is None:
            candidate = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
            self._key = base64.b64decode(await self._store.server_secret(SECRET_NAME, candidate))
        return self._key

    async def token(self, tenant_id: UUID, task_id: UUID, fence: int) -> str:
        return make_token(await self.get(), CallbackClaims(tenant_id, task_id, fence))


class CallbackService:
    """The operations of /v1/callbacks. A token of an earlier attempt is answered `stale`, and changes nothing."""

    def __init__(self, store: Store, key: CallbackKey, leases: LeaseService) -> None:
        self._store = store
        self._key = key
        self._leases = leases

    async def claims(self, task_id: UUID, token: str | None) -> CallbackClaims:
        """Return what the token allows. Raises Unauthenticated if it is not a token for this task."""
        claims = None if token is None else read_token(await self._key.get(), task_id, token)
        if claims is None:
            raise Unauthenticated(_BAD_TOKEN)
        return claims

    async def complete(self, claims: CallbackClaims, result: msgspec.Raw) -> LeaseResult:
        completion = LeaseCompletion(id=claims.task_id, fence=claims.fence, result=result)
        request = LeaseCompleteRequest(worker=_WORKER, results=[completion])
        return (await self._leases.complete(claims.tenant_id, request))[0]

    async def fail(self, claims: CallbackClaims, failure: LeaseFailure) -> LeaseResult:
        request = LeaseFailRequest(worker=_WORKER, failures=[failure])
        return (await self._leases.fail(claims.tenant_id, request))[0]

    async def heartbeat(
        self, claims: CallbackClaims, heartbeat: LeaseHeartbeat, lease_seconds: float | None = None
    ) -> LeaseHeartbeatResult:
        """Renew the lease. `lease_seconds`: its duration from now on. It ends at the deadline of the attempt at the latest."""
        if lease_seconds is not None:
            lease = LeaseRef(claims.tenant_id, claims.task_id, claims.fence)
            await self._store.task_accept([(lease, lease_seconds, None)])
        request = LeaseHeartbeatRequest(worker=_WORKER, leases=[heartbeat])
        return (await self._leases.heartbeat(claims.tenant_id, request))[0]
