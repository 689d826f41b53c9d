"""Tenants as JSON: validating requests, and building responses."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from everbeat.core.definitions import rfc3339
from everbeat.core.errors import InvalidInput
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.tenants import EVERY_TENANT, Tenant


def checked_tenant(tenant: Tenant) -> Tenant:
    """Return the tenant if it is valid. Its name must not look like an id, because requests may use either."""
    if not is_name(tenant.name):
        raise InvalidInput.of("name", NAME_MESSAGE)
    if tenant.name == EVERY_TENANT or _is_id(tenant.name):
        raise InvalidInput.of("name", f"must not be an id, and not the word {EVERY_TENANT}")
    return tenant


def tenant_response(tenant: Tenant) -> dict[str, Any]:
    """The JSON of a tenant in responses: weight and quotas; null means no limit."""
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
