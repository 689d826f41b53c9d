"""Who asks, and what for: scopes, what each one may, and the caller that every operation is done for."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.schedules import DEFAULT_TENANT


class Scope(StrEnum):
    """admin: tenants and keys, and all else. manage: everything of the tenant but workers' work. submit: new tasks only.
    work: claim and settle tasks, perhaps of some queues only. read: look at everything of the tenant."""

    ADMIN = "admin"
    MANAGE = "manage"
    SUBMIT = "submit"
    WORK = "work"
    READ = "read"


# What a scope brings along beside itself.
INCLUDED_SCOPES: dict[Scope, frozenset[Scope]] = {
    Scope.ADMIN: frozenset(Scope),
    Scope.MANAGE: frozenset({Scope.MANAGE, Scope.SUBMIT, Scope.READ}),
    Scope.SUBMIT: frozenset({Scope.SUBMIT}),
    Scope.WORK: frozenset({Scope.WORK}),
    Scope.READ: frozenset({Scope.READ}),
}


class Caller(NamedTuple):
    """Whose request it is. `queues` None: work on every queue. A fleet works for every tenant.

    `actor` names the caller in the audit trail: the key's name, or who is at the machine itself.
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
        """The same caller with one request; put together for every one, so without the detour of `_replace`."""
        return Caller(self.tenant_id, self.scopes, self.queues, self.is_fleet, self.key_id, self.actor, request_id, address)

    @property
    def lease_tenant_id(self) -> UUID | None:
        """Whose tasks this caller may hold leases on; None: anybody's."""
        return None if self.is_fleet else self.tenant_id


# In process, and on a loopback server without keys: whoever gets there may do everything.
LOCAL_CALLER = Caller(DEFAULT_TENANT, frozenset(Scope))


class AuditLogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the audit trail: who did what to what. `at` is the database's time of the write."""

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
