"""Timelines: the ticks of one rule between its start and end, including those that calendars and DST gaps skip."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from threading import Lock
from typing import NamedTuple, Protocol, assert_never
from uuid import UUID
from zoneinfo import ZoneInfo

from everbeat.core.errors import FieldError, InvalidInput
from everbeat.core.rules import Rule, TriggerKind
from everbeat.core.ticks import Occurrence, SkipReason
from everbeat.core.triggers import cron
from everbeat.core.triggers.base import Trigger
from everbeat.core.triggers.cron_fields import uses_hash
from everbeat.core.triggers.interval import parse_every
from everbeat.core.triggers.once import parse_at
from everbeat.core.triggers.wall_clock import LocalTrigger
from everbeat.core.zones import load_zone

# Enough for a year of excluded hourly ticks. For a denser rule, the search stops at a checkpoint and continues there later.
MAX_EXAMINED = 10_000
_LOOK_AHEAD = timedelta(days=3660)

_MICROSECOND = timedelta(microseconds=1)
_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


class CalendarDays(Protocol):
    """The part of a calendar that timelines use."""

    def covers(self, local: datetime) -> bool:
        """Whether the calendar contains this local time, which is aware and in the zone of the schedule."""


class TickRun(NamedTuple):
    """Consecutive ticks with the same skip reason, from first to last. `skip` None: they fire."""

    first: datetime
    last: datetime
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used here
    skip: SkipReason | None


class Timeline:
    """The ticks of one rule. Immutable, so that schedules with the same rule can share it."""

    def __init__(
        self,
        trigger: Trigger,
        zone: ZoneInfo,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        exclude: tuple[CalendarDays, ...] = (),
        only: tuple[CalendarDays, ...] = (),
    ) -> None:
        self.trigger = trigger
        self.zone = zone
        self._before = None if starts_at is None or starts_at <= _FIRST else starts_at - _MICROSECOND
        self._ends_at = ends_at or _LAST
        self._exclude = exclude
        self._only = only
        self._has_calendars = bool(exclude or only)
        self._skips_gaps = isinstance(trigger, LocalTrigger) and trigger.skips_gaps
        self.has_skips = self._has_calendars or self._skips_gaps

    def next_tick(self, after: datetime) -> datetime | None:
        """Return the next tick that fires. If calendars exclude all examined ticks, return the last one as a checkpoint."""
        tick = self._next(after)
        if not self._has_calendars:
            return tick
        last_examined = None
        for _ in range(MAX_EXAMINED):
            if tick is None or self._calendar_skip(tick) is None:
                break
            last_examined = tick
            if tick - after > _LOOK_AHEAD:  # limits the search for a rare rule
                return last_examined
            tick = self._next(tick)
        else:
            return last_examined
        return tick or last_examined

    def last_until(self, t: datetime) -> datetime | None:
        """Return the last tick at or before t, whether it fires or is skipped."""
        until = min(t, self._ends_at)
        tick = self.trigger.last_until(until)
        if self._skips_gaps and (gaps := self.trigger.gaps_between(tick or _FIRST, until)):
            tick = gaps[-1]
        return None if tick is None or (self._before is not None and tick <= self._before) else tick

    def count_between(self, after: datetime, until: datetime) -> int:
        """Return the number of ticks in (after, until], including those that calendars or DST gaps skip."""
        after, until = self._clip(after), min(until, self._ends_at)
        return self.trigger.count_between(after, until) + len(self._gaps(after, until))

    def runs_between(self, after: datetime, until: datetime, limit: int = 10_000) -> list[TickRun]:
        """Return the ticks in (after, until] as runs, oldest first. With calendars or skipped gaps, at most `limit` ticks."""
        if not self.has_skips:
            return self._one_run(after, until)
        runs: list[TickRun] = []
        for at, skip in islice(self.occurrences(after, until), limit):
            if runs and runs[-1].skip is skip:
                runs[-1] = runs[-1]._replace(last=at, count=runs[-1].count + 1)
            else:
                runs.append(TickRun(at, at, 1, skip))
        return runs

    def occurrences(self, after: datetime, until: datetime | None = None) -> Iterator[Occurrence]:
        """Yield every tick in (after, until] in order, with the skip reason. `until` None: up to the end of the rule."""
        cursor = self._clip(after)
        until = self._ends_at if until is None else min(until, self._ends_at)
        while True:
            tick = self.trigger.next_after(cursor)
            at_end = tick is None or tick > until
            for gap in self._gaps(cursor, until if tick is None or at_end else tick):
                yield Occurrence(gap, SkipReason.DST_GAP)
            if tick is None or at_end:
                return
            yield Occurrence(tick, self._calendar_skip(tick))
            cursor = tick

    def _one_run(self, after: datetime, until: datetime) -> list[TickRun]:
        count = self.count_between(after, until)
        first, last = self._next(after), self.last_until(until)
        return [TickRun(first, last, count, None)] if count and first is not None and last is not None else []

    def _next(self, after: datetime) -> datetime | None:
        tick = self.trigger.next_after(self._clip(after))
        return None if tick is None or tick > self._ends_at else tick

    def _clip(self, after: datetime) -> datetime:
        return after if self._before is None else max(after, self._before)

    def _gaps(self, after: datetime, until: datetime) -> list[datetime]:
        return list(self.trigger.gaps_between(after, until)) if self._skips_gaps else []

    def _calendar_skip(self, tick: datetime) -> SkipReason | None:
        if not self._has_calendars:
            return None
        local = tick.astimezone(self.zone)
        if any(calendar.covers(local) for calendar in self._exclude):
            return SkipReason.CALENDAR
        if self._only and not any(calendar.covers(local) for calendar in self._only):
            return SkipReason.CALENDAR
        return None


def compile_rule(rule: Rule, schedule_id: UUID | None, calendars: Mapping[str, CalendarDays]) -> Timeline:
    """Compile a rule. Raises InvalidInput with the names of the invalid API fields."""
    _check_window(rule)
    load_zone(rule.timezone)
    exclude = _calendars("calendars.exclude", rule.exclude, calendars)
    only = _calendars("calendars.only", rule.only, calendars)
    trigger, zone = _trigger(rule, schedule_id)
    return Timeline(trigger, zone, rule.starts_at, rule.ends_at, exclude, only)


def _check_window(rule: Rule) -> None:
    for field in ("starts_at", "ends_at", "anchor"):
        moment: datetime | None = getattr(rule, field)
        if moment is not None and moment.tzinfo is None:
            raise InvalidInput.of(field, "needs an offset from UTC, such as Z or +01:00")
    if rule.starts_at is not None and rule.ends_at is not None and rule.ends_at < rule.starts_at:
        raise InvalidInput.of("ends_at", "must not be before starts_at")


def _calendars(field: str, names: tuple[str, ...], calendars: Mapping[str, CalendarDays]) -> tuple[CalendarDays, ...]:
    unknown = [FieldError(field, f'there is no calendar "{name}"') for name in names if name not in calendars]
    if unknown:
        raise InvalidInput(*unknown)
    return tuple(calendars[name] for name in names)


def _trigger(rule: Rule, schedule_id: UUID | None) -> tuple[Trigger, ZoneInfo]:
    text, zone = rule.expression, rule.timezone
    match rule.kind:
        case TriggerKind.CRON:
            seed = None if schedule_id is None else schedule_id.bytes
            from_cron = cron.parse_cron(text, zone, rule.gap, rule.fold, seed)
            return from_cron, from_cron.clock.zone
        case TriggerKind.EVERY:
            return parse_every(text, _anchor(rule, "every_seconds")), load_zone(zone)
        case TriggerKind.RRULE:
            from everbeat.core.triggers import rrule  # not at the top: few schedules need it, and imports should be fast

            anchor = _LAST if rrule.has_start(text) else _anchor(rule, "rrule")
            from_rrule = rrule.parse_rrule(text, zone, anchor, rule.gap, rule.fold)
            return from_rrule, from_rrule.clock.zone
        case TriggerKind.AT:
            return parse_at(text), load_zone(zone)
        case _:
            assert_never(rule.kind)


def _anchor(rule: Rule, field: str) -> datetime:
    if rule.anchor is None:
        raise InvalidInput.of(field, "needs an anchor, the instant from which it counts")
    return rule.anchor


class TimelineCache:
    """An LRU cache of compiled timelines by rule. Calendars are compared by identity. `generation` grows when it is cleared."""

    def __init__(self, size: int = 10_000) -> None:
        self.generation = 0
        self._size = size
        self._entries: OrderedDict[object, Timeline] = OrderedDict()
        self._lock = Lock()

    def get(self, rule: Rule, schedule_id: UUID | None, calendars: Mapping[str, CalendarDays]) -> Timeline:
        # Names and revisions are not unique across tenants. An id() is unique while the entry exists, because its timeline
        # keeps a reference to the calendar.
        calendar_ids = tuple(id(calendars.get(name)) for name in (*rule.exclude, *rule.only))
        seeded = rule.kind is TriggerKind.CRON and uses_hash(rule.expression)
        key = (rule, schedule_id if seeded else None, calendar_ids)
        with self._lock:
            timeline = self._entries.get(key)
            if timeline is not None:
                self._entries.move_to_end(key)
                return timeline
            generation = self.generation
        timeline = compile_rule(rule, schedule_id, calendars)
        with self._lock:
            if generation != self.generation:  # compiled with data that has been replaced meanwhile
                return compile_rule(rule, schedule_id, calendars)
            self._entries[key] = timeline
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
        return timeline

    def clear(self) -> None:
        """Remove all timelines, for example after a change of the tz database."""
        with self._lock:
            self.generation += 1
            self._entries.clear()
