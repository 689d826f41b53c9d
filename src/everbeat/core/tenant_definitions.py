"""Validates the definition of a tenant."""

from __future__ import annotations

from uuid import UUID

from everbeat.core.errors import InvalidInput
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.tenants import EVERY_TENANT, Tenant


def checked_tenant(tenant: Tenant) -> Tenant:
    """Return the tenant if it is valid. Its name must not have the form of an id, because requests may contain either."""
    if not is_name(tenant.name):
        raise InvalidInput.of("name", NAME_MESSAGE)
    if tenant.name == EVERY_TENANT or _is_id(tenant.name):
        raise InvalidInput.of("name", f'must not have the form of an id, and must not be "{EVERY_TENANT}"')
    return tenant


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
