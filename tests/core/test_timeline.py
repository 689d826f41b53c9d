"""Timelines: windows, calendars, DST gaps as skipped ticks, runs, and the cache of compiled rules."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.core.errors import InvalidInput
from everbeat.core.rules import DstFold, DstGap, Rule, TriggerKind
from everbeat.core.ticks import Occurrence, SkipReason
from everbeat.core.timeline import CalendarDays, TickRun, Timeline, TimelineCache, compile_rule

MOMENT = timedelta(microseconds=1)
DAY = timedelta(days=1)
GAP_END = datetime(2026, 3, 29, 1, tzinfo=UTC)


class Weekend:
    def covers(self, local: datetime) -> bool:
        return local.weekday() >= 5


class EveryDay:
    def covers(self, local: datetime) -> bool:
        return True


class Holidays:
    def __init__(self, *days: date) -> None:
        self.days = days

    def covers(self, local: datetime) -> bool:
        assert local.tzinfo is not None
        return local.date() in self.days


CALENDARS: dict[str, CalendarDays] = {
    "weekend": Weekend(),
    "everything": EveryDay(),
    "holidays": Holidays(date(2026, 1, 1), date(2026, 1, 6)),
}


def at(day: int, hour: int = 0, minute: int = 0, month: int = 1) -> datetime:
    return datetime(2026, month, day, hour, minute, tzinfo=UTC)


def cron(expression: str, timezone: str = "UTC", **more: object) -> Timeline:
    rule = Rule(kind=TriggerKind.CRON, expression=expression, timezone=timezone, **more)  # type: ignore[arg-type]
    return compile_rule(rule, None, CALENDARS)


def test_ticks_outside_the_window_never_exist() -> None:
    timeline = cron("0 * * * *", starts_at=at(2, 10), ends_at=at(2, 12))
    assert not timeline.has_skips
    assert timeline.next_tick(at(1)) == at(2, 10)
    assert timeline.next_tick(at(2, 10)) == at(2, 11)
    assert timeline.next_tick(at(2, 12)) is None
    assert timeline.last_until(at(2, 9)) is None
    assert timeline.last_until(at(2, 10)) == at(2, 10)
    assert timeline.last_until(at(9)) == at(2, 12)
    assert timeline.count_between(at(1), at(9)) == 3
    assert timeline.runs_between(at(1), at(9)) == [TickRun(at(2, 10), at(2, 12), 3, None)]
    assert timeline.runs_between(at(3), at(9)) == []
    assert [each.at for each in timeline.occurrences(at(1))] == [at(2, 10), at(2, 11), at(2, 12)]


def test_without_skips_a_year_is_one_run_whatever_the_limit() -> None:
    timeline = cron("* * * * * *", "Europe/Berlin")
    until = at(1) + 365 * DAY
    assert timeline.runs_between(at(1), until, limit=10) == [TickRun(at(1) + timedelta(seconds=1), until, 365 * 86400, None)]


def test_an_excluding_calendar_skips_its_ticks() -> None:
    timeline = cron("0 9 * * *", exclude=("weekend", "holidays"))
    assert timeline.has_skips
    assert timeline.next_tick(at(2, 9)) == at(5, 9)
    assert timeline.next_tick(at(5, 9)) == at(7, 9)
    assert timeline.count_between(at(1), at(8)) == 7
    assert timeline.last_until(at(4, 12)) == at(4, 9)
    assert timeline.runs_between(at(1), at(8)) == [
        TickRun(at(1, 9), at(1, 9), 1, SkipReason.CALENDAR),
        TickRun(at(2, 9), at(2, 9), 1, None),
        TickRun(at(3, 9), at(4, 9), 2, SkipReason.CALENDAR),
        TickRun(at(5, 9), at(5, 9), 1, None),
        TickRun(at(6, 9), at(6, 9), 1, SkipReason.CALENDAR),
        TickRun(at(7, 9), at(7, 9), 1, None),
    ]
    assert timeline.runs_between(at(1), at(8), limit=3)[-1] == TickRun(at(3, 9), at(3, 9), 1, SkipReason.CALENDAR)


def test_an_only_calendar_restricts_ticks_to_its_days() -> None:
    timeline = cron("0 9 * * *", only=("weekend", "holidays"), exclude=("holidays",))
    assert [timeline.next_tick(at(1)), timeline.next_tick(at(4, 9))] == [at(3, 9), at(10, 9)]


def test_calendars_use_the_wall_clock_of_the_zone() -> None:
    timeline = cron("0 8 * * *", "Asia/Tokyo", exclude=("holidays",))
    occurrences = list(islice(timeline.occurrences(at(1) - 2 * DAY), 3))
    assert occurrences[1] == Occurrence(at(1) - timedelta(hours=1), SkipReason.CALENDAR)
    prefixed = cron("CRON_TZ=Asia/Tokyo 0 8 * * *", exclude=("holidays",))
    assert list(islice(prefixed.occurrences(at(1) - 2 * DAY), 3)) == occurrences


def test_when_all_is_excluded_the_last_examined_tick_is_a_checkpoint() -> None:
    timeline = cron("* * * * *", exclude=("everything",))
    checkpoint = timeline.next_tick(at(1))
    assert checkpoint == at(1) + timedelta(minutes=10_000)
    assert timeline.runs_between(at(1), checkpoint) == [
        TickRun(at(1, 0, 1), checkpoint, 10_000, SkipReason.CALENDAR),
    ]
    ending = cron("0 9 * * *", exclude=("everything",), ends_at=at(4))
    assert ending.next_tick(at(1)) == at(3, 9)
    assert ending.next_tick(at(3, 9)) is None


def test_a_skipped_gap_is_a_tick_that_does_not_fire() -> None:
    timeline = cron("30 2 * * *", "Europe/Berlin", gap=DstGap.SKIP)
    assert timeline.has_skips
    before, following = at(28, 1, 30, month=3), at(30, 0, 30, month=3)
    assert timeline.next_tick(before) == following
    assert timeline.last_until(GAP_END) == GAP_END
    assert timeline.last_until(GAP_END - MOMENT) == before
    assert timeline.count_between(before, following) == 2
    assert timeline.runs_between(before - MOMENT, following) == [
        TickRun(before, before, 1, None),
        TickRun(GAP_END, GAP_END, 1, SkipReason.DST_GAP),
        TickRun(following, following, 1, None),
    ]
    assert list(timeline.occurrences(before, GAP_END)) == [Occurrence(GAP_END, SkipReason.DST_GAP)]
    assert cron("30 2 * * *", "Europe/Berlin", gap=DstGap.SKIP, starts_at=GAP_END + MOMENT).last_until(GAP_END) is None


def test_a_rule_without_possible_gaps_has_no_skips() -> None:
    assert not cron("30 2 * * *", "UTC", gap=DstGap.SKIP).has_skips
    assert not cron("30 * * * *", "Europe/Berlin", gap=DstGap.SKIP).has_skips
    assert not cron("30 2 * * *", "Europe/Berlin").has_skips


def test_occurrences_of_a_rule_that_ends_in_a_gap_end() -> None:
    text = "DTSTART:20260328T023000\nRRULE:FREQ=DAILY;COUNT=2"
    rule = Rule(kind=TriggerKind.RRULE, expression=text, timezone="Europe/Berlin", gap=DstGap.SKIP)
    timeline = compile_rule(rule, None, {})
    assert list(timeline.occurrences(at(1))) == [
        Occurrence(at(28, 1, 30, month=3), None),
        Occurrence(GAP_END, SkipReason.DST_GAP),
    ]


@settings(max_examples=60, deadline=None)
@given(
    expression=st.sampled_from(["30 2 * * *", "0 0 * * *", "*/30 * * * *", "0,30 0-4 * * SUN", "15 3 L * *"]),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/Santiago", "Australia/Lord_Howe", "Africa/Cairo"]),
    gap=st.sampled_from(DstGap),
    fold=st.sampled_from(DstFold),
    exclude=st.sampled_from([(), ("weekend",), ("holidays",)]),
    start=st.integers(0, 365 * 24),
    days=st.integers(0, 60),
)
def test_runs_counts_and_occurrences_agree(
    expression: str, zone: str, gap: DstGap, fold: DstFold, exclude: tuple[str, ...], start: int, days: int
) -> None:
    timeline = cron(expression, zone, gap=gap, fold=fold, exclude=exclude)
    after = at(1) + timedelta(hours=start)
    until = after + days * DAY
    occurrences = list(timeline.occurrences(after, until))
    assert all(first.at < second.at for first, second in pairwise(occurrences))
    assert timeline.count_between(after, until) == len(occurrences)
    runs = timeline.runs_between(after, until)
    assert sum(run.count for run in runs) == len(occurrences)
    assert [run.first for run in runs][:1] == [each.at for each in occurrences][:1]
    firing = [each.at for each in occurrences if each.skip is None]
    if firing:
        assert timeline.next_tick(after) == firing[0]
    if occurrences:
        assert timeline.last_until(until) == occurrences[-1].at


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (Rule(kind=TriggerKind.CRON, expression="* * * *"), "cron"),
        (Rule(kind=TriggerKind.EVERY, expression="0", anchor=at(1)), "every_seconds"),
        (Rule(kind=TriggerKind.EVERY, expression="60"), "every_seconds"),
        (Rule(kind=TriggerKind.RRULE, expression="FREQ=NEVER", anchor=at(1)), "rrule"),
        (Rule(kind=TriggerKind.RRULE, expression="FREQ=DAILY"), "rrule"),
        (Rule(kind=TriggerKind.AT, expression="soon"), "at"),
        (Rule(kind=TriggerKind.AT, expression="2026-01-01T00:00:00Z", timezone="CEST"), "timezone"),
        (Rule(kind=TriggerKind.CRON, expression="* * * * *", exclude=("nowhere",)), "calendars.exclude"),
        (Rule(kind=TriggerKind.CRON, expression="* * * * *", only=("nowhere",)), "calendars.only"),
        (Rule(kind=TriggerKind.CRON, expression="* * * * *", starts_at=at(2), ends_at=at(1)), "ends_at"),
    ],
)
def test_the_error_names_the_invalid_field(rule: Rule, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        compile_rule(rule, None, CALENDARS)
    assert [error.field for error in caught.value.errors] == [field]


def test_every_kind_compiles_and_ticks() -> None:
    for kind, expression in (
        (TriggerKind.EVERY, "3600"),
        (TriggerKind.RRULE, "FREQ=HOURLY"),
        (TriggerKind.AT, "2026-01-01T01:00:00Z"),
        (TriggerKind.CRON, "0 1 * * *"),
    ):
        timeline = compile_rule(Rule(kind=kind, expression=expression, anchor=at(1)), None, {})
        assert timeline.next_tick(at(1)) == at(1, 1)


FIRST, SECOND = UUID(int=1), UUID(int=2)


def test_the_cache_shares_a_timeline_between_schedules_unless_it_depends_on_the_id() -> None:
    cache = TimelineCache()
    plain = Rule(kind=TriggerKind.CRON, expression="0 * * * *")
    assert cache.get(plain, FIRST, {}) is cache.get(plain, SECOND, {})
    hashed = Rule(kind=TriggerKind.CRON, expression="H * * * *")
    assert cache.get(hashed, FIRST, {}) is cache.get(hashed, FIRST, {})
    assert cache.get(hashed, FIRST, {}) is not cache.get(hashed, SECOND, {})
    assert cache.get(hashed, FIRST, {}).next_tick(at(1)) != cache.get(hashed, SECOND, {}).next_tick(at(1))


def test_the_cache_detects_a_changed_calendar_and_is_bounded() -> None:
    cache = TimelineCache(size=2)
    rule = Rule(kind=TriggerKind.CRON, expression="0 9 * * *", exclude=("holidays",))
    old = cache.get(rule, FIRST, CALENDARS)
    assert cache.get(rule, FIRST, CALENDARS) is old
    changed = cache.get(rule, FIRST, {"holidays": Holidays(date(2026, 1, 2))})
    assert changed.next_tick(at(1)) == at(1, 9)
    assert old.next_tick(at(1)) == at(2, 9)
    with pytest.raises(InvalidInput):
        cache.get(rule, FIRST, {})
    cache.get(Rule(kind=TriggerKind.CRON, expression="0 8 * * *"), FIRST, {})
    assert cache.get(rule, FIRST, CALENDARS) is not old
    cache.clear()
