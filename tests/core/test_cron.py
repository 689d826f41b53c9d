"""Cron expressions: what they match, when they tick, and that each tick is found from both directions."""

from __future__ import annotations

import calendar
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from everbeat.core.errors import InvalidInput
from everbeat.core.rules import DstFold, DstGap
from everbeat.core.triggers.base import Trigger
from everbeat.core.triggers.cron import CronTrigger, effective_zone, parse_cron
from everbeat.core.triggers.cron_fields import read_fields, uses_hash

START = datetime(2026, 1, 1, tzinfo=UTC)
YEAR = timedelta(days=365)


def cron(
    expression: str,
    timezone: str = "UTC",
    gap: DstGap = DstGap.AFTER,
    fold: DstFold = DstFold.FIRST,
    seed: bytes | None = None,
) -> CronTrigger:
    return parse_cron(expression, timezone, gap, fold, seed)


def ticks(trigger: Trigger, after: datetime, limit: int) -> list[datetime]:
    found: list[datetime] = []
    cursor = after
    while len(found) < limit and (tick := trigger.next_after(cursor)) is not None:
        found.append(tick)
        cursor = tick
    return found


def texts(trigger: Trigger, after: datetime = START, limit: int = 3) -> list[str]:
    return [tick.strftime("%Y-%m-%d %H:%M:%S") for tick in ticks(trigger, after, limit)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 9 * * *", ["2026-01-01 09:00:00", "2026-01-02 09:00:00"]),
        ("15 0 9 * * *", ["2026-01-01 09:00:15", "2026-01-02 09:00:15"]),
        ("*/40 * * * *", ["2026-01-01 00:40:00", "2026-01-01 01:00:00"]),
        ("5/25 0 * * *", ["2026-01-01 00:05:00", "2026-01-01 00:30:00"]),
        ("0 0 * JAN,mar mon", ["2026-01-05 00:00:00", "2026-01-12 00:00:00"]),
        ("0 0 L * *", ["2026-01-31 00:00:00", "2026-02-28 00:00:00"]),
        ("0 0 LW * ?", ["2026-01-30 00:00:00", "2026-02-27 00:00:00"]),
        ("0 0 ? * MON#1", ["2026-01-05 00:00:00", "2026-02-02 00:00:00"]),
        ("0 0 * * FRIL", ["2026-01-30 00:00:00", "2026-02-27 00:00:00"]),
        ("0 0 * * 5L", ["2026-01-30 00:00:00", "2026-02-27 00:00:00"]),
        ("0 0 * * 7", ["2026-01-04 00:00:00", "2026-01-11 00:00:00"]),
        ("0 0 * * FRI-SUN", ["2026-01-02 00:00:00", "2026-01-03 00:00:00"]),
        ("0 0 13 * FRI", ["2026-01-02 00:00:00", "2026-01-09 00:00:00", "2026-01-13 00:00:00"]),
        ("0 0 13 * */5", ["2026-02-13 00:00:00", "2026-03-13 00:00:00", "2026-09-13 00:00:00"]),
        ("0 0 1-1/5 * *", ["2026-02-01 00:00:00", "2026-03-01 00:00:00"]),
        ("0 0 30,L 2 *", ["2026-02-28 00:00:00", "2027-02-28 00:00:00"]),
        ("0 */24 * * *", ["2026-01-02 00:00:00", "2026-01-03 00:00:00"]),
        ("0 22-2/2 * * *", ["2026-01-01 02:00:00", "2026-01-01 22:00:00", "2026-01-02 00:00:00"]),
        ("55-5/5 8 * * *", ["2026-01-01 08:00:00", "2026-01-01 08:05:00", "2026-01-01 08:55:00"]),
        ("0 0 * * FRI-MON", ["2026-01-02 00:00:00", "2026-01-03 00:00:00", "2026-01-04 00:00:00", "2026-01-05 00:00:00"]),
        ("0 0 * * Sunday,5-1/2", ["2026-01-02 00:00:00", "2026-01-04 00:00:00", "2026-01-09 00:00:00"]),
        ("0 0 * * 7-2", ["2026-01-04 00:00:00", "2026-01-05 00:00:00", "2026-01-06 00:00:00", "2026-01-11 00:00:00"]),
        ("0 0 1 NOV-MAR *", ["2026-02-01 00:00:00", "2026-03-01 00:00:00", "2026-11-01 00:00:00"]),
        ("0 0 30-2 * *", ["2026-01-02 00:00:00", "2026-01-30 00:00:00", "2026-01-31 00:00:00", "2026-02-01 00:00:00"]),
        ("0 0 1 January,march *", ["2026-03-01 00:00:00", "2027-01-01 00:00:00"]),
        ("0 0 ? * MONDAY#1,FridayL", ["2026-01-05 00:00:00", "2026-01-30 00:00:00"]),
        ("0 0 15W * *", ["2026-01-15 00:00:00", "2026-02-16 00:00:00", "2026-03-16 00:00:00", "2026-04-15 00:00:00"]),
        ("0 0 1W * *", ["2026-02-02 00:00:00", "2026-03-02 00:00:00"]),
        ("0 0 1w 8 *", ["2026-08-03 00:00:00", "2027-08-02 00:00:00"]),
        ("0 0 31W * *", ["2026-01-30 00:00:00", "2026-03-31 00:00:00", "2026-05-29 00:00:00"]),
        ("0 0 L-3 * *", ["2026-01-28 00:00:00", "2026-02-25 00:00:00"]),
        ("0 0 L-30,10 * *", ["2026-01-10 00:00:00", "2026-02-10 00:00:00", "2026-03-01 00:00:00"]),
        ("0 0 L-1W * *", ["2026-01-30 00:00:00", "2026-02-27 00:00:00"]),
        ("0 0 15W * SUN", ["2026-01-04 00:00:00", "2026-01-11 00:00:00", "2026-01-15 00:00:00"]),
        ("0 0 15W * */5", ["2026-05-15 00:00:00"]),
        ("0 0 0 1 1 ? 2028,2030", ["2028-01-01 00:00:00", "2030-01-01 00:00:00"]),
        ("30 0 12 ? * MON 2027/2", ["2027-01-04 12:00:30"]),
        ("0 0 0 29 2 ? *", ["2028-02-29 00:00:00"]),
        ("@hourly", ["2026-01-01 01:00:00", "2026-01-01 02:00:00"]),
        ("@daily", ["2026-01-02 00:00:00"]),
        ("@Midnight", ["2026-01-02 00:00:00"]),
        ("@weekly", ["2026-01-04 00:00:00"]),
        ("@monthly", ["2026-02-01 00:00:00"]),
        ("@yearly", ["2027-01-01 00:00:00"]),
        ("@annually", ["2027-01-01 00:00:00"]),
        ("CRON_TZ=America/New_York 0 9 * * *", ["2026-01-01 14:00:00"]),
        ("TZ=Asia/Tokyo @daily", ["2026-01-01 15:00:00"]),
    ],
)
def test_it_ticks_when_the_expression_matches(expression: str, expected: list[str]) -> None:
    assert texts(cron(expression), limit=len(expected)) == expected


