"""Filters that lists of tasks and of dead letters share: a schedule by id or name, a label."""

from __future__ import annotations

from uuid import UUID

from everbeat.api.paging import uuid_of
from everbeat.api.rooms import Asked, rooms_of, tenant_of
from everbeat.core.errors import InvalidInput, NotFound
from everbeat.core.names import NAME_MESSAGE, has_control_characters, is_encodable, is_name

_NOBODY = UUID(int=0)


async def schedule_id_of(request: Asked, ref: str | None) -> UUID | None:
    """The schedule of that id or name. One that is gone is known by its id alone; a name nobody has matches nothing."""
    if ref is None:
        return None
    if not is_name(ref):
        raise InvalidInput.of("schedule", NAME_MESSAGE)
    try:
        return (await rooms_of(request).schedules.get(tenant_of(request), ref)).id
    except NotFound:
        return uuid_of(ref) or _NOBODY


def label_of(text: str | None) -> tuple[str | None, str | None]:
    """`key`, `key=value` or `key:value` as a key and a value."""
    if text is None:
        return None, None
    mark = "=" if "=" in text else ":"
    key, _, value = text.partition(mark)
    if not is_name(key) or len(value) > 256 or has_control_characters(value) or not is_encodable(value):
        raise InvalidInput.of("label", "must be a label, or a label and its value, such as team or team=billing")
    return key, value if mark in text else None
