"""Converts the triggers of APScheduler 3. The fire times to compare with come from the triggers themselves.

APScheduler combines the day fields with AND, where cron uses OR: a trigger with both becomes an `rrule`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from everbeat.core.definitions import rfc3339
from everbeat.imports.base import FireTimes
from everbeat.imports.celery_beat import INTERVAL_ANCHOR, NotConvertible, field_text

_CRON_DAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
_RRULE_DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_LAST_YEAR = 2099
_LAST_POSITION = 5
_MICROSECOND = timedelta(microseconds=1)
_RANGES = {
    "year": (1970, _LAST_YEAR),
    "month": (1, 12),
    "day": (1, 31),
    "day_of_week": (0, 6),
    "hour": (0, 23),
    "minute": (0, 59),
    "second": (0, 59),
}


class ConvertedTrigger(NamedTuple):
    """The fields of a definition, the times of APScheduler, and notes."""

    fields: dict[str, Any]
    expected_times: FireTimes
    notes: tuple[str, ...] = ()


def convert_trigger(trigger: Any, now: datetime, *, is_stored: bool) -> ConvertedTrigger:
    """Return the trigger of a schedule. Raises NotConvertible with the reason if no schedule has these times."""
    from apscheduler.triggers.cron import CronTrigger
    from apscheduler.triggers.date import DateTrigger
    from apscheduler.triggers.interval import IntervalTrigger

    if type(trigger) is CronTrigger:
        return _cron(trigger)
    if type(trigger) is IntervalTrigger:
        return _interval(trigger, is_stored=is_stored)
    if type(trigger) is DateTrigger:
        return _date(trigger, now)
    raise NotConvertible(
        f"Everbeat has no trigger like {type(trigger).__name__}; use an rrule, or one schedule for each part of a combination"
    )


def _date(trigger: Any, now: datetime) -> ConvertedTrigger:
    run_at = trigger.run_date.astimezone(UTC)
    if run_at <= now:
        raise NotConvertible(f"its only run was at {rfc3339(run_at)}")
    return ConvertedTrigger({"at": rfc3339(run_at)}, lambda after, count: [run_at] if run_at > after else [])


def _interval(trigger: Any, *, is_stored: bool) -> ConvertedTrigger:
    original = _without_jitter(trigger)
    notes: tuple[str, ...] = ()
    # APScheduler counts from the moment at which the job was created, which has microseconds, unless a start is given.
    if not is_stored and trigger.start_date.microsecond:
        original.start_date = INTERVAL_ANCHOR
        notes = ("APScheduler counts from the start of the process; the schedule counts from 2000-01-01 UTC",)
    else:
        original.start_date = trigger.start_date.replace(microsecond=0)
    seconds = trigger.interval_length
    fields = {
        "every_seconds": int(seconds) if seconds == int(seconds) else seconds,
        "anchor": rfc3339(original.start_date.astimezone(UTC)),
        **_limits(original),
        **_jitter(trigger),
    }
    return ConvertedTrigger(fields, _times(original), notes)


def _cron(trigger: Any) -> ConvertedTrigger:
    texts = {field.name: field for field in trigger.fields}
    if str(texts["week"]) != "*":
        raise NotConvertible(f"week {texts['week']}: Everbeat has no field for weeks of the year; use an rrule with BYWEEKNO")
    fields = {
        **_cron_rule(texts),
        "timezone": str(trigger.timezone),
        # APScheduler moves a time in a gap by the length of the gap, and runs twice in a fold.
        "dst": {"gap": "shift", "fold": "both"},
        **_limits(trigger),
        **_jitter(trigger),
    }
    return ConvertedTrigger(fields, _times(_without_jitter(trigger)))


def _limits(trigger: Any) -> dict[str, str]:
    limits = {}
    if trigger.start_date is not None and trigger.start_date != INTERVAL_ANCHOR:
        limits["starts_at"] = rfc3339(trigger.start_date.astimezone(UTC))
    if trigger.end_date is not None:  # inclusive, other than that of a schedule
        limits["ends_at"] = rfc3339(trigger.end_date.astimezone(UTC) + _MICROSECOND)
    return limits


def _jitter(trigger: Any) -> dict[str, float]:
    return {"jitter_seconds": trigger.jitter} if trigger.jitter else {}


def _without_jitter(trigger: Any) -> Any:
    copied = copy.copy(trigger)
    copied.jitter = None
    return copied


def _times(trigger: Any) -> FireTimes:
    """Return a function that asks the trigger for its times, each after the one before it, as the scheduler does."""

    def times(after: datetime, count: int) -> list[datetime]:
        found: list[datetime] = []
        following = trigger.get_next_fire_time(None, after + _MICROSECOND)
        while following is not None and len(found) < count:
            found.append(following.astimezone(UTC))
            following = trigger.get_next_fire_time(following, following)
        return found

    return times


# Cron fields


def _cron_rule(fields: dict[str, Any]) -> dict[str, str]:
    day, weekday = fields["day"], fields["day_of_week"]
    if not _is_star(day) and not _is_star(weekday):
        return _rule_with_both_days(fields)
    days, weekdays = _days_of(day), _weekdays_text(weekday)
    if not _is_star(day):
        days, weekdays = days or "*", ",".join(_positions(day)) or "*"
    names = ("second", "minute", "hour", "month", "year")
    second, minute, hour, month, year = (_text(fields[name]) for name in names)
    texts = [minute, hour, days, month, weekdays]
    if second != "0" or year != "*":
        texts.insert(0, second)
    if year != "*":
        texts.append(year)
    return {"cron": " ".join(texts)}


def _rule_with_both_days(fields: dict[str, Any]) -> dict[str, str]:
    if not _is_star(fields["year"]) or list(_positions(fields["day"])) or _has_last_day(fields["day"]):
        raise NotConvertible("both day fields are restricted, with a year or with a position in the month; use an rrule")
    parts = {
        "FREQ": "DAILY",
        "BYMONTH": "" if _is_star(fields["month"]) else _list(_values(fields["month"])),
        "BYMONTHDAY": _list(_values(fields["day"])),
        "BYDAY": ",".join(_RRULE_DAYS[day] for day in sorted(_values(fields["day_of_week"]))),
        "BYHOUR": _list(_values(fields["hour"])),
        "BYMINUTE": _list(_values(fields["minute"])),
        "BYSECOND": _list(_values(fields["second"])),
    }
    return {"rrule": ";".join(f"{name}={value}" for name, value in parts.items() if value)}


def _list(values: Iterable[int]) -> str:
    return ",".join(str(value) for value in sorted(values))


def _is_star(field: Any) -> bool:
    return any(str(each) == "*" for each in field.expressions)


def _has_last_day(field: Any) -> bool:
    return any(type(each).__name__ == "LastDayOfMonthExpression" for each in field.expressions)


def _values(field: Any) -> set[int]:
    """Return the values of the stars and ranges of a field."""
    low, high = _RANGES[field.name]
    values: set[int] = set()
    for each in field.expressions:
        if type(each).__name__ in ("WeekdayPositionExpression", "LastDayOfMonthExpression"):
            continue
        first, last = getattr(each, "first", low), getattr(each, "last", None)
        values |= set(range(first, min(high if last is None else last, high) + 1, each.step or 1))
    return values


def _text(field: Any) -> str:
    """Return the cron text of a field. Only a field without a restriction begins with a star, see core/triggers/cron.py."""
    if _is_star(field):
        return "*"
    low, high = _RANGES[field.name]
    text = field_text(_values(field), low, high)
    return f"{low}-{high}{text[1:]}" if text.startswith("*") else text


def _days_of(field: Any) -> str:
    texts = [_text(field)] if _values(field) else []
    return ",".join([*texts, "L"] if _has_last_day(field) else texts)


def _weekdays_text(field: Any) -> str:
    return "*" if _is_star(field) else ",".join(_CRON_DAYS[day] for day in sorted(_values(field)))


def _positions(field: Any) -> Iterable[str]:
    for each in field.expressions:
        if type(each).__name__ == "WeekdayPositionExpression":
            suffix = "L" if each.option_num == _LAST_POSITION else f"#{each.option_num + 1}"
            yield f"{_CRON_DAYS[each.weekday]}{suffix}"