def test_a_prefix_overrides_the_zone() -> None:
    assert effective_zone("CRON_TZ=Asia/Tokyo 0 9 * * *", "Europe/Berlin") == "Asia/Tokyo"
    assert effective_zone("0 9 * * *", "Europe/Berlin") == "Europe/Berlin"


def test_a_year_field_ends_the_ticks() -> None:
    trigger = cron("0 30 2 ? * SUN 2026-2027", "Europe/Berlin")
    found = ticks(trigger, datetime(2025, 6, 1, tzinfo=UTC), 1000)
    sundays = [START + timedelta(days=day) for day in range(2 * 365) if (START + timedelta(days=day)).weekday() == 6]
    assert [tick.date() for tick in found] == [sunday.date() for sunday in sundays]
    assert trigger.next_after(found[-1]) is None
    assert trigger.last_until(datetime(2050, 1, 1, tzinfo=UTC)) == found[-1]
    assert trigger.last_until(datetime(2026, 1, 1, tzinfo=UTC)) is None
    assert trigger.count_between(datetime(2000, 1, 1, tzinfo=UTC), datetime(2050, 1, 1, tzinfo=UTC)) == len(found)


def test_a_wildcard_in_the_hours_loses_no_ticks_in_a_gap_but_certain_hours_do() -> None:
    after, until = datetime(2027, 3, 28, tzinfo=UTC), datetime(2027, 3, 29, tzinfo=UTC)
    gap_end = datetime(2027, 3, 28, 1, tzinfo=UTC)
    for expression in ("*/30 2 * * *", "15 */2 * * *", "* * 2 * * *", "*/5 2-2 28 3 *"):
        for gap in DstGap:
            assert cron(expression, "Europe/Paris", gap).gaps_between(after, until) == [gap_end], expression
    # The first two have a tick at the end of the gap, which needs the row. The others tick in every hour.
    for expression in ("*/30 1-3 * * *", "*/30 2,3 * * *", "15 * * * *", "*/5 0-23 * * *", "15 */1 * * *"):
        assert cron(expression, "Europe/Paris").gaps_between(after, until) == [], expression


