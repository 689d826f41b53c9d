"""Recurrence rules as triggers. rrule_text.py parses the text, rrule_times.py computes the times, wall_clock.py applies DST.

YEARLY to DAILY rules name local times, and the policies for gaps and folds apply to them. HOURLY, MINUTELY and SECONDLY rules
count elapsed time from DTSTART, also across gaps and folds, and their BY parts filter by local time. COUNT counts the times of
a rule before a gap moves or skips one, or a fold repeats one. UNTIL is inclusive; a date includes the whole day in the zone.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from everbeat.core.errors import InvalidInput
from everbeat.core.rules import DstFold, DstGap
from everbeat.core.triggers.rrule_text import START_YEARS, Recurrence, invalid_rrule, read_recurrence
from everbeat.core.triggers.rrule_times import UNITS, DatePattern, ElapsedPattern
from everbeat.core.triggers.wall_clock import DAY, MAX_INSTANT, LocalTrigger, Mode, to_seconds, wall_clock
from everbeat.core.zones import load_zone

# An HOURLY, MINUTELY or SECONDLY rule without a tick in this many windows is considered to have none.
_MAX_WINDOWS = 64
_COUNT_YEARS = 100


class RRuleTrigger(LocalTrigger):
    """A recurrence rule in its zone."""


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
    if rule.frequency in UNITS:
        return _elapsed(rule, zone, start, gap)
    wall = to_seconds(start.replace(tzinfo=UTC))
    pattern = DatePattern(rule, wall, _until(rule, zone))
    if pattern.none_before(wall) is None:
        raise invalid_rrule(_no_ticks_message(rule))
    if rule.limit is not None:
        pattern = pattern.ending_after(rule.limit)
    return RRuleTrigger(pattern, wall_clock(zone, Mode.of(fold)), gap)


def _elapsed(rule: Recurrence, zone: ZoneInfo, start: datetime, gap: DstGap) -> RRuleTrigger:
    begin = to_seconds(start)
    clock = wall_clock(zone, Mode.REAL)
    trigger = RRuleTrigger(ElapsedPattern(rule, begin, _until(rule, zone)), clock, gap)
    if trigger.search(begin - 1, _MAX_WINDOWS) is None:
        raise invalid_rrule(_no_ticks_message(rule))
    if rule.limit is None:
        return trigger
    last = begin - 1
    for _ in range(rule.limit):
        found = trigger.search(last, _MAX_WINDOWS)
        if found is None or found > begin + _COUNT_YEARS * 366 * DAY:
            raise invalid_rrule(f"COUNT: {rule.limit} ticks would take more than {_COUNT_YEARS} years; reduce it, or use UNTIL")
        last = found
    return RRuleTrigger(ElapsedPattern(rule, begin, last), clock, gap)


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
    return "never matches, because its BY parts, INTERVAL and DTSTART exclude each other"
