"""Quiet times of an alert rule: hours of the week in a time zone, and maintenance windows. No notification is sent in them."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta
from typing import Annotated, Literal

import msgspec

from everbeat.core.errors import FieldError, InvalidInput
from everbeat.core.zones import load_zone

MAX_QUIET_HOURS = 20
MAX_MAINTENANCE_WINDOWS = 100

Weekday = Literal["MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"]
_WEEKDAYS: tuple[Weekday, ...] = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", re.ASCII)
CLOCK_MESSAGE = "must be a time of day such as 04:00 or 23:59:30"

ClockText = Annotated[
    str,
    msgspec.Meta(
        description="A time of day: HH:MM or HH:MM:SS.",
        extra_json_schema={"pattern": "^([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?$"},
    ),
]


class QuietHours(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """From one time of day to another, on the next day if it is not later. `days`: on which they begin; empty: every day."""

    from_: ClockText
    to: ClockText
    days: list[Weekday] = []


class MaintenanceWindow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """From one instant to another."""

    from_: Annotated[datetime, msgspec.Meta(tz=True)]
    to: Annotated[datetime, msgspec.Meta(tz=True)]


class QuietTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When an alert sends no notifications. They are sent afterwards, for the incidents that are then still open."""

    timezone: str = "UTC"
    hours: list[QuietHours] = []
    maintenance: list[MaintenanceWindow] = []


def parse_clock(text: str) -> time | None:
    """Return a time of day that is written as HH:MM or HH:MM:SS; None for anything else."""
    found = _CLOCK.fullmatch(text)
    return None if found is None else time(int(found[1]), int(found[2]), int(found[3] or 0))


def zone_error(field: str, name: str) -> list[FieldError]:
    try:
        load_zone(name)
    except InvalidInput as error:
        return [FieldError(field, one.message) for one in error.errors]
    return []


def quiet_errors(quiet: QuietTimes) -> list[FieldError]:
    errors = zone_error("quiet.timezone", quiet.timezone)
    if len(quiet.hours) > MAX_QUIET_HOURS:
        errors.append(FieldError("quiet.hours", f"must have at most {MAX_QUIET_HOURS} items"))
    if len(quiet.maintenance) > MAX_MAINTENANCE_WINDOWS:
        errors.append(FieldError("quiet.maintenance", f"must have at most {MAX_MAINTENANCE_WINDOWS} items"))
    for index, hours in enumerate(quiet.hours):
        errors += [
            FieldError(f"quiet.hours[{index}].{field}", CLOCK_MESSAGE)
            for field, text in (("from", hours.from_), ("to", hours.to))
            if parse_clock(text) is None
        ]
    errors += [
        FieldError(f"quiet.maintenance[{index}].to", "must be later than from")
        for index, window in enumerate(quiet.maintenance)
        if window.to <= window.from_
    ]
    return errors


def is_quiet(quiet: QuietTimes | None, now: datetime) -> bool:
    """Return whether no notification is sent now."""
    if quiet is None:
        return False
    if any(window.from_ <= now < window.to for window in quiet.maintenance):
        return True
    if not quiet.hours:
        return False
    local = now.astimezone(load_zone(quiet.timezone))
    return any(_covers(hours, local) for hours in quiet.hours)


def _covers(hours: QuietHours, local: datetime) -> bool:
    start, end = parse_clock(hours.from_), parse_clock(hours.to)
    if start is None or end is None:
        return False
    at, today = local.time(), _begins_on(hours, local)
    if start < end:
        return today and start <= at < end
    return (today and at >= start) or (at < end and _begins_on(hours, local - timedelta(days=1)))


def _begins_on(hours: QuietHours, local: datetime) -> bool:
    return not hours.days or _WEEKDAYS[local.weekday()] in hours.days