def test_a_leap_day_comes_every_four_years_but_not_in_2100() -> None:
    after = datetime(2094, 1, 1, tzinfo=UTC)
    assert texts(cron("0 0 29 2 *"), after) == ["2096-02-29 00:00:00", "2104-02-29 00:00:00", "2108-02-29 00:00:00"]


def test_a_leap_day_on_a_monday_comes_every_28_years_and_waits_40_across_2100() -> None:
    expected = [year for year in range(2026, 2200) if calendar.isleap(year) and calendar.weekday(year, 2, 29) == 0]
    found = ticks(cron("0 0 * 2 MON#5", "Europe/Berlin"), START, len(expected))
    assert [tick.astimezone(ZoneInfo("Europe/Berlin")).year for tick in found] == expected
    assert 40 in [second - first for first, second in pairwise(expected)]


def test_there_is_nothing_after_the_year_9999() -> None:
    for zone in ("UTC", "Europe/Berlin", "Pacific/Kiritimati", "Pacific/Pago_Pago"):
        for expression in ("0 0 1 1 *", "* * * * * *", "59 59 23 31 12 *"):
            trigger = cron(expression, zone)
            assert trigger.next_after(datetime.max.replace(tzinfo=UTC)) is None
            last = trigger.last_until(datetime.max.replace(tzinfo=UTC))
            assert last is not None
            assert last.year >= 9998
            assert trigger.next_after(last) is None


def test_there_is_nothing_before_the_year_1() -> None:
    first = datetime.min.replace(tzinfo=UTC)
    for zone in ("UTC", "Europe/Berlin", "Pacific/Kiritimati", "America/Los_Angeles"):
        assert cron("0 0 1 6 *", zone).last_until(first) is None
        assert cron("0 0 1 6 *", zone).count_between(first, first + YEAR) == 1


def test_a_gap_moves_a_tick_to_its_end_or_reports_it_skipped() -> None:
    after = datetime(2026, 3, 28, 12, tzinfo=UTC)
    until = datetime(2026, 3, 30, tzinfo=UTC)
    gap_end = datetime(2026, 3, 29, 1, tzinfo=UTC)
    moved = cron("30 2 * * *", "Europe/Berlin")
    assert moved.next_after(after) == gap_end
    assert moved.gaps_between(after, until) == []
    skipped = cron("30 2 * * *", "Europe/Berlin", DstGap.SKIP)
    assert skipped.next_after(after) == datetime(2026, 3, 30, 0, 30, tzinfo=UTC)
    assert skipped.gaps_between(after, until) == [gap_end]
    assert skipped.gaps_between(gap_end, until) == []
    assert cron("0,30 2,3 * * *", "Europe/Berlin", DstGap.SKIP).gaps_between(after, until) == []


def test_several_times_in_a_gap_make_one_tick() -> None:
    trigger = cron("0,15,30,45 2 * * *", "Europe/Berlin")
    low, high = datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 3, 29, 12, tzinfo=UTC)
    assert trigger.count_between(low, high) == 1
    assert cron("30 2,3 * * *", "Europe/Berlin").count_between(low, high) == 2
    assert cron("0,30 2,3 * * *", "Europe/Berlin").count_between(low, high) == 2


def test_a_fold_ticks_first_second_or_both() -> None:
    after = datetime(2026, 10, 24, 12, tzinfo=UTC)
    first, second = datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    expected = {DstFold.FIRST: [first], DstFold.SECOND: [second], DstFold.BOTH: [first, second]}
    for fold, instants in expected.items():
        trigger = cron("30 2 * * *", "Europe/Berlin", fold=fold)
        assert [tick for tick in ticks(trigger, after, 3) if tick.day == 25] == instants
        seconds_first = cron("0 30 2 * * *", "Europe/Berlin", fold=fold)
        assert [tick for tick in ticks(seconds_first, after, 3) if tick.day == 25] == instants


def test_a_wildcard_follows_real_time_whatever_the_policies() -> None:
    for fold in DstFold:
        for gap in DstGap:
            trigger = cron("*/30 * * * *", "Europe/Berlin", gap, fold)
            for start in (datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC)):
                assert trigger.count_between(start, start + timedelta(days=3)) == 3 * 48
                assert trigger.gaps_between(start, start + timedelta(days=3)) == []


SEED = UUID("0190a6f0-7c1e-7000-8000-00000000002a").bytes


