"""Filters that lists of tasks and of dead letters share: a schedule by id or name, a label."""

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
    str, msgspec.Meta(min_length=1, max_length=200, description="An id, a name, or all; that of others needs the scope admin.")
]


async def schedule_id_of(request: ApiRequest, ref: str | None) -> UUID | None:
    """The schedule of that id or name. One that is gone is known by its id alone; a name nobody has matches nothing."""
    if ref is None:
        return None
    if not is_name(ref):
        raise InvalidInput.of("schedule", NAME_MESSAGE)
    try:
        return (await request.context.schedules.get(request.tenant_id, ref)).id
    except NotFound:
        return uuid_of(ref) or _NO_SCHEDULE


async def requested_tenant(request: ApiRequest, ref: str | None) -> UUID | None:
    """The tenant that is asked about; None: every one, or none was named. Only operators may ask about others."""
    if ref is None:
        return None
    caller = request.caller
    if Scope.ADMIN in caller.scopes:
        return None if ref == EVERY_TENANT else (await request.context.tenants.get(ref)).id
    try:
        found = (await request.context.tenants.get(ref)).id
    except NotFound:
        found = None
    if found != caller.tenant_id:  # the same whether it is there or not
        raise Forbidden("to ask about other tenants, this needs an API key with the scope admin")
    return found


def label_of(text: str | None) -> tuple[str | None, str | None]:
    """`key`, `key=value` or `key:value` as a key and a value."""
    if text is None:
        return None, None
    mark = "=" if "=" in text else ":"
    key, _, value = text.partition(mark)
    if not is_name(key) or len(value) > 256 or has_control_characters(value) or not is_encodable(value):
        raise InvalidInput.of("label", "must be a label, or a label and its value, such as team or team=billing")
    return key, value if mark in text else None
