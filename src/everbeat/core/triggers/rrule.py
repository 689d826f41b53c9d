"""Recurrence rules as triggers. rrule_text.py parses the text, rrule_times.py computes the times, wall_clock.py applies DST.

YEARLY to DAILY rules name local times, and the policies for gaps and folds apply to them. HOURLY, MINUTELY and SECONDLY rules
count elapsed time from DTSTART, also across gaps and folds, and their BY parts filter by local time. COUNT counts the times of
a rule before a gap moves or skips one, or a fold repeats one, and before EXDATE and RDATE. UNTIL is inclusive; a date includes
the whole day in the zone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from everbeat.core.errors import InvalidInput
from everbeat.core.rules import DstFold, DstGap
from everbeat.core.triggers.rrule_dates import Dates, RRuleTrigger, sort_dates
from everbeat.core.triggers.rrule_text import START_YEARS, ListedDate, Recurrence, invalid_rrule, read_recurrence
from everbeat.core.triggers.rrule_times import UNITS, DatePattern, ElapsedPattern, nth_time
from everbeat.core.triggers.wall_clock import DAY, MAX_INSTANT, LocalTrigger, Mode, WallClock, to_seconds, wall_clock
from everbeat.core.zones import load_zone

# An HOURLY, MINUTELY or SECONDLY rule without a tick in this many windows is considered to have none.
_MAX_WINDOWS = 64
# The windows of a zone take long to find for many years.
_COUNT_YEARS = 30
_NEVER_MATCHES = "never matches, because its BY parts, INTERVAL and DTSTART exclude each other"
# In steps of a loop, a few milliseconds in all.
_MAX_COUNT_WORK = 30_000


def effective_zone(expression: str, timezone: str) -> str:
    """Return the zone of a rule: the TZID of its DTSTART if it has one, otherwise the zone of the schedule."""
    return read_recurrence(expression).zone or timezone


def has_start(expression: str) -> bool:
    """Whether the rule has a DTSTART and therefore needs no anchor."""
    return read_recurrence(expression).start is not None


def parse_rrule(expression: str, timezone: str, anchor: datetime, gap: DstGap, fold: DstFold) -> RRuleTrigger:
    """Parse a rule. Raises InvalidInput for `rrule`. The anchor replaces a missing DTSTART."""
    rule = read_recurrence(expression)
    zone = _zone(rule, timezone)
    start = _start(rule, zone, anchor)
    counts_elapsed_time = rule.frequency in UNITS
    clock = wall_clock(zone, Mode.REAL if counts_elapsed_time else Mode.of(fold))
    pattern = _elapsed(rule, clock, to_seconds(start)) if counts_elapsed_time else _dated(rule, zone, start)
    added, excluded = _dates("RDATE", rule.added, zone), _dates("EXDATE", rule.excluded, zone)
    trigger = RRuleTrigger(pattern, clock, gap, added, excluded)
    if rule.excluded and trigger.search(min((to_seconds(start), *added.times, *added.instants)) - DAY) is None:
        raise invalid_rrule("EXDATE: removes every tick; remove some of its dates")
    return trigger


def _dates(name: str, dates: Sequence[ListedDate], zone: ZoneInfo) -> Dates:
    try:
        return sort_dates(dates, zone)
    except InvalidInput as invalid:
        raise invalid_rrule(f"{name}: TZID: {invalid.errors[0].message}") from None


def _dated(rule: Recurrence, zone: ZoneInfo, start: datetime) -> DatePattern:
    wall = to_seconds(start.replace(tzinfo=UTC))
    pattern = DatePattern(rule, wall, _until(rule, zone))
    if pattern.none_before(wall) is None:
        raise invalid_rrule(_no_ticks_message(rule))
    if rule.limit is None:
        return pattern
    ended = pattern.ending_after(rule.limit)
    if ended is None:
        raise invalid_rrule(_takes_too_long(rule.limit, pattern.max_years_counted))
    return ended


def _elapsed(rule: Recurrence, clock: WallClock, begin: int) -> ElapsedPattern:
    pattern = ElapsedPattern(rule, begin, _until(rule, clock.zone))
    if rule.limit is not None:
        return pattern.ending_at(_last_of(rule.limit, pattern, clock, begin))
    if LocalTrigger(pattern, clock, DstGap.AFTER).search(begin - 1, _MAX_WINDOWS) is None:
        raise invalid_rrule(_no_ticks_message(rule))
    return pattern


def _last_of(limit: int, pattern: ElapsedPattern, clock: WallClock, begin: int) -> int:
    """Return the instant of the last tick of a rule with COUNT. Raises InvalidInput if finding it would take too long."""
    if pattern.none_before(begin) is None:
        raise invalid_rrule(_NEVER_MATCHES)
    total = work = days = 0
    position, end = begin, min(begin + _COUNT_YEARS * 366 * DAY, MAX_INSTANT)
    while position < end:
        window = clock.at(position)
        # Short spans at first, because most rules end soon.
        length = min(-(-(window.end - position) // DAY), days + 1) if pattern.work_on(1, 0) else 366
        work += pattern.work_on(length, days)
        if work > _MAX_COUNT_WORK:
            raise invalid_rrule(
                f"COUNT: the last of {limit} ticks is too expensive to find, because INTERVAL and the BY parts rarely match "
                "together; reduce COUNT, or use UNTIL"
            )
        following = min(window.end, position + length * DAY)
        low, high = position + window.offset, following + window.offset
        found = pattern.count(low, high, window.offset)
        if total + found >= limit:
            return nth_time(pattern, low, high, window.offset, limit - total) - window.offset
        total, days, position = total + found, days + length, following
    raise invalid_rrule(_takes_too_long(limit, _COUNT_YEARS) if total else _NEVER_MATCHES)


def _takes_too_long(limit: int, years: int) -> str:
    return f"COUNT: {limit} ticks would take more than {years} years; reduce it, or use UNTIL"


def _zone(rule: Recurrence, timezone: str) -> ZoneInfo:
    if rule.zone is None:
        return load_zone(timezone)
    try:
        return load_zone(rule.zone)
    except InvalidInput as invalid:
        raise invalid_rrule(f"TZID: {invalid.errors[0].message}") from None


def _start(rule: Recurrence, zone: ZoneInfo, anchor: datetime) -> datetime:
    if rule.start is None and anchor.year not in START_YEARS:
        raise invalid_rrule(f"the year of the anchor must be {START_YEARS.start}–{START_YEARS.stop - 1}")
    start = anchor.replace(microsecond=0) if rule.start is None else rule.start.at
    return start.replace(tzinfo=zone) if start.tzinfo is None else start.astimezone(zone)


def _until(rule: Recurrence, zone: ZoneInfo) -> int | None:
    if rule.until is None:
        return None
    until = rule.until.at
    if rule.until.is_date:
        until = until + timedelta(seconds=DAY - 1)
    if until.tzinfo is None:
        # If the local time occurs twice, use the later instant, because UNTIL is inclusive.
        until = until.replace(tzinfo=zone, fold=1)
    return min(to_seconds(until), MAX_INSTANT)


def _no_ticks_message(rule: Recurrence) -> str:
    if rule.until is not None:
        return "UNTIL: there is no tick between DTSTART and UNTIL; change UNTIL or the BY parts"
    return _NEVER_MATCHES
