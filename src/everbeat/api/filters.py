"""Filters that several lists share: a schedule by id or name, a tenant, a label."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec

from everbeat.api.messages import ApiRequest
from everbeat.api.paging import uuid_of
from everbeat.core.access import Scope
from everbeat.core.errors import Forbidden, InvalidInput, NotFound
from everbeat.core.names import NAME_MESSAGE, has_control_characters, is_encodable, is_name
from everbeat.core.tenants import EVERY_TENANT

_NO_SCHEDULE = UUID(int=0)

TenantRef = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=200,
        description="The id or name of a tenant, or all. Tenants other than your own require the scope admin.",
    ),
]

LabelText = Annotated[
    str,
    msgspec.Meta(
        description="A label, or a label and its value: key or key=value.",
        extra_json_schema={"pattern": r"^[A-Za-z0-9._-]{1,200}([=:][^\u0000-\u0008\u000b-\u001f\u007f]{0,256})?$"},
    ),
]


async def schedule_id_of(request: ApiRequest, ref: str | None) -> UUID | None:
    """Return the id of a schedule given by id or name. A removed schedule can be given by id. Unknown names match nothing."""
    if ref is None:
        return None
    if not is_name(ref):
        raise InvalidInput.of("schedule", NAME_MESSAGE)
    try:
        return (await request.context.schedules.get(request.tenant_id, ref)).id
    except NotFound:
        return uuid_of(ref) or _NO_SCHEDULE


async def requested_tenant(request: ApiRequest, ref: str | None) -> UUID | None:
    """Return the id of the requested tenant; None for all tenants or none given. Only operators may read other tenants."""
    if ref is None:
        return None
    caller = request.caller
    if Scope.ADMIN in caller.scopes:
        return None if ref == EVERY_TENANT else (await request.context.tenants.get(ref)).id
    try:
        found = (await request.context.tenants.get(ref)).id
    except NotFound:
        found = None
    if found != caller.tenant_id:  # the same error whether or not the tenant exists
        raise Forbidden("Reading other tenants requires an API key with the scope admin.")
    return found


def label_of(text: str | None) -> tuple[str | None, str | None]:
    """Split `key`, `key=value` or `key:value` into a key and a value."""
    if text is None:
        return None, None
    separator = "=" if "=" in text else ":"
    key, _, value = text.partition(separator)
    if not is_name(key) or len(value) > 256 or has_control_characters(value) or not is_encodable(value):
        raise InvalidInput.of("label", "must be a label, or a label and its value, such as team or team=billing")
    return key, value if separator in text else None