@pytest.mark.parametrize(
    ("expression", "with_seed", "without"),
    [
        ("H H H H H", ("0", "51", "14", "24", "3", "0"), ("0", "17", "7", "8", "11", "3")),
        ("H H H * * *", ("30", "51", "14", "*", "*", "*"), ("22", "17", "7", "*", "*", "*")),
        ("H/15 H(9-17) * * *", ("0", "6,21,36,51", "17", "*", "*", "*"), ("0", "2,17,32,47", "13", "*", "*", "*")),
        ("H(0-29)/10 * * * *", ("0", "1,11,21", "*", "*", "*", "*"), ("0", "7,17,27", "*", "*", "*", "*")),
    ],
)
def test_the_values_of_h_never_change(expression: str, with_seed: tuple[str, ...], without: tuple[str, ...]) -> None:
    """These values must not change: existing schedules depend on them."""
    assert read_fields(expression, SEED) == (*with_seed, "*")
    assert read_fields(expression, b"") == (*without, "*")


def test_only_h_needs_the_seed() -> None:
    assert uses_hash("H * * * *")
    assert uses_hash("CRON_TZ=Asia/Tokyo 0 0,h(3-5) * * *")
    assert not uses_hash("0 0 * MAR THU")
    assert not uses_hash("@hourly")
    assert not uses_hash("CRON_TZ=Hongkong 0 0 * * *")


@given(seed=st.binary(min_size=16, max_size=16))
def test_h_stays_in_its_range(seed: bytes) -> None:
    for tick in ticks(cron("H H(9-17) H * *", seed=seed), START, 12):
        assert 9 <= tick.hour <= 17
        assert tick.day <= 28
    for tick in ticks(cron("H(0-29)/10 * * * *", seed=seed), START, 12):
        assert tick.minute < 30
    quarter_hours = {tick.minute for tick in ticks(cron("H/15 * * * *", seed=seed), START, 24)}
    assert len(quarter_hours) == 4
    assert len({minute % 15 for minute in quarter_hours}) == 1
    assert len(ticks(cron("0 0 * * H", seed=seed), START, 60)) == 60
    assert len({tick.weekday() for tick in ticks(cron("0 0 * * H", seed=seed), START, 60)}) == 1


def test_the_cached_tick_is_never_used_for_another_instant() -> None:
    shared = cron("30 2 * * *", "Europe/Berlin")
    moments = [START + timedelta(hours=7 * (number * 37 % 101)) for number in range(101)]
    for moment in moments:
        assert shared.next_after(moment) == cron("30 2 * * *", "Europe/Berlin").next_after(moment)
        assert shared.next_after(moment + timedelta(microseconds=1)) == shared.next_after(moment)


def test_an_instant_within_a_second_is_not_rounded_to_a_tick() -> None:
    trigger = cron("* * * * * *")
    half = START + timedelta(microseconds=500_000)
    assert trigger.next_after(half) == START + timedelta(seconds=1)
    assert trigger.last_until(half) == START
    assert trigger.count_between(half, half + timedelta(seconds=1)) == 1


FIELD = st.sampled_from(["*", "*/7", "0", "1,2,3", "2-3", "5/9", "H"])
DAYS = st.sampled_from(["*", "?", "L", "LW", "1-7", "29", "*/10", "13,31"])
MONTHS = st.sampled_from(["*", "FEB", "3,10", "*/5", "MAR-APR"])
WEEKDAYS = st.sampled_from(["*", "?", "SUN", "MON#5", "1-5", "FRIL", "*/3"])
ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/Santiago", "Africa/Cairo", "Australia/Lord_Howe", "Antarctica/Troll",
     "Africa/Casablanca", "Europe/Dublin", "Asia/Kathmandu", "Pacific/Chatham", "America/Nuuk", "Pacific/Apia"]
)  # fmt: skip
MOMENTS = st.integers(473_385_600, 3_786_912_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))


@settings(max_examples=250, deadline=None)
@given(
    fields=st.tuples(FIELD, FIELD, DAYS, MONTHS, WEEKDAYS),
    zone=ZONES,
    gap=st.sampled_from(DstGap),
    fold=st.sampled_from(DstFold),
    start=MOMENTS,
)
def test_ticks_increase_and_are_found_from_both_directions(
    fields: tuple[str, ...], zone: str, gap: DstGap, fold: DstFold, start: datetime
) -> None:
    try:
        trigger = cron(" ".join(fields), zone, gap, fold)
    except InvalidInput as invalid:
        never = "never" in invalid.errors[0].message
        assume(not never)
        raise
    found = ticks(trigger, start, 40)
    assert found
    assert found == sorted(set(found))
    assert found[0] > start
    assert trigger.count_between(start, found[-1]) == len(found)
    for before, tick in pairwise(found):
        assert trigger.last_until(tick - timedelta(microseconds=1)) == before
        assert trigger.last_until(tick) == tick
        assert trigger.next_after(tick - timedelta(microseconds=1)) == tick
    middle = found[len(found) // 2]
    assert trigger.count_between(start, middle) + trigger.count_between(middle, found[-1]) == len(found)
