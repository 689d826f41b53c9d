"""Recurrence rules, compared with dateutil in UTC and with cron for gaps and folds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest
from dateutil.rrule import rrulestr
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from everbeat.core.errors import InvalidInput
from everbeat.core.rules import DstFold, DstGap
from everbeat.core.triggers.cron import parse_cron
from everbeat.core.triggers.rrule import effective_zone, parse_rrule
from everbeat.core.triggers.rrule_dates import RRuleTrigger

ANCHOR = datetime(2026, 1, 31, 9, 30, 15, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)


def rule(
    expression: str,
    timezone: str = "UTC",
    anchor: datetime = ANCHOR,
    gap: DstGap = DstGap.AFTER,
    fold: DstFold = DstFold.FIRST,
) -> RRuleTrigger:
    return parse_rrule(expression, timezone, anchor, gap, fold)


def ticks(trigger: RRuleTrigger, after: datetime, limit: int) -> list[datetime]:
    found: list[datetime] = []
    cursor = after
    while len(found) < limit and (tick := trigger.next_after(cursor)) is not None:
        found.append(tick)
        cursor = tick
    return found


def texts(trigger: RRuleTrigger, limit: int = 3, after: datetime = ANCHOR - MOMENT) -> list[str]:
    return [tick.strftime("%m-%d %H:%M:%S") for tick in ticks(trigger, after, limit)]


def optional_part(name: str, *values: str) -> st.SearchStrategy[str]:
    return st.sampled_from(["", "", "", *(f";{name}={value}" for value in values)])


TIMES = st.tuples(
    optional_part("BYHOUR", "3", "0,9,21"), optional_part("BYMINUTE", "0", "5,30"), optional_part("BYSECOND", "0", "15,59")
)
SLOW_RULES = st.tuples(
    st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY"]).map("FREQ={}".format),
    optional_part("INTERVAL", "2", "3", "5", "18"),
    optional_part("BYMONTH", "2", "1,6,12"),
    optional_part("BYMONTHDAY", "29", "1,15,-1", "31"),
    optional_part("BYDAY", "MO", "TU,SA,SU", "WE"),
    optional_part("WKST", "SU", "WE"),
    TIMES.map("".join),
).map("".join)
NTH_RULES = st.tuples(
    st.sampled_from(["FREQ=MONTHLY", "FREQ=YEARLY", "FREQ=YEARLY;BYMONTH=3,11", "FREQ=MONTHLY;INTERVAL=5"]),
    st.sampled_from([";BYDAY=1MO,-1FR", ";BYDAY=5SU", ";BYDAY=-2TH", ";BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
                     ";BYDAY=SA,SU;BYHOUR=6,18;BYSETPOS=1,-2", ";BYMONTHDAY=1,-1;BYSETPOS=2"]),
    optional_part("BYHOUR", "3", "0,9,21"),
).map("".join)  # fmt: skip
OTHER_RULES = st.sampled_from(
    ["FREQ=YEARLY;BYWEEKNO=1,20", "FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO", "FREQ=YEARLY;BYYEARDAY=1,100,-1",
     "FREQ=YEARLY;INTERVAL=3;BYYEARDAY=366", "FREQ=DAILY;BYHOUR=1,2,3;BYSETPOS=2", "FREQ=YEARLY;BYWEEKNO=-1;WKST=SU"]
)  # fmt: skip
FAST_RULES = st.tuples(
    st.sampled_from(["HOURLY", "MINUTELY", "SECONDLY"]).map("FREQ={}".format),
    optional_part("INTERVAL", "2", "5", "7", "24", "90", "1000"),
    optional_part("BYDAY", "MO", "TU,SA,SU"),
    TIMES.map("".join),
).map("".join)
STARTS = st.integers(1_600_000_000, 1_900_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))


def assert_agrees(text: str, start: datetime, limit: int) -> None:
    try:
        trigger = rule(text, anchor=start)
    except InvalidInput:
        assume(False)
    found = ticks(trigger, start - MOMENT, limit)
    oracle = rrulestr(text, dtstart=start.replace(tzinfo=None))
    assert found == [each.replace(tzinfo=UTC) for each in islice(oracle, len(found))]
    assert len(found) == limit or found[-1].year > 9000  # the last year is 9999
    assert trigger.count_between(start - MOMENT, found[-1]) == len(found)
    for before, tick in pairwise(found):
        assert trigger.last_until(tick - MOMENT) == before
        assert trigger.last_until(tick) == tick


@settings(max_examples=150, deadline=None)
@given(text=SLOW_RULES | NTH_RULES | OTHER_RULES, start=STARTS)
@example(text="FREQ=YEARLY", start=datetime(2028, 2, 29, 12, tzinfo=UTC))
@example(text="FREQ=MONTHLY", start=datetime(2026, 1, 31, tzinfo=UTC))
def test_rules_of_days_agree_with_dateutil(text: str, start: datetime) -> None:
    assert_agrees(text, start, 12)


@settings(max_examples=80, deadline=None)
@given(text=FAST_RULES, start=STARTS)
def test_rules_of_hours_minutes_and_seconds_agree_with_dateutil(text: str, start: datetime) -> None:
    assert_agrees(text, start, 12)


@pytest.mark.parametrize("text", ["FREQ=HOURLY;INTERVAL=7", "FREQ=WEEKLY;INTERVAL=3;BYDAY=TU", "FREQ=MONTHLY;INTERVAL=7"])
def test_the_phase_is_the_same_decades_after_dtstart(text: str) -> None:
    start = datetime(1991, 5, 3, 7, 8, 9, tzinfo=UTC)
    later = datetime(2025, 5, 1, tzinfo=UTC)
    expected = rrulestr(text, dtstart=start.replace(tzinfo=None)).after(later.replace(tzinfo=None))
    assert expected is not None
    assert rule(text, anchor=start).next_after(later) == expected.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "timezone", "expected"),
    [
        ("RRULE:FREQ=DAILY;COUNT=2", "UTC", ["01-31 09:30:15", "02-01 09:30:15"]),
        ("freq=weekly;byday=mo", "UTC", ["02-02 09:30:15", "02-09 09:30:15", "02-16 09:30:15"]),
        (
            "DTSTART:20260301T060000Z\nRRULE:FREQ=DAILY",
            "Asia/Tokyo",
            ["03-01 06:00:00", "03-02 06:00:00", "03-03 06:00:00"],
        ),
        ("DTSTART:20260301T060000\nRRULE:FREQ=DAILY;COUNT=1", "Asia/Tokyo", ["02-28 21:00:00"]),
        ("DTSTART;TZID=America/New_York:20260301T060000\r\nRRULE:FREQ=DAILY;COUNT=1", "Asia/Tokyo", ["03-01 11:00:00"]),
        ("DTSTART;VALUE=DATE:20260301\nFREQ=YEARLY;COUNT=2", "UTC", ["03-01 00:00:00", "03-01 00:00:00"]),
        ("FREQ=DAILY;UNTIL=20260202", "Asia/Tokyo", ["01-31 09:30:15", "02-01 09:30:15", "02-02 09:30:15"]),
        ("FREQ=DAILY;UNTIL=20260201T093015Z", "Asia/Tokyo", ["01-31 09:30:15", "02-01 09:30:15"]),
        ("FREQ=DAILY;UNTIL=20260201T093014Z", "UTC", ["01-31 09:30:15"]),
        ("FREQ=HOURLY;UNTIL=20260131T113015Z", "UTC", ["01-31 09:30:15", "01-31 10:30:15", "01-31 11:30:15"]),
        ("FREQ=MONTHLY;BYDAY=1MO,FR;COUNT=3", "UTC", ["02-02 09:30:15", "02-06 09:30:15", "02-13 09:30:15"]),
        ("FREQ=HOURLY;INTERVAL=2;BYHOUR=9,11;COUNT=3", "UTC", ["01-31 09:30:15", "01-31 11:30:15", "02-01 09:30:15"]),
    ],
)
def test_it_ticks_when_the_rule_matches(text: str, timezone: str, expected: list[str]) -> None:
    trigger = rule(text, timezone)
    early = datetime(2026, 1, 1, tzinfo=UTC)
    assert texts(trigger, limit=3, after=early) == expected
    assert trigger.last_until(early) is None
    if len(expected) < 3:
        end = datetime(2090, 1, 1, tzinfo=UTC)
        assert trigger.count_between(early, end) == len(expected)
        last = trigger.last_until(end)
        assert last is not None
        assert trigger.next_after(last) is None


def test_week_numbers_are_those_of_iso_8601() -> None:
    for number in (1, 2, 52, 53, -1):
        trigger = rule(f"FREQ=YEARLY;BYWEEKNO={number};BYDAY=MO,TU,WE,TH,FR,SA,SU", anchor=datetime(1990, 1, 1, tzinfo=UTC))
        days = [
            datetime(2000, 1, 1, tzinfo=UTC) + timedelta(days=day)
            for day in range(28 * 365)
            if day % 365 < 8 or day % 365 > 350
        ]
        for day in days:
            year, week, _ = day.isocalendar()
            weeks = datetime(year, 12, 28).isocalendar().week  # noqa: DTZ001
            assert (trigger.last_until(day + MOMENT) == day) == (week == number or week - weeks - 1 == number), day


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=DAILY;COUNT=700",
        "FREQ=MONTHLY;BYDAY=MO,TU;BYSETPOS=-1,1;BYHOUR=2,4;COUNT=333",
        "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,SU;BYSETPOS=-1;COUNT=99",
        "FREQ=HOURLY;INTERVAL=7;COUNT=1000",
        "FREQ=MINUTELY;INTERVAL=90;BYHOUR=3,12;BYDAY=MO;COUNT=50",
        "FREQ=SECONDLY;INTERVAL=7;BYMINUTE=0;COUNT=2000",
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_a_rule_with_count_ends_after_that_many_ticks(text: str, zone: str) -> None:
    ended, endless = rule(text, zone), rule(text.rpartition(";")[0], zone)
    found = ticks(ended, ANCHOR - timedelta(days=1), 20_000)
    count = int(text.rpartition("=")[2])
    assert found == ticks(endless, ANCHOR - timedelta(days=1), count)
    assert ended.count_between(ANCHOR - timedelta(days=1), found[-1] + timedelta(days=3660)) == count


DATES = st.lists(st.integers(0, 40 * 24).map(lambda hours: ANCHOR + timedelta(hours=hours)), max_size=6)


@settings(max_examples=80, deadline=None)
@given(
    text=st.sampled_from(["FREQ=DAILY;COUNT=30", "FREQ=DAILY;BYHOUR=9,15;BYMINUTE=30;BYSECOND=15", "FREQ=HOURLY;INTERVAL=6",
                          "FREQ=WEEKLY;BYDAY=MO,TU,FR;UNTIL=20260301T000000Z", "FREQ=MINUTELY;INTERVAL=60;BYHOUR=9,15"]),
    excluded=DATES, added=DATES, is_utc=st.booleans(),
)  # fmt: skip
def test_dates_that_are_added_and_excluded_agree_with_dateutil(
    text: str, excluded: list[datetime], added: list[datetime], is_utc: bool
) -> None:
    lines = [f"RRULE:{text}"]
    for name, dates in (("EXDATE", excluded), ("RDATE", added)):
        lines += [f"{name}:{','.join(date.strftime('%Y%m%dT%H%M%S') + 'Z' * is_utc for date in dates)}"] * bool(dates)
    try:
        trigger = rule("\n".join(lines))
    except InvalidInput:
        assume(False)
    oracle = rrulestr("\n".join(lines).replace("Z", ""), dtstart=ANCHOR.replace(tzinfo=None), forceset=True)
    expected = [each.replace(tzinfo=UTC) for each in islice(oracle, 40)]
    found = ticks(trigger, ANCHOR - MOMENT, len(expected))
    assert found == expected
    for before, tick in pairwise(found):
        assert trigger.last_until(tick - MOMENT) == before
        assert trigger.count_between(before, tick) == 1
    assert trigger.count_between(ANCHOR - MOMENT, expected[-1]) == len(expected)


def test_dates_may_be_local_in_utc_in_another_zone_or_whole_days_on_several_lines() -> None:
    trigger = rule(
        """DTSTART;TZID=Europe/Berlin:20260201T090000
        RRULE:FREQ=DAILY;BYHOUR=9,18;COUNT=12
        EXDATE;TZID=Europe/Berlin:20260201T090000,20260201T180000
        EXDATE:20260202T080000Z
        EXDATE;TZID=Asia/Tokyo:20260203T020000
        EXDATE;VALUE=DATE:20260203
        EXDATE:20260204T090000
        RDATE:20260203T120000,20260204T120000
        RDATE:20260207T113000Z
        """
    )
    expected = ["02-04 11:00:00", "02-04 17:00:00", "02-05 08:00:00", "02-05 17:00:00", "02-06 08:00:00", "02-06 17:00:00",
                "02-07 11:30:00"]  # fmt: skip
    assert texts(trigger, 20, datetime(2026, 1, 1, tzinfo=UTC)) == expected


def test_a_folded_line_continues_after_the_line_break() -> None:
    trigger = rule("RRULE:FREQ=DAILY;BYHO\r\n UR=9;BYMINUTE=0;BYSE\n COND=0\nEXDATE:20260201T0900\n 00Z")
    assert texts(trigger, 2) == ["02-02 09:00:00", "02-03 09:00:00"]


def test_a_time_in_a_gap_follows_the_policy_also_if_it_is_added_or_excluded() -> None:
    daily = "DTSTART:20270326T023000\nRRULE:FREQ=DAILY"
    after = datetime(2027, 3, 27, 12, tzinfo=UTC)
    for gap, expected in ((DstGap.SHIFT, "03-28 01:30:00"), (DstGap.AFTER, "03-28 01:00:00"), (DstGap.SKIP, "03-29 00:30:00")):
        assert texts(rule(daily, "Europe/Paris", gap=gap), 1, after) == [expected]
        added = "DTSTART:20270101T120000\nRRULE:FREQ=YEARLY\nRDATE:20270328T023000,20270329T023000"
        assert texts(rule(added, "Europe/Paris", gap=gap), 1, after) == [expected]
        for excluded in ("20270328T023000", "20270328T013000Z") if gap is DstGap.SHIFT else ("20270328T023000",):
            assert texts(rule(f"{daily}\nEXDATE:{excluded}", "Europe/Paris", gap=gap), 1, after) == ["03-29 00:30:00"]


def test_a_week_across_two_years_is_one_set() -> None:
    trigger = rule("FREQ=WEEKLY;BYDAY=MO,WE,FR;BYSETPOS=1,-1;BYHOUR=6,18")
    after = datetime(2026, 12, 27, tzinfo=UTC)
    assert texts(trigger, 4, after) == ["12-28 06:30:15", "01-01 18:30:15", "01-04 06:30:15", "01-08 18:30:15"]


def test_a_tzid_overrides_the_zone() -> None:
    text = "DTSTART;TZID=America/New_York:20260301T060000\nRRULE:FREQ=DAILY"
    assert effective_zone(text, "Asia/Tokyo") == "America/New_York"
    assert effective_zone("FREQ=DAILY", "Asia/Tokyo") == "Asia/Tokyo"


@pytest.mark.parametrize("gap", DstGap)
@pytest.mark.parametrize("fold", DstFold)
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Santiago", "Australia/Lord_Howe", "Antarctica/Troll"])
def test_daily_rules_handle_gaps_and_folds_like_cron(zone: str, gap: DstGap, fold: DstFold) -> None:
    start, end = datetime(2024, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    text = "FREQ=DAILY;BYHOUR=0,1,2;BYMINUTE=0,30;BYSECOND=0"
    trigger = rule(text, zone, start - timedelta(days=2), gap, fold)
    cron = parse_cron("0,30 0-2 * * *", zone, gap, fold, None)
    found = ticks(trigger, start, 7000)
    cursor = start
    for tick in found:
        assert cron.next_after(cursor) == tick
        cursor = tick
    assert trigger.count_between(start, end) == cron.count_between(start, end)
    assert trigger.gaps_between(start, end) == cron.gaps_between(start, end)


def test_hours_count_elapsed_time_through_gap_and_fold() -> None:
    for start in (datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC)):
        found = ticks(rule("FREQ=HOURLY;INTERVAL=2", "Europe/Berlin", start), start - MOMENT, 30)
        assert found == [start + timedelta(hours=2 * number) for number in range(30)]
        filtered = ticks(rule("FREQ=MINUTELY;INTERVAL=30;BYHOUR=2", "Europe/Berlin", start), start, 8)
        assert len(filtered) == 8
        assert filtered == sorted(set(filtered))
    fold = [tick for tick in filtered if tick.day == 25]
    assert [(tick.hour, tick.minute) for tick in fold] == [(0, 0), (0, 30), (1, 0), (1, 30)]


def test_a_leap_day_comes_every_four_years_but_not_in_2100() -> None:
    trigger = rule("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29", "Europe/Berlin")
    assert [tick.year for tick in ticks(trigger, datetime(2094, 1, 1, tzinfo=UTC), 3)] == [2096, 2104, 2108]


def test_there_is_nothing_after_the_year_9999() -> None:
    end = datetime.max.replace(tzinfo=UTC)
    for text in ("FREQ=DAILY", "FREQ=SECONDLY", "FREQ=YEARLY;INTERVAL=7", "FREQ=HOURLY;INTERVAL=100000"):
        for zone in ("UTC", "Europe/Berlin", "Pacific/Kiritimati"):
            trigger = rule(text, zone)
            assert trigger.next_after(end) is None
            last = trigger.last_until(end)
            assert last is not None
            assert trigger.next_after(last) is None
