"""Tenants as operators write and read them: which can be one, and how it is answered."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from everbeat.core.definitions import rfc3339
from everbeat.core.errors import InvalidInput
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.tenants import EVERY_TENANT, Tenant


def checked_tenant(tenant: Tenant) -> Tenant:
    """The tenant, if it can be one; its name is not an id, so that either of them can name it."""
    if not is_name(tenant.name):
        raise InvalidInput.of("name", NAME_MESSAGE)
    if tenant.name == EVERY_TENANT or _is_id(tenant.name):
        raise InvalidInput.of("name", f"must not be an id, and not the word {EVERY_TENANT}")
    return tenant


def tenant_response(tenant: Tenant) -> dict[str, Any]:
    """A tenant as it is answered: its quotas beside its weight; null is no limit."""
    return {
        "id": str(tenant.id),
        "name": tenant.name,
        "weight": tenant.weight,
        **msgspec.structs.asdict(tenant.quotas),
        "revision": tenant.revision,
        "created_at": rfc3339(tenant.created_at),
        "updated_at": rfc3339(tenant.updated_at),
    }


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
