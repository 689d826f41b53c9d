"""Preview of a rule before it is saved: its next ticks, and warnings about behavior that the author may not expect."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.calendars import Calendar
from everbeat.core.describe import describe, listed, ordinal
from everbeat.core.errors import InvalidInput
from everbeat.core.rules import DstFold, DstGap, Rule, TriggerKind
from everbeat.core.ticks import SkipReason
from everbeat.core.timeline import Timeline, compile_rule
from everbeat.core.triggers.cron_fields import FIELDS, Field, field_values, read_fields, split_fields, split_zone, uses_hash
from everbeat.core.triggers.rrule_text import read_recurrence
from everbeat.core.triggers.wall_clock import LocalTrigger, Mode, to_instant, to_seconds
from everbeat.core.zones import Transition, transitions

MAX_COUNT = 100
MAX_EXAMINED = 5000
LOOK_AHEAD = timedelta(days=366)
MAX_LOOK_AHEAD = timedelta(days=366 * 100)
MAX_WARNINGS_PER_KIND = 3

_MICROSECOND = timedelta(microseconds=1)
# One year before the maximum of datetime, so that conversion to local time does not overflow.
_LAST = datetime(9999, 1, 1, tzinfo=UTC)
_LAST_START = datetime(3000, 1, 1, tzinfo=UTC)
_PLURALS = ("seconds", "minutes", "hours", "days", "months", "days of the week", "years")
_DAY_FIELD, _WEEKDAY_FIELD = 3, 5


class PreviewTick(NamedTuple):
    """A tick in UTC, and in the local time of the rule's zone as ISO 8601 with an offset."""

    at: datetime
    local: str


class Preview(NamedTuple):
    description: str
    ticks: list[PreviewTick]
    warnings: list[str]


class _Upcoming(NamedTuple):
    ticks: list[datetime]
    excluded: int
    is_incomplete: bool


def preview(
    rule: Rule, after: datetime, count: int, calendars: Mapping[str, Calendar], schedule_id: UUID | None = None
) -> Preview:
    """Return the next `count` ticks after an instant. That instant is the anchor of a rule without one."""
    if not 1 <= count <= MAX_COUNT:
        raise InvalidInput.of("count", f"must be 1 to {MAX_COUNT}")
    if max(after, rule.starts_at or after) > _LAST_START:
        raise InvalidInput.of("after", f"must be before the year {_LAST_START.year}")
    if rule.anchor is None:
        rule = msgspec.structs.replace(rule, anchor=after)
    timeline = compile_rule(rule, schedule_id, calendars)
    upcoming = _upcoming(timeline, after, count)
    ticks = [PreviewTick(tick, tick.astimezone(timeline.zone).isoformat()) for tick in upcoming.ticks]
    warnings = [
        *_expression_warnings(rule, schedule_id),
        *_dst_warnings(rule, timeline, after, upcoming.ticks),
        *_calendar_warnings(upcoming),
        *_rarity_warnings(timeline, upcoming.ticks),
        *_end_warnings(rule, upcoming, after, count),
    ]
    return Preview(describe(rule, schedule_id), ticks, warnings)


def _upcoming(timeline: Timeline, after: datetime, count: int) -> _Upcoming:
    ticks: list[datetime] = []
    excluded = examined = 0
    for at, skip in islice(timeline.occurrences(after, _LAST), MAX_EXAMINED):
        examined += 1
        if skip is SkipReason.CALENDAR:
            excluded += 1
        elif skip is None:
            ticks.append(at)
            if len(ticks) == count:
                break
    return _Upcoming(ticks, excluded, examined == MAX_EXAMINED and len(ticks) < count)


def _calendar_warnings(upcoming: _Upcoming) -> Iterator[str]:
    if upcoming.is_incomplete:
        yield f"Calendars exclude {upcoming.excluded} of the next {MAX_EXAMINED} ticks; further ticks were not examined."
    elif upcoming.excluded:
        ticks = "1 tick" if upcoming.excluded == 1 else f"{upcoming.excluded} ticks"
        yield f"Calendars exclude {ticks} in the period shown."


def _rarity_warnings(timeline: Timeline, ticks: list[datetime]) -> Iterator[str]:
    if not ticks:
        return
    first, following = ticks[0], ticks[1:2] or _upcoming(timeline, ticks[0], 1).ticks
    if following and following[0] - first > LOOK_AHEAD:
        yield f"Runs less than once a year: after {first:%Y-%m-%d} it runs next on {following[0]:%Y-%m-%d}."


