"""Values that people type into forms and addresses: names, times, states and ids. Errors name the field."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from everbeat.api import paging
from everbeat.api.filters import label_of, schedule_id_of
from everbeat.api.messages import ApiRequest
from everbeat.core.errors import InvalidInput, NotFound
from everbeat.core.tasks import TaskState
from everbeat.core.zones import load_zone
from everbeat.store.values import ScheduleFilter, TaskFilter, TaskMatch

Choice = TypeVar("Choice", bound=StrEnum)
SCHEDULE_FILTERS = ("name_prefix", "status", "queue", "type", "target")
TASK_FILTERS = ("state", "queue", "type", "schedule", "label", "error_kind", "from", "to")


def optional_choice(values: Mapping[str, str], field: str, choices: type[Choice]) -> Choice | None:
    """Return the choice, or None if there is none or an unknown one."""
    text = values.get(field)
    return choices(text) if text in {one.value for one in choices} else None


def optional_name(values: Mapping[str, str], field: str) -> str | None:
    text = values.get(field)
    return None if not text else paging.optional_name(field, text)


def optional_moment(values: Mapping[str, str], field: str, zone: str = "UTC") -> datetime | None:
    """Return a time. Without an offset, as a date and time field of a browser sends it, it is local to the zone."""
    text = values.get(field)
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text.replace(" ", "T"))
    except ValueError:
        raise InvalidInput.of(field, "must be a time such as 2026-01-31T09:00") from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=load_zone(zone))
    try:
        return paging.bounded(field, at.astimezone(UTC))
    except OverflowError:
        raise InvalidInput.of(field, "must be in the years 1970 to 9998") from None


def json_of(field: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidInput.of(field, f"must be JSON: {error}") from None


def id_of(request: ApiRequest, name: str, what: str) -> UUID:
    text = request.path_params[name]
    found = paging.uuid_of(text)
    if found is None:
        raise NotFound(f"there is no {what} {text[:100]}")
    return found


def schedule_filter(values: Mapping[str, str]) -> ScheduleFilter:
    return ScheduleFilter(
        status=values.get("status") or None,
        name_prefix=optional_name(values, "name_prefix"),
        queue=optional_name(values, "queue"),
        type=optional_name(values, "type"),
        target=optional_name(values, "target"),
    )


async def task_filter(request: ApiRequest, values: Mapping[str, str]) -> TaskFilter:
    key, value = label_of(values.get("label") or None)
    state = optional_choice(values, "state", TaskState)
    return TaskFilter(
        state=None if state is None else state.value,
        queue=optional_name(values, "queue"),
        type=optional_name(values, "type"),
        schedule_id=await schedule_id_of(request, values.get("schedule") or None),
        label_key=key,
        label_value=value,
    )


async def task_match(request: ApiRequest, values: Mapping[str, str]) -> TaskMatch:
    return TaskMatch(
        **(await task_filter(request, values))._asdict(),
        error_kind=values.get("error_kind") or None,
        from_at=optional_moment(values, "from"),
        to_at=optional_moment(values, "to"),
    )
