"""Scopes, what each scope allows, and the caller that makes a request."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.schedules import DEFAULT_TENANT


class Scope(StrEnum):
    """What a key may do.

    admin: everything, including tenants and keys. manage: everything in the tenant except the worker protocol. submit: submit
    tasks. work: claim and finish tasks, optionally from certain queues only. read: read everything in the tenant.
    """

    ADMIN = "admin"
    MANAGE = "manage"
    SUBMIT = "submit"
    WORK = "work"
    READ = "read"


INCLUDED_SCOPES: dict[Scope, frozenset[Scope]] = {
    Scope.ADMIN: frozenset(Scope),
    Scope.MANAGE: frozenset({Scope.MANAGE, Scope.SUBMIT, Scope.READ}),
    Scope.SUBMIT: frozenset({Scope.SUBMIT}),
    Scope.WORK: frozenset({Scope.WORK}),
    Scope.READ: frozenset({Scope.READ}),
}


class Caller(NamedTuple):
    """Who makes a request. `queues` None: every queue. A fleet may claim tasks of every tenant.

    `actor` is the caller's name in the audit log: the name of the key, or "local" without a key.
    """

    tenant_id: UUID
    scopes: frozenset[Scope]
    queues: frozenset[str] | None = None
    is_fleet: bool = False
    key_id: UUID | None = None
    actor: str = "local"
    request_id: str | None = None
    address: str | None = None

    def with_request(self, request_id: str | None, address: str | None) -> Caller:
        """Return the caller with the id and address of a request. Called for every request; `_replace` would be slower."""
        return Caller(self.tenant_id, self.scopes, self.queues, self.is_fleet, self.key_id, self.actor, request_id, address)

    @property
    def lease_tenant_id(self) -> UUID | None:
        """The tenant whose tasks this caller may lease; None: any tenant."""
        return None if self.is_fleet else self.tenant_id


# The caller in process and on a loopback server without keys. It may do everything.
LOCAL_CALLER = Caller(DEFAULT_TENANT, frozenset(Scope))


class AuditLogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the audit log: who changed what. `at` is the time of the write by the database clock."""

    id: UUID
    tenant_id: UUID
    actor: str
    key_id: UUID | None
    action: str
    subject: str
    detail: str  # JSON
    request_id: str | None
    address: str | None
    at: datetime | None = None
