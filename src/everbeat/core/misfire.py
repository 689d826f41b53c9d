"""Decides what happens to a schedule whose tick is due: whether the tick fires, which ticks are skipped, and which is next.

The cursor is the instant up to which the ledger is complete. A plan has a row for every tick between the old and the new
cursor, so that no tick is lost between two plans, even if a node fails in between. A tick is late when it is older than
`late_after_seconds`. The catch-up policy applies only to late ticks.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple, assert_never

from everbeat.core.schedules import CatchUp
from everbeat.core.ticks import Skip, SkipReason
from everbeat.core.timeline import TickRun, Timeline

_MICROSECOND = timedelta(microseconds=1)


class Lateness(NamedTuple):
    """When a tick counts as late, and how much faster than normal a schedule may fire while it catches up (0: no limit)."""

    late_after_seconds: float = 5.0
    catch_up_rate: float = 2.0


DEFAULT_LATENESS = Lateness()


class FiringInput(NamedTuple):
    """The fields of a schedule that a plan depends on."""

    cursor_at: datetime
    next_tick_at: datetime
    catch_up: CatchUp
    grace_seconds: float
    jitter: timedelta
    moved_tick_at: datetime | None = None


class FiringPlan(NamedTuple):
    """The effect of one firing: at most one task, the ledger rows of skipped ticks, and the schedule's next position."""

    fires: datetime | None
    skips: tuple[Skip, ...]
    cursor_at: datetime
    next_tick_at: datetime | None
    due_at: datetime | None


def plan_firing(due: FiringInput, timeline: Timeline, now: datetime, lateness: Lateness = DEFAULT_LATENESS) -> FiringPlan:
    """Plan the firing of a schedule whose next tick is at or before now."""
    plan = _plan(due, timeline, now, lateness)
    moved = moved_tick_skips(due.moved_tick_at, due.cursor_at, plan.cursor_at)
    return plan._replace(skips=(*moved, *plan.skips)) if moved else plan


def moved_tick_skips(moved_tick_at: datetime | None, cursor_at: datetime, until: datetime) -> tuple[Skip, ...]:
    """Return the skip of a tick that a change of the tz database moved, if the cursor passes it."""
    if moved_tick_at is None or not cursor_at < moved_tick_at <= until:
        return ()
    return (Skip(moved_tick_at, moved_tick_at, 1, SkipReason.ZONE_CHANGED),)


def _plan(due: FiringInput, timeline: Timeline, now: datetime, lateness: Lateness) -> FiringPlan:
    late_before = now - due.jitter - timedelta(seconds=lateness.late_after_seconds)
    if due.next_tick_at >= late_before:
        return _fire(due, timeline, now, 0)
    grace = timedelta(seconds=max(due.grace_seconds, lateness.late_after_seconds))
    too_old = now - due.jitter - grace
    match due.catch_up:
        case CatchUp.LATEST:
            return _fire_latest(due, timeline, now, too_old)
        case CatchUp.NONE:
            return _skip_until(due, timeline, late_before - _MICROSECOND)
        case CatchUp.ALL:
            if due.next_tick_at < too_old:
                return _skip_until(due, timeline, too_old - _MICROSECOND)
            return _fire(due, timeline, now, lateness.catch_up_rate)
        case _:
            assert_never(due.catch_up)


def skip_past_ticks(timeline: Timeline, cursor_at: datetime, until: datetime, reason: SkipReason) -> tuple[Skip, ...]:
    """Skip every tick in (cursor, until]. An edit, a pause or a resume uses this to complete the ledger."""
    skips: list[Skip] = []
    while cursor_at < until:
        runs = timeline.runs_between(cursor_at, until)
        if not runs:
            break
        skips.extend(part for run in runs for part in _split_by_month(_skip(run, reason), timeline))
        cursor_at = runs[-1].last
    return tuple(skips)


def _fire(due: FiringInput, timeline: Timeline, now: datetime, rate: float) -> FiringPlan:
    """Fire the next tick. A rate above 0 means that the schedule is catching up; it delays the tick after this one."""
    tick = due.next_tick_at
    before, fireable = _runs_to(due, timeline, tick)
    following = timeline.next_tick(tick)
    return FiringPlan(
        fires=tick if fireable else None,
        skips=before,
        cursor_at=tick,
        next_tick_at=following,
        due_at=_due_at(due, following, now, rate),
    )


