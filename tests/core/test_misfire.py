"""Firing plans: what happens to a tick that is due, late or too late, and that no tick is lost between two plans."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.core import timeline as timeline_module
from everbeat.core.misfire import DEFAULT_LATENESS, FiringInput, FiringPlan, Lateness, plan_firing, skip_past_ticks
from everbeat.core.rules import DstFold, DstGap, Rule
from everbeat.core.schedules import CatchUp
from everbeat.core.ticks import Skip, SkipReason
from everbeat.core.timeline import CalendarDays, Timeline, compile_rule
from tests.factories import NOW, cron, every, minutes, seconds

MISFIRE, CALENDAR, GAP = SkipReason.MISFIRE, SkipReason.CALENDAR, SkipReason.DST_GAP
UNLIMITED = Lateness(catch_up_rate=0)


class Weekend:
    def covers(self, local: datetime) -> bool:
        return local.weekday() >= 5


class Nights:
    def covers(self, local: datetime) -> bool:
        return not 8 <= local.hour < 18


class Always:
    def covers(self, local: datetime) -> bool:
        return True


CALENDARS: dict[str, CalendarDays] = {"weekend": Weekend(), "nights": Nights(), "always": Always()}


def compiled(rule: Rule) -> Timeline:
    return compile_rule(rule, UUID(int=1), CALENDARS)


MINUTELY = compiled(every(60))


def test_a_range_across_months_is_recorded_in_each_month() -> None:
    cursor = datetime(2026, 1, 30, 12, 30, tzinfo=UTC)
    timeline = compiled(cron("0 12 * * *"))
    skips = skip_past_ticks(timeline, cursor, datetime(2026, 3, 2, 13, tzinfo=UTC), SkipReason.PAUSED)
    assert [(skip.first.day, skip.last.day, skip.count) for skip in skips] == [(31, 31, 1), (1, 28, 28), (1, 2, 2)]
    assert [skip.first.month for skip in skips] == [1, 2, 3]


def due_of(timeline: Timeline, cursor_at: datetime, **more: Any) -> FiringInput:
    """Return the input for a schedule with this cursor."""
    following = timeline.next_tick(cursor_at)
    assert following is not None
    return FiringInput(cursor_at, following, CatchUp.LATEST, 3600, timedelta(0))._replace(**more)


def plan(late: timedelta, *, lateness: Lateness = DEFAULT_LATENESS, timeline: Timeline = MINUTELY, **more: Any) -> FiringPlan:
    """Return the plan for a schedule whose next tick is the one after NOW, made `late` after that tick."""
    due = due_of(timeline, NOW, **more)
    return plan_firing(due, timeline, due.next_tick_at + late, lateness)


def tick(number: int) -> datetime:
    return NOW + minutes(number)


@pytest.mark.parametrize("catch_up", list(CatchUp))
@pytest.mark.parametrize("late_seconds", [0, 0.5, 5])
def test_a_tick_on_time_fires_whatever_the_policy(catch_up: CatchUp, late_seconds: float) -> None:
    made = plan(seconds(late_seconds), catch_up=catch_up, grace_seconds=0)
    assert made == FiringPlan(tick(1), (), tick(1), tick(2), tick(2))


def test_latest_fires_the_newest_missed_tick_and_records_the_others() -> None:
    made = plan(minutes(5) + seconds(1), catch_up=CatchUp.LATEST)
    assert made == FiringPlan(tick(6), (Skip(tick(1), tick(5), 5, MISFIRE),), tick(6), tick(7), tick(7))


def test_latest_fires_a_single_missed_tick() -> None:
    assert plan(seconds(59), catch_up=CatchUp.LATEST) == FiringPlan(tick(1), (), tick(1), tick(2), tick(2))


def test_latest_of_ticks_past_the_grace_only_records_them() -> None:
    hourly = compiled(cron("0 * * * *"))
    made = plan(minutes(59), catch_up=CatchUp.LATEST, grace_seconds=600, timeline=hourly)
    assert (made.fires, made.skips) == (None, (Skip(NOW + minutes(60), NOW + minutes(60), 1, MISFIRE),))
    assert made.next_tick_at == NOW + minutes(120)


def test_latest_uses_the_age_of_the_newest_tick() -> None:
    made = plan(minutes(30), catch_up=CatchUp.LATEST, grace_seconds=60)
    assert (made.fires, made.skips) == (tick(31), (Skip(tick(1), tick(30), 30, MISFIRE),))


def test_none_records_all_late_ticks_and_fires_the_one_that_is_not_late() -> None:
    late = plan(minutes(5) + seconds(1), catch_up=CatchUp.NONE)
    assert late == FiringPlan(None, (Skip(tick(1), tick(5), 5, MISFIRE),), tick(5), tick(6), tick(6))
    due = FiringInput(late.cursor_at, tick(6), CatchUp.NONE, 3600, timedelta(0))
    assert plan_firing(due, MINUTELY, tick(6) + seconds(1)).fires == tick(6)


def test_none_does_not_skip_a_tick_at_the_limit_of_lateness() -> None:
    """A tick is late if it is more than five seconds old, so a tick that is exactly five seconds old still fires."""
    made = plan(minutes(1) + seconds(5), catch_up=CatchUp.NONE)
    assert (made.skips, made.next_tick_at) == ((Skip(tick(1), tick(1), 1, MISFIRE),), tick(2))


def test_all_fires_each_missed_tick_in_order() -> None:
    made = plan(minutes(5), catch_up=CatchUp.ALL, lateness=UNLIMITED)
    assert made == FiringPlan(tick(1), (), tick(1), tick(2), tick(2))


def test_all_catches_up_at_twice_the_normal_rate() -> None:
    made = plan(minutes(5), catch_up=CatchUp.ALL)
    assert made == FiringPlan(tick(1), (), tick(1), tick(2), tick(6) + seconds(30))


def test_all_does_not_delay_a_future_tick() -> None:
    made = plan(seconds(50), catch_up=CatchUp.ALL)
    assert made.due_at == made.next_tick_at == tick(2)


def test_all_records_ticks_older_than_the_grace_as_one_range() -> None:
    made = plan(minutes(30), catch_up=CatchUp.ALL, grace_seconds=600)
    assert made == FiringPlan(None, (Skip(tick(1), tick(20), 20, MISFIRE),), tick(20), tick(21), tick(21))
    assert made.next_tick_at == tick(31) - minutes(10), "a tick whose age is exactly the grace still fires"


def test_a_grace_shorter_than_lateness_counts_as_lateness() -> None:
    assert plan(seconds(6), catch_up=CatchUp.ALL, grace_seconds=0).fires is None
    assert plan(seconds(5), catch_up=CatchUp.ALL, grace_seconds=0).fires == tick(1)


def test_jitter_moves_the_firing_and_not_the_tick() -> None:
    jitter = seconds(40)
    made = plan(jitter, jitter=jitter, catch_up=CatchUp.NONE)
    assert made == FiringPlan(tick(1), (), tick(1), tick(2), tick(2) + jitter)


def test_jitter_is_not_lateness() -> None:
    jitter = seconds(40)
    assert plan(jitter + seconds(5), jitter=jitter, catch_up=CatchUp.NONE).fires == tick(1)
    assert plan(jitter + seconds(6), jitter=jitter, catch_up=CatchUp.NONE).fires is None


def test_with_jitter_latest_does_not_fire_a_tick_early() -> None:
    jitter = seconds(40)
    made = plan(minutes(3) + seconds(30), jitter=jitter)
    assert (made.fires, made.next_tick_at, made.due_at) == (tick(3), tick(4), tick(4) + jitter)


def test_excluded_ticks_are_recorded_with_the_next_firing() -> None:
    friday = datetime(2026, 3, 6, 12, tzinfo=UTC)
    daily = compiled(cron("0 12 * * *", exclude=("weekend",)))
    due = due_of(daily, friday)
    monday = friday + timedelta(days=3)
    assert due.next_tick_at == monday
    made = plan_firing(due, daily, monday)
    weekend = Skip(friday + timedelta(days=1), friday + timedelta(days=2), 2, CALENDAR)
    assert (made.fires, made.skips, made.cursor_at) == (monday, (weekend,), monday)


@pytest.mark.parametrize(
    ("catch_up", "fires", "reasons"),
    [
        (CatchUp.LATEST, 9, [MISFIRE, CALENDAR, MISFIRE]),
        (CatchUp.NONE, None, [MISFIRE, CALENDAR, MISFIRE]),
        (CatchUp.ALL, 6, []),
    ],
)
def test_late_ticks_around_a_weekend_keep_their_reasons(
    catch_up: CatchUp, fires: int | None, reasons: list[SkipReason]
) -> None:
    thursday = datetime(2026, 3, 5, 12, tzinfo=UTC)
    daily = compiled(cron("0 12 * * *", exclude=("weekend",)))
    due = due_of(daily, thursday, catch_up=catch_up, grace_seconds=30 * 86_400)
    made = plan_firing(due, daily, datetime(2026, 3, 10, 11, tzinfo=UTC))
    assert made.fires == (None if fires is None else datetime(2026, 3, fires, 12, tzinfo=UTC))
    expected = reasons[:-1] if catch_up is CatchUp.LATEST else reasons
    assert [skip.reason for skip in made.skips] == expected


def test_a_tick_that_a_changed_calendar_now_excludes_does_not_fire() -> None:
    before, after = compiled(cron("0 12 * * *")), compiled(cron("0 12 * * *", exclude=("weekend",)))
    saturday = datetime(2026, 3, 7, 12, tzinfo=UTC)
    due = due_of(before, saturday - timedelta(days=1))
    made = plan_firing(due, after, saturday)
    assert (made.fires, made.skips) == (None, (Skip(saturday, saturday, 1, CALENDAR),))
    assert made.next_tick_at == saturday + timedelta(days=2)


def test_a_gap_of_daylight_saving_is_recorded_as_skipped() -> None:
    nightly = compiled(cron("30 2 * * *", timezone="Europe/Berlin", gap=DstGap.SKIP))
    saturday = datetime(2026, 3, 28, 1, 30, tzinfo=UTC)
    due = due_of(nightly, saturday)
    assert due.next_tick_at == datetime(2026, 3, 30, 0, 30, tzinfo=UTC)
    made = plan_firing(due, nightly, due.next_tick_at)
    assert made.fires == due.next_tick_at
    assert [(skip.reason, skip.count) for skip in made.skips] == [(GAP, 1)]


def test_a_rule_that_excludes_everything_advances_by_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "MAX_EXAMINED", 50)
    nothing = compiled(every(60, exclude=("always",)))
    due = due_of(nothing, NOW)
    assert due.next_tick_at == tick(50)
    made = plan_firing(due, nothing, due.next_tick_at)
    assert made == FiringPlan(None, (Skip(tick(1), tick(50), 50, CALENDAR),), tick(50), tick(100), tick(100))


def test_a_scan_that_stops_early_records_examined_ticks_and_fires_nothing() -> None:
    start = NOW.replace(hour=7, minute=59)
    busy = compiled(every(1, anchor=start, exclude=("nights",)))
    due = due_of(busy, start, grace_seconds=86_400)
    now = start + timedelta(hours=6)
    first = plan_firing(due, busy, now)
    assert first.fires is None
    assert sum(skip.count for skip in first.skips) == 10_000
    plans = list(plans_until_done(busy, due, now))
    assert [made.fires for made in plans][-1] == now
    assert sum(made.fires is not None for made in plans) == 1


def test_after_the_last_tick_there_is_no_next_tick() -> None:
    ending = compiled(every(60, ends_at=tick(1)))
    due = due_of(ending, NOW)
    assert plan_firing(due, ending, tick(1)) == FiringPlan(tick(1), (), tick(1), None, None)
    late = plan_firing(due, ending, tick(500))
    assert (late.fires, late.next_tick_at, late.due_at) == (None, None, None)
    assert late.skips == (Skip(tick(1), tick(1), 1, MISFIRE),)


def test_past_ticks_are_skipped_as_one_range() -> None:
    assert skip_past_ticks(MINUTELY, NOW, tick(3), SkipReason.PAUSED) == (Skip(tick(1), tick(3), 3, SkipReason.PAUSED),)
    assert skip_past_ticks(MINUTELY, NOW, tick(1) - seconds(1), SkipReason.PAUSED) == ()
    assert skip_past_ticks(MINUTELY, tick(3), NOW, SkipReason.PAUSED) == ()


def test_skipping_past_ticks_keeps_other_reasons() -> None:
    friday = datetime(2026, 3, 6, 12, tzinfo=UTC)
    daily = compiled(cron("0 12 * * *", exclude=("weekend",)))
    skips = skip_past_ticks(daily, friday - timedelta(days=1), friday + timedelta(days=4), SkipReason.PAUSED)
    assert [(skip.reason, skip.count) for skip in skips] == [(SkipReason.PAUSED, 1), (CALENDAR, 2), (SkipReason.PAUSED, 2)]


def test_past_ticks_are_skipped_up_to_the_end() -> None:
    busy = compiled(every(1, exclude=("nights",)))
    skips = skip_past_ticks(busy, NOW, NOW + timedelta(days=1), SkipReason.PAUSED)
    assert sum(skip.count for skip in skips) == 86_400
    assert all(one.last < other.first for one, other in pairwise(skips))


# Every tick is accounted for exactly once.


def plans_until_done(
    timeline: Timeline, due: FiringInput, now: datetime, lateness: Lateness = DEFAULT_LATENESS, max_plans: int = 2000
) -> list[FiringPlan]:
    """Apply plans as the ticker does, until nothing is due at `now`."""
    plans: list[FiringPlan] = []
    moment = now
    for _ in range(max_plans):
        made = plan_firing(due, timeline, moment, lateness)
        plans.append(made)
        if made.next_tick_at is None or made.due_at is None:
            break
        due = due._replace(cursor_at=made.cursor_at, next_tick_at=made.next_tick_at)
        if made.due_at > now:
            break
    return plans


# Rules, and by how many seconds they may be late: frequent rules by less, so that each example is fast.
RULES: list[tuple[Rule, int]] = [
    (every(60), 20_000),
    (every(47, anchor=NOW - timedelta(days=400)), 20_000),
    (every(600, ends_at=NOW + timedelta(days=2)), 3 * 86_400),
    (every(900, exclude=("nights",)), 86_400),
    (cron("*/7 * * * *"), 40_000),
    (cron("0 9 * * MON-FRI", exclude=("weekend",), timezone="America/New_York"), 12 * 86_400),
    (cron("*/30 1-3 * * *", timezone="Europe/Berlin", gap=DstGap.SKIP, fold=DstFold.BOTH), 3 * 86_400),
    (cron("30 2 * * *", timezone="Europe/Berlin", gap=DstGap.SKIP, exclude=("weekend",)), 12 * 86_400),
    (cron("30 2 * * *", timezone="Europe/Berlin", fold=DstFold.BOTH), 12 * 86_400),
    (cron("15 2 * * *", timezone="Australia/Lord_Howe", gap=DstGap.SKIP, only=("weekend",)), 12 * 86_400),
]
STARTS = [
    NOW,
    datetime(2026, 3, 28, 22, tzinfo=UTC),
    datetime(2026, 10, 24, 22, tzinfo=UTC),
    datetime(2026, 4, 4, 10, tzinfo=UTC),
]


@settings(max_examples=400, deadline=None)
@given(
    rule=st.sampled_from(RULES),
    fraction=st.floats(0, 1),
    start=st.sampled_from(STARTS),
    offset=st.integers(0, 86_400),
    catch_up=st.sampled_from(CatchUp),
    grace=st.sampled_from([0, 60, 3600, 86_400.0 * 30]),
    jitter=st.sampled_from([0, 30, 3000]),
    rate=st.sampled_from([0.0, 2.0]),
)
def test_plans_account_for_every_tick_exactly_once(
    rule: tuple[Rule, int],
    fraction: float,
    start: datetime,
    offset: int,
    catch_up: CatchUp,
    grace: float,
    jitter: int,
    rate: float,
) -> None:
    timeline, late = compiled(rule[0]), int(fraction * rule[1])
    cursor = start + seconds(offset)
    first = timeline.next_tick(cursor)
    if first is None:
        return
    due = FiringInput(cursor, first, catch_up, grace, seconds(jitter))
    now = first + seconds(jitter + late)
    lateness = Lateness(catch_up_rate=rate)
    plans = plans_until_done(timeline, due, now, lateness)
    reached = plans[-1].cursor_at
    recorded: list[tuple[datetime, datetime, int]] = []
    for made in plans:
        rows = [(skip.first, skip.last, skip.count) for skip in made.skips]
        rows += [(made.fires, made.fires, 1)] if made.fires is not None else []
        recorded += sorted(rows)
        assert made.next_tick_at is None or made.next_tick_at > made.cursor_at
        assert made.fires is None or made.fires + due.jitter <= now
    assert recorded == sorted(recorded)
    for (_, last, _), (following, _, _) in pairwise(recorded):
        assert last < following, "rows overlap"
    for row in recorded:
        assert timeline.count_between(row[0] - timedelta(microseconds=1), row[1]) == row[2]
    assert sum(count for _, _, count in recorded) == timeline.count_between(cursor, reached)
    if rate == 0 or catch_up is not CatchUp.ALL:
        assert timeline.count_between(reached, now - due.jitter) <= _unrecorded_skips(timeline, reached, now - due.jitter)


def _unrecorded_skips(timeline: Timeline, after: datetime, until: datetime) -> int:
    """Return the number of ticks that are recorded with the next firing: those that calendars or gaps skip."""
    return sum(1 for one in timeline.occurrences(after, until) if one.skip is not None)
