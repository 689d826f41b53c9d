"""Descriptions of rules in plain English. Each is one sentence, so that users can check that a rule is what they intended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import assert_never
from uuid import UUID

from everbeat.core.rules import Rule, TriggerKind
from everbeat.core.triggers.cron_fields import (
    CronFields,
    read_fields,
    split_fields,
    split_zone,
    uses_hash,
    years_of,
)
from everbeat.core.triggers.once import parse_at
from everbeat.core.triggers.rrule_days import with_defaults
from everbeat.core.triggers.rrule_text import ListedDate, Recurrence, read_recurrence
from everbeat.core.zones import load_zone

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_UNITS = {
    **{"YEARLY": "year", "MONTHLY": "month", "WEEKLY": "week", "DAILY": "day"},
    **{"HOURLY": "hour", "MINUTELY": "minute", "SECONDLY": "second"},
}
_ORDINALS = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth", -1: "last", -2: "second to last"}
_MAX_TIMES_LISTED = 6
_WEEKDAYS_ONLY = frozenset(range(5))


def describe(rule: Rule, schedule_id: UUID | None = None) -> str:
    """Return a description of a valid rule. The id of the schedule, if given, determines the values of H."""
    match rule.kind:
        case TriggerKind.CRON:
            text = _cron(rule, schedule_id)
        case TriggerKind.EVERY:
            text = _every(rule.expression)
        case TriggerKind.RRULE:
            text = _rrule(rule)
        case TriggerKind.AT:
            text = f"Once, on {_moment(parse_at(rule.expression).at, rule.timezone)}"
        case _:
            assert_never(rule.kind)
    return text + _limits(rule)


def _limits(rule: Rule) -> str:
    parts = []
    if rule.only:
        parts.append(f"only in {_calendars(rule.only)}")
    if rule.exclude:
        parts.append(f"except in {_calendars(rule.exclude)}")
    if rule.starts_at is not None:
        parts.append(f"from {_moment(rule.starts_at, 'UTC')}")
    if rule.ends_at is not None:
        parts.append(f"until {_moment(rule.ends_at, 'UTC')}")
    return "".join(f", {part}" for part in parts)


def _calendars(names: Sequence[str]) -> str:
    return f"calendar {names[0]}" if len(names) == 1 else f"calendars {listed(names)}"


def _moment(at: datetime, timezone: str) -> str:
    local = at.astimezone(load_zone(timezone))
    return f"{local:%Y-%m-%d} {_clock(local.hour, local.minute, local.second)} {timezone}"


def _every(expression: str) -> str:
    seconds = Decimal(expression.strip()).normalize()
    if seconds % 1 or seconds == 1 or (seconds < 120 and seconds != 60):
        return "Every second" if seconds == 1 else f"Every {seconds:f} seconds"
    whole = int(seconds)
    if whole >= 2 * 86400 and whole % 86400 == 0:
        return f"Every {whole // 86400} days"
    units = ((whole // 3600, "hour"), (whole % 3600 // 60, "minute"), (whole % 60, "second"))
    parts = [(amount, unit) for amount, unit in units if amount]
    if len(parts) == 1:
        return _each(*parts[0])
    return "Every " + " ".join(_amount(amount, unit) for amount, unit in parts)


def _cron(rule: Rule, schedule_id: UUID | None) -> str:
    prefix, rest = split_zone(rule.expression)
    zone = prefix or rule.timezone
    if schedule_id is None and uses_hash(rule.expression):
        return f"{_cron_with_unknown_hash(rest)}, {zone}"
    fields = read_fields(rest, b"" if schedule_id is None else schedule_id.bytes)
    times, are_single = _cron_times(*fields[:3])
    days = _cron_days(fields) + _cron_years(fields)
    if not days:
        return f"{times} every day, {zone}" if are_single else f"{times}, {zone}"
    return f"{times}{days}, {zone}"


def _cron_with_unknown_hash(expression: str) -> str:
    chosen = "chosen from the schedule's id"
    second, minute, hour, *rest = split_fields(expression)
    if second == "0" and minute == "H" and not uses_hash(" ".join(rest)):
        fields = read_fields(f"0 0 0 {' '.join(rest)}", b"")
        days = _cron_days(fields) + _cron_years(fields)
        if hour == "*":
            return f"Once an hour{days}, at a fixed minute {chosen}"
        if hour == "H":
            return f"Once a day{days}, at a fixed time {chosen}"
        if hour.isdigit():
            start, end = _clock(int(hour), 0), _clock(int(hour), 59)
            return f"Once between {start} and {end}{days or ' every day'}, at a fixed minute {chosen}"
    return f"Cron {' '.join(expression.upper().split())} with each H {chosen}"


def _cron_times(second: str, minute: str, hour: str) -> tuple[str, bool]:
    """Return the times of a day, and whether they are single times, after which "every day" is added."""
    seconds, minutes, hours = _values(second, 0, 59), _values(minute, 0, 59), _values(hour, 0, 23)
    if len(hours) * len(minutes) * len(seconds) <= _MAX_TIMES_LISTED:
        return f"At {_clock_times(hours, minutes, seconds)}", True
    if seconds != [0]:
        if len(minutes) == 60 and len(hours) == 24:
            return _within(seconds, "second", 60, "every minute"), False
        text = _lower(_cron_times("0", minute, hour)[0])
        return f"{_within(seconds, 'second', 60, 'the minute')}, {text}", False
    if len(hours) == 24:
        return _within(minutes, "minute", 60, "every hour"), False
    step = _step(minutes, 60)
    span = (hours[0], hours[0]) if len(hours) == 1 else _run(hours, 0, 23)
    if step is not None and span is not None:
        return f"{_each(step, 'minute')} from {_clock(span[0], 0)} to {_clock(span[1], minutes[-1])}", False
    if len(minutes) == 1:
        return _hourly(hours, minutes[0]), False
    return f"{_within(minutes, 'minute', 60, _hours(hours))}", False


def _hourly(hours: list[int], minute: int) -> str:
    if span := _run(hours, 0, 23):
        return f"Every hour from {_clock(span[0], minute)} to {_clock(span[1], minute)}"
    step = _step(hours, 24)
    if step is not None:
        return _each(step, "hour") + (f" at minute {minute}" if minute else "")
    return f"At {listed([_clock(hour, minute) for hour in hours])}"


def _hours(hours: list[int]) -> str:
    if span := _run(hours, 0, 23):
        return f"every hour from {_clock(span[0], 0)} to {_clock(span[1], 59)}"
    step = _step(hours, 24)
    if step is not None:
        return f"every {ordinal(step)} hour"
    return f"hour{'s' * (len(hours) > 1)} {listed(map(str, hours))}"


def _within(values: list[int], unit: str, size: int, whole: str) -> str:
    """Describe minutes of an hour or seconds of a minute."""
    step = _step(values, size)
    if step is not None and whole.startswith(("every minute", "the minute")):
        return _each(step, unit)
    if step is not None and whole.startswith("every hour"):
        return _each(step, unit) + whole.removeprefix("every hour")
    if step is not None:
        return f"{_each(step, unit)} of {whole}"
    if values == [0] and whole == "every hour":
        return "Every hour"
    return f"At {unit}{'s' * (len(values) > 1)} {listed(_number_runs(values, str, (0, size - 1)))} of {whole}"


def _cron_days(fields: CronFields) -> str:
    """Return the text about days that follows the times, with a leading space or comma; empty for every day of the year."""
    day, month, weekday = fields.day, fields.month, fields.weekday
    months = _values(month, 1, 12)
    every_month = len(months) == 12
    which = "the month" if every_month else _runs(months, _MONTHS, 1)
    by_day = None if len(_values(day, 1, 31)) == 31 else _month_days(day, months, which)
    weekdays = sorted({(value - 1) % 7 for value in _values(weekday, 0, 7)})
    by_weekday = None if len(weekdays) == 7 else _cron_weekdays(weekday, weekdays, which)
    in_months = "" if every_month else f" in {which}"
    if by_day and by_weekday:
        both_must_match = day.startswith("*") or weekday.startswith("*")
        suffix = "" if "of the month" in by_weekday or which in by_weekday else in_months
        if both_must_match:
            return f" {by_day}, only if that is {by_weekday.removeprefix('on ').replace(' and ', ' or ')}"
        return f" {by_day} and also {by_weekday}{suffix}"
    if by_day:
        return f" {by_day}"
    if by_weekday:
        suffix = "" if which in by_weekday else in_months
        return f"{', ' if by_weekday[0].isupper() else ' '}{by_weekday}{suffix}"
    return "" if every_month else f" every day{in_months}"


def _cron_years(fields: CronFields) -> str:
    if fields.year == "*":
        return ""
    years = list(years_of(fields.year))
    if len(years) > _MAX_TIMES_LISTED and _run(years, 0, 0) is None:
        return f" in {len(years)} of the years {years[0]} to {years[-1]}"
    return f" in {listed(_number_runs(years, str, (0, 0)))}"


def _month_days(day: str, months: list[int], which: str) -> str:
    if day.startswith("*/") and "," not in day:
        return f"on every {ordinal(int(day[2:]))} day of {which}, counted from the 1st"
    special = [text for term in day.split(",") if (text := _special_day(term))]
    plain = _values(day, 1, 31)
    if len(months) == 1 and not special:
        return f"on {which} {listed(_number_runs(plain, str, (1, 31)))}"
    return f"on the {listed([*_number_runs(plain, ordinal, (1, 31)), *special])} of {which}"


def _special_day(term: str) -> str:
    """Describe L, LW, L-3, L-3W and 15W. Empty for other terms."""
    if term in ("L", "LW"):
        return "last day" if term == "L" else "last weekday"
    if term.startswith("L-"):
        day = _counted(-1 - int(term[2:].removesuffix("W")), "day")
    elif term.endswith("W"):
        day = ordinal(int(term[:-1]))
    else:
        return ""
    return f"weekday nearest to the {day}" if term.endswith("W") else day


def _cron_weekdays(weekday: str, plain: list[int], which: str) -> str:
    terms = weekday.split(",")
    special = []
    for term in terms:
        if "#" in term:
            value, _, nth = term.partition("#")
            special.append(f"{_ORDINALS[int(nth)]} {_WEEKDAYS[(int(value) - 1) % 7]}")
        elif term.endswith("L"):
            special.append(f"last {_WEEKDAYS[(int(term[:-1]) - 1) % 7]}")
    if not special:
        return _weekdays(plain)
    text = f"on the {listed(special)} of {which}"
    return f"{text} and {_weekdays(plain)}" if plain else text


def _weekdays(days: Sequence[int]) -> str:
    if span := _run(list(days), 0, 6):
        return f"{_WEEKDAYS[span[0]]} to {_WEEKDAYS[span[1]]}"
    return f"on {listed(_WEEKDAYS[day] for day in days)}"


def _rrule(rule: Rule) -> str:
    read = read_recurrence(rule.expression)
    zone = read.zone or rule.timezone
    start = _start(read, rule, zone)
    if start is not None:
        read = with_defaults(read, start.date())
    parts = [_each(read.interval, _UNITS[read.frequency]), *_rrule_days(read), *_rrule_times(read, start)]
    text = " ".join(part for part in parts if part).replace(" ,", ",")
    if read.limit is not None:
        text += f", {read.limit} times" if read.limit > 1 else ", once"
    if read.until is not None:
        until = read.until.at
        text += f", until {until:%Y-%m-%d}" if read.until.is_date else f", until {until:%Y-%m-%d %H:%M}"
        text += " UTC" if until.tzinfo is not None else ""
    text += _listed_dates(", except on", read.excluded) + _listed_dates(", and also on", read.added)
    return f"{text}, {zone}"


def _listed_dates(intro: str, dates: Sequence[ListedDate]) -> str:
    if len(dates) > _MAX_TIMES_LISTED:
        return f"{intro} {len(dates)} listed dates"
    return f"{intro} {listed(_listed_date(each) for each in dates)}" if dates else ""


def _listed_date(date: ListedDate) -> str:
    at = date.moment.at
    if date.moment.is_date:
        return f"{at:%Y-%m-%d}"
    suffix = " UTC" if at.tzinfo is not None else f" {date.zone}" if date.zone else ""
    return f"{at:%Y-%m-%d} {_clock(at.hour, at.minute, at.second)}{suffix}"


def _start(read: Recurrence, rule: Rule, zone: str) -> datetime | None:
    if read.start is not None and read.start.at.tzinfo is None:
        return read.start.at
    at = read.start.at if read.start is not None else rule.anchor
    return None if at is None else at.astimezone(UTC).astimezone(load_zone(zone))


def _rrule_days(read: Recurrence) -> list[str]:
    months = f"in {_runs(list(read.by_month), _MONTHS, 1)}" if read.by_month else ""
    parts = [_rrule_weekdays(read)]
    if read.by_month_day:
        if read.frequency == "YEARLY" and len(read.by_month) == 1 and min(read.by_month_day) > 0:
            months = ""
            parts.append(f"on {_MONTHS[read.by_month[0] - 1]} {listed(map(str, read.by_month_day))}")
        else:
            parts.append(f"on the {listed(_counted(day, 'day') for day in read.by_month_day)} of the month")
    if read.by_year_day:
        parts.append(f"on the {listed(_counted(day, 'day') for day in read.by_year_day)} of the year")
    if read.by_week_number:
        weeks = "weeks" if len(read.by_week_number) > 1 else "week"
        parts.append(f"in {weeks} {listed(map(str, read.by_week_number))} of the year")
    parts.append(months)
    if read.by_position and not _is_nth_weekday_of_month(read):
        chosen = listed(_ORDINALS.get(nth) or _counted(nth, "") for nth in read.by_position)
        parts.append(f", only the {chosen} of these")
    return parts


def _is_nth_weekday_of_month(read: Recurrence) -> bool:
    """Whether BYSETPOS counts the weekdays of the month: the rule has BYDAY=MO,TU,WE,TH,FR and no other parts."""
    others = read.by_month_day or read.by_year_day or read.by_week_number or read.by_hour or read.by_minute
    return read.frequency == "MONTHLY" and not others and {*read.by_day} == {(day, None) for day in _WEEKDAYS_ONLY}


def _rrule_weekdays(read: Recurrence) -> str:
    if read.by_position and _is_nth_weekday_of_month(read):
        chosen = listed(_ORDINALS.get(nth) or _counted(nth, "") for nth in read.by_position)
        return f"on the {chosen} weekday of the month"
    plain = sorted(day for day, nth in read.by_day if nth is None)
    numbered = [f"{_ORDINALS.get(nth) or _counted(nth, '')} {_WEEKDAYS[day]}" for day, nth in read.by_day if nth]
    period = "month" if read.frequency == "MONTHLY" or read.by_month else "year"
    texts = [f"on the {listed(numbered)} of the {period}"] if numbered else []
    if plain:
        days = _weekdays(plain)
        texts.append(f", {days}" if days[0].isupper() and not numbered else days)
    return " and ".join(texts)


def _rrule_times(read: Recurrence, start: datetime | None) -> list[str]:
    if read.frequency in ("HOURLY", "MINUTELY", "SECONDLY"):
        units = (("second", read.by_second), ("minute", read.by_minute), ("hour", read.by_hour))
        return [f"at {unit}{'s' * (len(by) > 1)} {listed(map(str, by))}" for unit, by in units if by]
    if start is None and not read.by_hour:
        return []
    hours = read.by_hour or ((start.hour,) if start else ())
    minutes = read.by_minute or ((start.minute,) if start else (0,))
    seconds = read.by_second or ((start.second,) if start else (0,))
    if len(hours) * len(minutes) * len(seconds) <= _MAX_TIMES_LISTED:
        return [f"at {_clock_times(hours, minutes, seconds)}"]
    spans = [",".join(map(str, values)) for values in (seconds, minutes, hours)]
    return [",", _lower(_cron_times(*spans)[0])]


def _values(field: str, low: int, high: int) -> list[int]:
    """Return the numbers in a field from read_fields. Ignores L, LW, 5L and 1#2."""
    values: set[int] = set()
    for term in field.split(","):
        if term.startswith("*"):
            values |= set(range(low, high + 1, int(term[2:] or 1)))
        elif term.isdigit():
            values.add(int(term))
    return sorted(values)


