"""How the kinds of alert rules judge what was found."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbeat.core.alert_conditions import (
    Deadline,
    SuccessRate,
    deadline_of,
    duration_text,
    is_deadline_met,
    is_rate_low,
    is_rate_recovered,
    last_deadline,
    skip_streak,
    slow_limit,
    success_rate,
    usual_seconds,
)
from everbeat.core.alert_facts import ScheduleRun
from everbeat.core.alerts import AlertMatch, WhenDeadline, WhenSkipped, WhenSlow, WhenSuccessRate
from everbeat.core.tasks import TaskState
from everbeat.core.ticks import Outcome, SkipReason, Tick
from everbeat.core.timeline import TimelineCache
from tests.factories import LONG_AGO, NOW, cron, make_schedule, minutes, seconds

BERLIN = ZoneInfo("Europe/Berlin")


def run(took: float, *, state: TaskState = TaskState.COMPLETED, ended: datetime = NOW, id_: UUID | None = None) -> ScheduleRun:
    return ScheduleRun(id_ or uuid4(), UUID(int=1), state, None, ended - seconds(took), ended)


def tick(number: int, reason: SkipReason | None, count: int = 1) -> Tick:
    outcome = Outcome.FIRED if reason is None else Outcome.SKIPPED
    at = NOW + minutes(number)
    return Tick(UUID(int=1), at, outcome, reason, uuid4() if reason is None else None, at, None, count)


ZONES = ("Europe/Berlin", "UTC", "America/Santiago", "Australia/Lord_Howe")


@given(st.integers(0, 10 * 366 * 86_400), st.times(), st.sampled_from(ZONES))
def test_the_last_deadline_is_the_newest_one_that_has_come(at: int, by: time, zone: str) -> None:
    now, by = LONG_AGO + timedelta(seconds=at), by.replace(microsecond=0)
    found = last_deadline(by, ZoneInfo(zone), now)
    assert found <= now < found + timedelta(hours=50)
    following = last_deadline(by, ZoneInfo(zone), now + timedelta(days=1))
    assert timedelta(hours=22) <= following - found <= timedelta(hours=50)
    assert last_deadline(by, ZoneInfo(zone), found) == found


def test_deadlines_in_a_gap_and_in_a_fold() -> None:
    gap = last_deadline(time(2, 30), BERLIN, datetime(2026, 3, 29, 12, tzinfo=UTC))
    assert gap.astimezone(BERLIN).isoformat() == "2026-03-29T03:30:00+02:00"
    fold = last_deadline(time(2, 30), BERLIN, datetime(2026, 10, 25, 12, tzinfo=UTC))
    assert fold.astimezone(BERLIN).isoformat() == "2026-10-25T02:30:00+02:00"


def test_a_deadline_concerns_the_first_tick_of_the_day_before_it() -> None:
    schedule = make_schedule(rule=cron("0 1,2 * * *", timezone="Europe/Berlin"), rule_at=LONG_AGO)
    timeline = TimelineCache().get(schedule.spec.rule, schedule.id, {})
    now = datetime(2026, 3, 3, 5, tzinfo=BERLIN).astimezone(UTC)
    found = deadline_of(WhenDeadline(by="04:00"), schedule, timeline, now)
    assert found is not None
    assert (found.at, found.first_tick) == tuple(datetime(2026, 3, 3, hour, tzinfo=BERLIN).astimezone(UTC) for hour in (4, 1))
    assert deadline_of(WhenDeadline(by="04:00"), schedule, timeline, LONG_AGO) is None


def test_a_schedule_without_a_tick_in_the_day_has_no_deadline() -> None:
    schedule = make_schedule(rule=cron("0 2 * * SUN", timezone="UTC"), rule_at=LONG_AGO)
    timeline = TimelineCache().get(schedule.spec.rule, schedule.id, {})
    when = WhenDeadline(by="04:00")
    assert deadline_of(when, schedule, timeline, datetime(2026, 3, 3, 5, tzinfo=UTC)) is None
    assert deadline_of(when, schedule, timeline, datetime(2026, 3, 8, 5, tzinfo=UTC)) is not None


def test_a_deadline_is_met_by_a_completion_between_the_tick_and_the_deadline() -> None:
    deadline = Deadline(NOW, NOW - timedelta(days=1), NOW - minutes(60))
    for ended, state, expected in [
        (NOW, TaskState.COMPLETED, True),
        (NOW - minutes(60), TaskState.COMPLETED, True),
        (NOW - minutes(61), TaskState.COMPLETED, False),
        (NOW + seconds(1), TaskState.COMPLETED, False),
        (NOW - minutes(5), TaskState.DEAD, False),
    ]:
        assert is_deadline_met(deadline, [run(1, ended=ended, state=state)], 10) is expected
    assert not is_deadline_met(deadline, [], 10)
    assert is_deadline_met(deadline, [run(1, ended=NOW + minutes(1))] * 3, 3)


def test_the_usual_duration_is_the_median_of_completed_runs() -> None:
    own = uuid4()
    runs = [run(took) for took in (1, 2, 3, 4)]
    assert usual_seconds(runs) is None
    runs += [run(100, state=TaskState.DEAD), run(5), run(1000, id_=own)]
    assert usual_seconds(runs, without=own) == 3
    assert usual_seconds([run(2)] * 20 + [run(50)] * 100) == 2


@pytest.mark.parametrize(
    ("when", "usual", "expected"),
    [
        (WhenSlow(seconds=60), None, 60),
        (WhenSlow(seconds=60, times_usual=3), 10, 30),
        (WhenSlow(seconds=20, times_usual=3), 10, 20),
        (WhenSlow(times_usual=3), None, None),
        (WhenSlow(times_usual=3), 0.01, 1),
    ],
)
def test_the_limit_of_slow_runs(when: WhenSlow, usual: float | None, expected: float | None) -> None:
    assert slow_limit(when, usual) == expected


def test_cancelled_tasks_do_not_change_the_success_rate() -> None:
    rate = success_rate({TaskState.COMPLETED: 8, TaskState.DEAD: 1, TaskState.FAILED: 1, TaskState.CANCELLED: 90})
    assert rate == SuccessRate(8, 10)
    assert not is_rate_low(WhenSuccessRate(below=0.8), rate)
    assert is_rate_low(WhenSuccessRate(below=0.81), rate)
    assert not is_rate_low(WhenSuccessRate(below=0.81, min_runs=11), rate)


@given(st.floats(0.01, 1), st.integers(0, 50), st.integers(0, 50), st.integers(1, 20))
def test_a_rate_is_never_both_too_low_and_recovered(below: float, completed: int, dead: int, min_runs: int) -> None:
    rate = success_rate({TaskState.COMPLETED: completed, TaskState.DEAD: dead})
    when = WhenSuccessRate(below=below, min_runs=min_runs)
    assert not (is_rate_low(when, rate) and is_rate_recovered(when, rate))
    if rate.runs >= min_runs:
        assert is_rate_low(when, rate) or is_rate_recovered(when, rate)


def test_a_streak_of_skips_ends_at_the_last_tick_that_fired() -> None:
    when = WhenSkipped(in_a_row=3, reasons=[SkipReason.OVERLAP])
    overlap, calendar = SkipReason.OVERLAP, SkipReason.CALENDAR
    streak = skip_streak(when, [tick(1, overlap), tick(2, None), tick(3, overlap), tick(4, calendar), tick(5, overlap, 7)])
    assert (streak.count, streak.last_at, streak.has_fired) == (8, NOW + minutes(5), False)
    assert skip_streak(when, [tick(1, overlap), tick(2, None)]) == (0, None, True)
    assert skip_streak(when, [tick(1, None), tick(2, calendar)]) == (0, None, True)
    assert skip_streak(when, []) == (0, None, False)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.25, "0.2 s"),
        (1, "1 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_durations_are_short_texts(number: float, text: str) -> None:
    assert duration_text(number) == text


def test_a_rule_matches_by_schedule_queue_and_label() -> None:
    def accepts(**match: str) -> bool:
        return AlertMatch(**match).accepts(schedule="job", queue="q", labels={"team": "a=b"})

    assert accepts()
    assert accepts(schedule="job", queue="q", label="team=a=b")
    assert accepts(label="team")
    assert not any([accepts(schedule="other"), accepts(queue="other"), accepts(label="team=a"), accepts(label="other")])