def _end_warnings(rule: Rule, upcoming: _Upcoming, after: datetime, count: int) -> Iterator[str]:
    shown = len(upcoming.ticks)
    if upcoming.is_incomplete or shown == count or (rule.kind is TriggerKind.AT and shown):
        return
    if shown:
        yield f"Ends after {'1 more tick' if shown == 1 else f'{shown} more ticks'}."
    else:
        yield f"Does not run at any time after {after.astimezone(UTC):%Y-%m-%d %H:%M} UTC."


def _dst_warnings(rule: Rule, timeline: Timeline, after: datetime, ticks: list[datetime]) -> list[str]:
    trigger = timeline.trigger
    if not isinstance(trigger, LocalTrigger) or trigger.clock.fixed:
        return []
    if trigger.clock.mode is Mode.REAL and not trigger.skips_gaps:
        return []
    start = max(after, rule.starts_at or after)
    until = min(max([start + LOOK_AHEAD, *ticks[-1:]]), start + MAX_LOOK_AHEAD, rule.ends_at or _LAST)
    gaps: list[str] = []
    folds: list[str] = []
    for change in transitions(timeline.zone, start, until):
        if change.after > change.before and len(gaps) < MAX_WARNINGS_PER_KIND:
            gaps += _gap_warning(rule, timeline, trigger, change)
        elif change.after < change.before and len(folds) < MAX_WARNINGS_PER_KIND:
            folds += _fold_warning(rule, timeline, trigger, change)
    return gaps + folds


def _gap_warning(rule: Rule, timeline: Timeline, trigger: LocalTrigger, change: Transition) -> list[str]:
    at = to_seconds(change.at)
    low, high = at + _offset_seconds(change.before), at + _offset_seconds(change.after)
    first = trigger.pattern.first(low, high, _offset_seconds(change.before))
    last = trigger.pattern.last(low, high, _offset_seconds(change.before))
    if first is None or last is None:
        return []
    missing = f"{_clock(first)} does not exist" if first == last else f"{_clock(first)} to {_clock(last)} do not exist"
    where = f"on {to_instant(first):%Y-%m-%d} in {timeline.zone.key} because {missing}."
    if trigger.clock.mode is Mode.REAL:
        return [f"Skipped {where}"]
    if rule.gap is DstGap.SHIFT:
        until = to_instant(last - _offset_seconds(change.before))
        is_used = any(skip is None for _, skip in timeline.occurrences(change.at - _MICROSECOND, until))
        shifted = [_clock(local + high - low) for local in dict.fromkeys((first, last))]
        return [f"Moved to {' through '.join(shifted)} {where}"] if is_used else []
    skips = [skip for _, skip in timeline.occurrences(change.at - _MICROSECOND, change.at)]
    if rule.gap is DstGap.SKIP:
        return [f"Skipped {where}"] if SkipReason.DST_GAP in skips else []
    return [f"Moved to {_clock(high)} {where}"] if None in skips else []


def _fold_warning(rule: Rule, timeline: Timeline, trigger: LocalTrigger, change: Transition) -> list[str]:
    at = to_seconds(change.at)
    before, after = _offset_seconds(change.before), _offset_seconds(change.after)
    first = trigger.pattern.first(at + after, at + before, before)
    last = trigger.pattern.last(at + after, at + before, before)
    if first is None or last is None or not _any_fires(timeline, first - before, last - after):
        return []
    twice = f"{_clock(first)} happens twice" if first == last else f"{_clock(first)} to {_clock(last)} happen twice"
    fold = DstFold.BOTH if trigger.clock.mode is Mode.REAL else rule.fold
    runs = {DstFold.FIRST: "the first", DstFold.SECOND: "the second", DstFold.BOTH: "both"}[fold]
    return [f"{twice} on {to_instant(first):%Y-%m-%d} in {timeline.zone.key}; runs at {runs}."]


def _any_fires(timeline: Timeline, first: int, last: int) -> bool:
    around = timeline.occurrences(to_instant(first) - _MICROSECOND, to_instant(last))
    return any(skip is None for _, skip in islice(around, MAX_EXAMINED))


def _offset_seconds(offset: timedelta) -> int:
    return offset // timedelta(seconds=1)


def _clock(local_seconds: int) -> str:
    local = to_instant(local_seconds)
    return f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"


