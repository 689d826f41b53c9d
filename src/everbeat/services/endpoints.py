"""Operations on named endpoints. Secrets are made here, and are part of a result only if they are new."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from everbeat.core.access import Caller
from everbeat.core.audit_log import AuditLogAction
from everbeat.core.endpoints import EndpointInput, WebhookEndpoint, is_same, new_endpoint, rotated
from everbeat.core.errors import Conflict, NotFound
from everbeat.core.webhooks import SECRET_BYTES, secret_text
from everbeat.services.audit_log import new_audit_log_entries
from everbeat.services.target_rules import RulesOf, no_rules
from everbeat.store.base import Store

_TRIES = 10


class ChangedEndpoint(NamedTuple):
    """`secret`: the new signing secret, which is shown only this once. None: it has not changed."""

    endpoint: WebhookEndpoint
    secret: str | None = None


def _random_secret() -> str:
    return secret_text(secrets.token_bytes(SECRET_BYTES))


class EndpointService:
    def __init__(self, store: Store, *, rules_of: RulesOf = no_rules, new_secret: Callable[[], str] = _random_secret) -> None:
        self._store = store
        self._rules_of = rules_of
        self._new_secret = new_secret

    async def page(self, tenant_id: UUID, *, after_name: str | None, limit: int) -> list[WebhookEndpoint]:
        return await self._store.endpoint_list(tenant_id, after_name=after_name, limit=limit)

    async def get(self, tenant_id: UUID, name: str) -> WebhookEndpoint:
        for endpoint in await self._store.endpoint_find([(tenant_id, name)]):
            return endpoint
        raise _not_found(name)

    async def put(
        self, tenant_id: UUID, name: str, given: EndpointInput, *, by: Caller | None = None, now: datetime | None = None
    ) -> ChangedEndpoint:
        """Create an endpoint with a new secret, or replace it and keep its secrets. Nothing changes if nothing differs."""
        rules = self._rules_of(tenant_id).webhooks
        for _ in range(_TRIES):
            existing = next(iter(await self._store.endpoint_find([(tenant_id, name)])), None)
            moment = await self._store.clock(now=now)
            endpoint = new_endpoint(tenant_id, name, given, existing, rules, moment, self._new_secret())
            if existing is not None and is_same(existing, endpoint):
                return ChangedEndpoint(existing)
            audit_log = new_audit_log_entries(by, AuditLogAction.ENDPOINT_PUT, name, revision=endpoint.revision)
            expected = None if existing is None else existing.revision
            if await self._store.endpoint_write(endpoint, expected=expected, audit_log=audit_log, now=now):
                return ChangedEndpoint(endpoint, endpoint.secret if existing is None else None)
        raise _too_many_conflicts(name)

    async def rotate(
        self, tenant_id: UUID, name: str, *, by: Caller | None = None, now: datetime | None = None
    ) -> ChangedEndpoint:
        """Give an endpoint a new secret. Requests are signed with both secrets for 24 hours."""
        for _ in range(_TRIES):
            existing = await self.get(tenant_id, name)
            endpoint = rotated(existing, self._new_secret(), await self._store.clock(now=now))
            audit_log = new_audit_log_entries(by, AuditLogAction.ENDPOINT_ROTATE, name, revision=endpoint.revision)
            if await self._store.endpoint_write(endpoint, expected=existing.revision, audit_log=audit_log, now=now):
                return ChangedEndpoint(endpoint, endpoint.secret)
        raise _too_many_conflicts(name)

    async def delete(self, tenant_id: UUID, name: str, *, by: Caller | None = None, now: datetime | None = None) -> None:
        audit_log = new_audit_log_entries(by, AuditLogAction.ENDPOINT_DELETE, name)
        if await self._store.endpoint_delete(tenant_id, name, audit_log=audit_log, now=now) == 0:
            raise _not_found(name)


def _not_found(name: str) -> NotFound:
    return NotFound(f'there is no endpoint named "{name[:200]}"')


def _too_many_conflicts(name: str) -> Conflict:
    return Conflict(f'the endpoint "{name[:200]}" was changed by other requests too many times; try again')