def _step(values: list[int], size: int) -> int | None:
    """Return the step of values such as 0, 5, 10, … up to the size, or None if the steps are not all equal."""
    step = size // len(values)
    return step if len(values) > 1 and values == list(range(0, size, step)) and size % step == 0 else None


def _run(values: list[int], low: int, high: int) -> tuple[int, int] | None:
    """Return the first and last of three or more consecutive values, which may continue from high at low. Otherwise None."""
    breaks = [index for index in range(1, len(values)) if values[index] != values[index - 1] + 1]
    if len(values) < 3 or len(breaks) > 1:
        return None
    if not breaks:
        return values[0], values[-1]
    return (values[breaks[0]], values[breaks[0] - 1]) if (values[0], values[-1]) == (low, high) else None


def _runs(values: list[int], names: Sequence[str], base: int) -> str:
    if span := _run(values, base, base + len(names) - 1):
        return f"{names[span[0] - base]} to {names[span[1] - base]}"
    return listed(names[value - base] for value in values)


def _number_runs(values: list[int], to_text: Callable[[int], str], limits: tuple[int, int]) -> list[str]:
    if span := _run(values, *limits):
        return [f"{to_text(span[0])} to {to_text(span[1])}"]
    return [to_text(value) for value in values]


def _clock_times(hours: Iterable[int], minutes: Sequence[int], seconds: Sequence[int]) -> str:
    return listed(_clock(hour, minute, second) for hour in hours for minute in minutes for second in seconds)


def _clock(hour: int, minute: int, second: int = 0) -> str:
    return f"{hour:02d}:{minute:02d}" + (f":{second:02d}" if second else "")


def _each(amount: int, unit: str) -> str:
    return f"Every {unit}" if amount == 1 else f"Every {amount} {unit}s"


def _amount(amount: int, unit: str) -> str:
    return f"{amount} {unit}{'' if amount == 1 else 's'}"


def _counted(number: int, thing: str) -> str:
    if number == -1:
        return f"last {thing}".strip()
    if number < 0:
        return f"{ordinal(-number)} to last {thing}".strip()
    return ordinal(number)


def ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def listed(items: Iterable[str]) -> str:
    *head, last = items
    return f"{', '.join(head)} and {last}" if head else last


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]