def _expression_warnings(rule: Rule, schedule_id: UUID | None) -> list[str]:
    if rule.kind is TriggerKind.CRON:
        _, text = split_zone(rule.expression)
        seed = b"" if schedule_id is None else schedule_id.bytes
        return [
            *_hash_warnings(text, schedule_id),
            *_step_warnings(text),
            *_numbering_warnings(text),
            *_cron_day_warnings(text, seed),
        ]
    if rule.kind is TriggerKind.RRULE:
        return _rrule_day_warnings(rule.expression)
    return []


def _hash_warnings(text: str, schedule_id: UUID | None) -> list[str]:
    if schedule_id is None and uses_hash(text):
        return ["H is chosen from the schedule's id when it is saved; the times shown are an example."]
    return []


def _step_warnings(text: str) -> Iterator[str]:
    for number, (field, part) in enumerate(zip(FIELDS, split_fields(text), strict=True)):
        for term in part.split(","):
            base, _, step = term.partition("/")
            if step and not base.startswith("H"):
                yield from _warn_of_step(field, number, base, int(step), is_alone=term == part)


def _warn_of_step(field: Field, number: int, base: str, step: int, *, is_alone: bool) -> Iterator[str]:
    values, plural = field_values(field, base if base == "*" or "-" in base else f"{base}/1"), _PLURALS[number]
    term = f"{base}/{step}"
    if step >= field.last - field.low + 1:
        yield f"{term} in {plural} matches {values[0]} only, because {plural} go up to {field.last}."
    elif step >= len(values):
        yield f"{term} in {plural} matches {values[0]} only, because the step leads beyond the last value, {values[-1]}."
    elif base != "*" or not is_alone or step == 1:
        return
    elif number == _DAY_FIELD:
        yield f"{term} in {plural} starts again on the 1st of every month."
    elif number <= _WEEKDAY_FIELD and (field.last - field.low + 1) % step:
        listed_values = listed([str(value) for value in range(field.low, field.last + 1, step)])
        yield f"{term} in {plural} means {listed_values}, then {field.low} again: the last step is shorter."


def _numbering_warnings(text: str) -> Iterator[str]:
    """Warn about numbers of weekdays in an expression that looks like one of Quartz."""
    weekday, year = split_fields(text)[_WEEKDAY_FIELD:]
    has_numbers = any(term[:1].isdigit() for term in re.split("[,-]", weekday.partition("/")[0]))
    if has_numbers and (year != "*" or "?" in text or len(text.split()) == len(FIELDS)):
        yield "Numbers of weekdays count from 0 for Sunday, as in crontab. In Quartz, 1 is Sunday; use names such as MON."


def _cron_day_warnings(text: str, seed: bytes) -> Iterator[str]:
    _, _, _, day, month, weekday, _ = read_fields(text, seed)
    months = tuple(range(1, 13)) if month.startswith("*") else tuple(int(each) for each in month.split(","))
    both = day != "*" and weekday != "*"
    if both and (day.startswith("*") or weekday.startswith("*")):
        yield "Day-of-month and day-of-week are both set, one with *: runs when both match (crontab AND rule)."
    elif both:
        yield "Day-of-month and day-of-week are both set: runs when either matches (crontab OR rule)."
    days = [each.removesuffix("W") for each in day.split(",")]
    if all(each.isdigit() for each in days):
        yield from _short_month_warnings(tuple(int(each) for each in days), months, only_days=not both)


def _rrule_day_warnings(expression: str) -> list[str]:
    rule = read_recurrence(expression)
    if rule.frequency not in ("MONTHLY", "YEARLY"):
        return []
    days, months = rule.by_month_day, rule.by_month
    has_other_days = rule.by_day or rule.by_year_day or rule.by_week_number
    if not days and not has_other_days and rule.start is not None:
        days = (rule.start.at.day,)
        months = months or ((rule.start.at.month,) if rule.frequency == "YEARLY" else ())
    return list(_short_month_warnings(days, months or tuple(range(1, 13)), only_days=True))


def _short_month_warnings(days: tuple[int, ...], months: tuple[int, ...], only_days: bool) -> Iterator[str]:
    """Warn about single days after the 28th, which are often a mistake. A range such as 25 to 31 causes no warning."""
    late = [day for day in days if day > 28 and day - 1 not in days]
    for day in late:
        if set(months) == {2}:
            yield f"February {day} exists only in leap years."
        elif any(monthrange(2001, month)[1] < day for month in months):
            which = ordinal(day)
            alone = only_days and len(days) == 1
            yield (
                f"Does not run in months without a {which}." if alone else f"Does not run on the {which} in months without one."
            )
