"""Changes to schedules: what to write when a schedule is created, edited, paused or resumed.

A change of rule, a pause or a resume first completes the ledger: every tick up to now gets a row under the old rule, so that
no tick fires twice and none is lost. A write contains the revision that it is based on. If a concurrent write has changed the
schedule, the decision is made again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.calendars import Calendar
from everbeat.core.errors import InvalidInput
from everbeat.core.jitter import jitter_of
from everbeat.core.misfire import moved_tick_skips, skip_past_ticks
from everbeat.core.partitioning import partition_of
from everbeat.core.rules import TRIGGER_FIELDS, Rule
from everbeat.core.schedules import PastRule, Schedule, Spec, Status, anchored, same_spec
from everbeat.core.ticks import Skip, SkipReason
from everbeat.core.timeline import Timeline, TimelineCache

Calendars = Mapping[str, Calendar]


class ScheduleWrite(NamedTuple):
    """One row to write: a new row if `expected` is None, otherwise a replacement of exactly that revision and position."""

    schedule: Schedule
    expected: Schedule | None = None
    skips: tuple[Skip, ...] = ()
    past_rule: PastRule | None = None


class ScheduleChanges:
    """Decides what to write. Compiled timelines are cached."""

    def __init__(self, timelines: TimelineCache) -> None:
        self._timelines = timelines

    def create(self, id_: UUID, tenant_id: UUID, spec: Spec, moment: datetime, calendars: Calendars) -> ScheduleWrite:
        spec = _with_anchor(spec, None, moment)
        first = self._first_tick(spec, id_, moment, calendars)
        is_active = spec.enabled
        schedule = Schedule(
            id=id_,
            tenant_id=tenant_id,
            partition=partition_of(id_),
            spec=spec,
            status=Status.ACTIVE if is_active else Status.PAUSED,
            revision=1,
            cursor_at=moment,
            rule_at=moment,
            created_at=moment,
            updated_at=moment,
            next_tick_at=first if is_active else None,
            due_at=first + jitter_of(id_, spec.jitter_seconds) if is_active else None,
        )
        return ScheduleWrite(schedule)

    def update(
        self,
        existing: Schedule,
        spec: Spec,
        moment: datetime,
        calendars: Calendars,
        *,
        enabled: bool | None = None,
    ) -> ScheduleWrite | None:
        """Return the write that gives a schedule this spec, or None if nothing changes.

        `enabled` is set if the request contains the field. Only then does it end a pause: a PUT of an unchanged spec does not.
        """
        spec = _with_anchor(spec, existing.spec.rule, moment)
        if enabled is None and spec.enabled != existing.spec.enabled:
            enabled = spec.enabled
        status = _status_after(existing, enabled)
        is_same = same_spec(spec, existing.spec)
        if is_same and status is existing.status and existing.fault is None:
            return None
        is_new_rule = spec.rule != existing.spec.rule
        if is_new_rule:
            self._first_tick(spec, existing.id, max(moment, existing.cursor_at), calendars)
            if status is Status.FINISHED:
                status = Status.ACTIVE if spec.enabled else Status.PAUSED
        if existing.fault is not None and enabled is not False:
            status = Status.ACTIVE
        if not is_new_rule and status is existing.status and existing.fault is None:
            return self._update_in_place(existing, spec, moment)
        write = self.reposition(existing, moment, calendars, status=status, note=existing.note, spec=spec)
        if not is_new_rule:
            return write
        # Not the current time: if the clock was set back, the ledger of the old rule already extends beyond it. The ledger of
        # a rule that can no longer be computed is complete only up to the cursor.
        changed_at = write.schedule.cursor_at
        until = changed_at if self._timeline_if_valid(existing, calendars) is not None else existing.cursor_at
        past = PastRule(schedule_id=existing.id, rule=existing.spec.rule, since=existing.rule_at, until=until)
        return write._replace(schedule=msgspec.structs.replace(write.schedule, rule_at=changed_at), past_rule=past)

    def _update_in_place(self, existing: Schedule, spec: Spec, moment: datetime) -> ScheduleWrite:
        """Return the write for a change that does not affect the ticks."""
        due_at = existing.due_at
        if existing.next_tick_at is not None and spec.jitter_seconds != existing.spec.jitter_seconds:
            due_at = existing.next_tick_at + jitter_of(existing.id, spec.jitter_seconds)
        schedule = msgspec.structs.replace(
            existing, spec=spec, due_at=due_at, revision=existing.revision + 1, updated_at=moment
        )
        return ScheduleWrite(schedule, expected=existing)

    def reposition(
        self,
        existing: Schedule,
        moment: datetime,
        calendars: Calendars,
        *,
        status: Status,
        note: str | None,
        spec: Spec | None = None,
    ) -> ScheduleWrite:
        """Complete the ledger up to now under the old rule, and position the schedule at the next tick of the new rule."""
        spec = spec or existing.spec
        cursor_at = max(moment, existing.cursor_at)
        next_tick_at = None
        if status is Status.ACTIVE:
            timeline = self._timelines.get(spec.rule, existing.id, calendars)
            next_tick_at = timeline.next_tick(cursor_at)
            status = Status.ACTIVE if next_tick_at is not None else Status.FINISHED
        schedule = msgspec.structs.replace(
            existing,
            spec=spec,
            status=status,
            note=note,
            fault=None,
            cursor_at=cursor_at,
            next_tick_at=next_tick_at,
            due_at=None if next_tick_at is None else next_tick_at + jitter_of(existing.id, spec.jitter_seconds),
            revision=existing.revision + 1,
            updated_at=moment,
        )
        return ScheduleWrite(schedule, expected=existing, skips=self._skips_of_past_ticks(existing, status, moment, calendars))

    def rezone(self, existing: Schedule, moment: datetime, calendars: Calendars) -> ScheduleWrite | None:
        """Return the write that moves the next tick after a change of the tz database, or None if it does not move.

        The cursor stays, so that an overdue tick can still be caught up, and ticks before it are never computed again. The
        ticks up to the cursor belong to a past rule, because they were computed with the former data.
        """
        if existing.status is not Status.ACTIVE or existing.next_tick_at is None:
            return None
        timeline = self._timelines.get(existing.spec.rule, existing.id, calendars)
        next_tick_at = timeline.next_tick(existing.cursor_at)
        if next_tick_at == existing.next_tick_at:
            return None
        former = (existing.moved_tick_at, existing.next_tick_at)
        moved = [at for at in former if at is not None and at > existing.cursor_at and timeline.last_until(at) != at]
        schedule = msgspec.structs.replace(
            existing,
            status=Status.FINISHED if next_tick_at is None else Status.ACTIVE,
            next_tick_at=next_tick_at,
            due_at=None if next_tick_at is None else next_tick_at + jitter_of(existing.id, existing.spec.jitter_seconds),
            moved_tick_at=moved[0] if moved else None,
            rule_at=existing.cursor_at,
            revision=existing.revision + 1,
            updated_at=moment,
        )
        past = PastRule(schedule_id=existing.id, rule=existing.spec.rule, since=existing.rule_at, until=existing.cursor_at)
        has_past = existing.cursor_at > existing.rule_at
        return ScheduleWrite(schedule, expected=existing, past_rule=past if has_past else None)

    def _skips_of_past_ticks(
        self, existing: Schedule, status: Status, moment: datetime, calendars: Calendars
    ) -> tuple[Skip, ...]:
        if existing.status is Status.FINISHED:
            return ()
        is_pausing = existing.status is Status.PAUSED or status is Status.PAUSED
        reason = SkipReason.PAUSED if is_pausing else SkipReason.MISFIRE
        if status is Status.FINISHED:
            reason = SkipReason.ENDED if existing.status is Status.ACTIVE else SkipReason.PAUSED
        moved = moved_tick_skips(existing.moved_tick_at, existing.cursor_at, moment)
        timeline = self._timeline_if_valid(existing, calendars)
        return moved if timeline is None else (*moved, *skip_past_ticks(timeline, existing.cursor_at, moment, reason))

    def _timeline_if_valid(self, existing: Schedule, calendars: Calendars) -> Timeline | None:
        try:
            return self._timelines.get(existing.spec.rule, existing.id, calendars)
        except InvalidInput:  # the ticks of a faulty rule cannot be computed
            return None

    def _first_tick(self, spec: Spec, id_: UUID, after: datetime, calendars: Calendars) -> datetime:
        timeline: Timeline = self._timelines.get(spec.rule, id_, calendars)
        first = timeline.next_tick(after)
        if first is not None:
            return first
        field = TRIGGER_FIELDS[spec.rule.kind]
        if spec.rule.ends_at is not None:
            raise InvalidInput.of("ends_at", "must be later: the rule has no tick before it")
        raise InvalidInput.of(field, "is in the past" if field == "at" else "has no more ticks")


def _with_anchor(spec: Spec, previous: Rule | None, moment: datetime) -> Spec:
    rule = anchored(spec.rule, previous, moment)
    return spec if rule is spec.rule else msgspec.structs.replace(spec, rule=rule)


def _status_after(existing: Schedule, enabled: bool | None) -> Status:
    if enabled is None or existing.status is Status.FINISHED:
        return existing.status
    return Status.ACTIVE if enabled else Status.PAUSED