def _runs_to(due: FiringInput, timeline: Timeline, tick: datetime) -> tuple[tuple[Skip, ...], bool]:
    """Return the skips between the cursor and this tick, and whether the tick itself fires. A checkpoint does not."""
    if not timeline.has_skips:
        return (), True
    skips: list[Skip] = []
    cursor, fireable = due.cursor_at, True
    while cursor < tick:
        runs = timeline.runs_between(cursor, tick)
        if not runs:
            break
        cursor, fireable = runs[-1].last, runs[-1].skip is None
        fires = tick if fireable else None
        skips.extend(
            part for run in runs for skip in _skips_of_run(run, fires, timeline) for part in _split_by_month(skip, timeline)
        )
    return tuple(skips), fireable


def _fire_latest(due: FiringInput, timeline: Timeline, now: datetime, too_old: datetime) -> FiringPlan:
    limit = now - due.jitter
    runs = timeline.runs_between(due.cursor_at, limit)
    fires = next((run.last for run in reversed(runs) if run.skip is None), None)
    if fires is not None:
        following = timeline.next_tick(runs[-1].last)
        has_more_runs = following is not None and following <= limit
        if fires < too_old or has_more_runs:
            fires = None
    return _plan_for_runs(due, timeline, runs, fires)


def _skip_until(due: FiringInput, timeline: Timeline, until: datetime) -> FiringPlan:
    return _plan_for_runs(due, timeline, timeline.runs_between(due.cursor_at, until), None)


def _plan_for_runs(due: FiringInput, timeline: Timeline, runs: list[TickRun], fires: datetime | None) -> FiringPlan:
    skips = [part for run in runs for skip in _skips_of_run(run, fires, timeline) for part in _split_by_month(skip, timeline)]
    cursor_at = runs[-1].last if runs else due.next_tick_at
    following = timeline.next_tick(cursor_at)
    return FiringPlan(
        fires=fires,
        skips=tuple(skips),
        cursor_at=cursor_at,
        next_tick_at=following,
        due_at=None if following is None else following + due.jitter,
    )


def _skips_of_run(run: TickRun, fires: datetime | None, timeline: Timeline) -> list[Skip]:
    """Return the run as skips, without its last tick if that tick fires."""
    if run.skip is not None or run.last != fires:
        return [_skip(run, SkipReason.MISFIRE)]
    if run.count == 1:
        return []
    last = timeline.last_until(run.last - _MICROSECOND)
    assert last is not None
    return [Skip(run.first, last, run.count - 1, SkipReason.MISFIRE)]


def _split_by_month(skip: Skip, timeline: Timeline) -> list[Skip]:
    """Split a skip at month boundaries, because retention removes the ledger by month."""
    pieces, first, count = [], skip.first, skip.count
    while (first.year, first.month) != (skip.last.year, skip.last.month):
        next_month = (first.replace(day=1) + timedelta(days=32)).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        last = timeline.last_until(next_month - _MICROSECOND)
        following = next(timeline.occurrences(next_month - _MICROSECOND), None)
        assert last is not None
        assert following is not None
        in_month = timeline.count_between(first - _MICROSECOND, last)
        pieces.append(Skip(first, last, in_month, skip.reason))
        first, count = following.at, count - in_month
    return [*pieces, Skip(first, skip.last, count, skip.reason)]


def _skip(run: TickRun, reason: SkipReason) -> Skip:
    return Skip(run.first, run.last, run.count, run.skip or reason)


def _due_at(due: FiringInput, following: datetime | None, now: datetime, rate: float) -> datetime | None:
    """Return the tick plus its jitter. If that has passed during catch-up, return now plus 1/rate of the interval."""
    if following is None:
        return None
    due_at = following + due.jitter
    if rate > 0 and due_at <= now:
        return max(due_at, now + (following - due.next_tick_at) / rate)
    return due_at
