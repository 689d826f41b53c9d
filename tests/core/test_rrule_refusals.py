"""Refused recurrence rules: their error messages, and that they are refused in bounded time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from time import perf_counter, process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbeat.core.errors import InvalidInput
from everbeat.core.rules import DstFold, DstGap
from everbeat.core.triggers.rrule import parse_rrule
from everbeat.core.triggers.rrule_dates import RRuleTrigger

START = datetime(2026, 1, 31, 9, 30, 15, tzinfo=UTC)


def parse(expression: str, anchor: datetime = START) -> RRuleTrigger:
    return parse_rrule(expression, "Europe/Berlin", anchor, DstGap.AFTER, DstFold.FIRST)


def refusal(expression: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        parse(expression)
    (error,) = caught.value.errors
    assert error.field == "rrule"
    return error.message


def best_of_three(work: Callable[[], object], clock: Callable[[], float] = perf_counter) -> float:
    times = []
    for _ in range(3):
        started_at = clock()
        work()
        times.append(clock() - started_at)
    return min(times)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "has no rule; use a rule such as FREQ=WEEKLY"),
        ("DTSTART:20260101T000000", "has no rule"),
        ("FREQ=DAILY;" + "BYHOUR=1," * 500, "has 4511 characters; at most 4000"),
        ("FREQ=FORTNIGHTLY", "FREQ: is required; use one of YEARLY, MONTHLY"),
        ("INTERVAL=2", "FREQ: is required"),
        ("FREQ=DAILY;FREQ=WEEKLY", "FREQ: occurs twice"),
        ("FREQ=DAILY;BYHOUR=", "BYHOUR: has no value"),
        ("FREQ=DAILY;BYEASTER=0", '"BYEASTER" is not a part of a rule'),
        ("FREQ=DAILY;BYHOUR=24", "BYHOUR: 24 is out of range 0–23"),
        ("FREQ=DAILY;BYSECOND=60", "BYSECOND: 60 is out of range 0–59"),
        ("FREQ=DAILY;BYMONTHDAY=0", "BYMONTHDAY: 0 is out of range 1–31 or -31–-1"),
        ("FREQ=DAILY;BYHOUR=x", 'BYHOUR: "X" is not a number'),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL: 0 is out of range"),
        ("FREQ=DAILY;COUNT=10001", "COUNT: 10001 is out of range 1–10000"),
        ("FREQ=DAILY;COUNT=3;UNTIL=20270101", "COUNT and UNTIL cannot be used together"),
        ("FREQ=DAILY;UNTIL=tomorrow", 'UNTIL: "TOMORROW" is not a time'),
        ("FREQ=DAILY;UNTIL=20260230", "UNTIL: 20260230 does not exist"),
        ("FREQ=DAILY;UNTIL=20250101", "UNTIL: there is no tick between DTSTART and UNTIL"),
        ("FREQ=DAILY;BYDAY=XX", 'BYDAY: "XX" is not a day; use MO, TU'),
        ("FREQ=WEEKLY;BYDAY=1MO", "BYDAY: a number before a day needs FREQ=MONTHLY or YEARLY"),
        ("FREQ=MONTHLY;BYDAY=6MO", "BYDAY: a month has at most five of each day"),
        ("FREQ=DAILY;BYSETPOS=1", "BYSETPOS: needs another BY part"),
        ("FREQ=WEEKLY;WKST=9", 'WKST: "9" is not a day'),
        ("RRULE:FREQ=DAILY\nRRULE:FREQ=WEEKLY", "has more than one RRULE"),
        ("RRULE:FREQ=DAILY\nEXRULE:FREQ=WEEKLY", "EXRULE is not supported; use EXDATE, or a calendar to exclude days"),
        ("RRULE:FREQ=DAILY\nEXDATE:tomorrow", 'EXDATE: "tomorrow" is not a time'),
        ("RRULE:FREQ=DAILY\nEXDATE;TZID=CEST:20260101T000000", 'EXDATE: TZID: "CEST" is an abbreviation'),
        ("RRULE:FREQ=DAILY\nEXDATE;TZID=Asia/Tokyo:20260101T000000Z", "EXDATE: has both TZID and Z"),
        ("RRULE:FREQ=DAILY\nRDATE;VALUE=PERIOD:20260101T000000Z/PT1H", 'RDATE: "VALUE=PERIOD" is not supported'),
        ("RRULE:FREQ=DAILY\nRDATE;VALUE=DATE:20260101", "RDATE: needs a time of day"),
        ("RRULE:FREQ=DAILY;COUNT=1\nEXDATE;VALUE=DATE:20260131", "EXDATE: removes every tick"),
        ("RRULE:FREQ=DAILY\nEXDATE:" + ",".join(["20260101"] * 201), "has more than 200 dates in EXDATE and RDATE"),
        ("RDATE:20260101T000000", "has no rule"),
        ("SUMMARY:hello", '"SUMMARY" is not supported'),
        ("DTSTART;TZID=CEST:20260101T000000\nRRULE:FREQ=DAILY", 'TZID: "CEST" is an abbreviation'),
        ("DTSTART;TZID=Asia/Tokyo:20260101T000000Z\nRRULE:FREQ=DAILY", "DTSTART: has both TZID and Z"),
        ("DTSTART:00010101T000000\nRRULE:FREQ=DAILY", "DTSTART: the year must be 1900–9998"),
    ],
)
def test_the_error_names_the_part(expression: str, message: str) -> None:
    assert refusal(expression).startswith(message)


@pytest.mark.parametrize(
    "expression",
    [
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=DAILY;BYMONTH=2,4;BYMONTHDAY=31",
        "FREQ=SECONDLY;BYMONTH=4;BYMONTHDAY=31",
        "FREQ=YEARLY;BYWEEKNO=20;BYMONTH=1",
        "FREQ=MONTHLY;BYYEARDAY=366;BYMONTH=3",
        "FREQ=MONTHLY;BYDAY=MO;BYSETPOS=6",
        "FREQ=HOURLY;INTERVAL=24;BYHOUR=5",
        "FREQ=SECONDLY;INTERVAL=60;BYSECOND=3",
        "FREQ=MINUTELY;INTERVAL=1440;BYHOUR=1;BYMINUTE=1",
        "FREQ=MONTHLY;INTERVAL=12;BYMONTH=5",
        "DTSTART:20250101T000000\nRRULE:FREQ=YEARLY;INTERVAL=2;BYMONTH=2;BYMONTHDAY=29",
    ],
)
def test_a_rule_that_never_matches_is_refused_quickly(expression: str) -> None:
    assert "never" in refusal(expression)
    assert best_of_three(lambda: refusal(expression)) < 0.05


def test_a_rule_whose_phase_never_matches_its_filters_is_refused_in_utc_too() -> None:
    text = "FREQ=HOURLY;INTERVAL=7;BYHOUR=4;BYDAY=MO"

    def attempt() -> None:
        with pytest.raises(InvalidInput, match="never matches"):
            parse_rrule(text, "UTC", START, DstGap.AFTER, DstFold.FIRST)

    assert best_of_three(attempt) < 0.1


@pytest.mark.parametrize(
    "expression",
    [
        "FREQ=SECONDLY",
        "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=29;BYHOUR=3;BYMINUTE=1;BYSECOND=7",
        "FREQ=SECONDLY;INTERVAL=7;BYHOUR=3",
        "FREQ=MINUTELY;INTERVAL=7;BYDAY=MO",
        "FREQ=HOURLY;INTERVAL=5;BYHOUR=3;BYMONTHDAY=13;BYDAY=FR",
        "FREQ=MONTHLY;BYMONTH=2;BYDAY=5MO",
        "FREQ=DAILY",
    ],
)
def test_ticks_decades_after_dtstart_are_found_as_fast(expression: str) -> None:
    trigger = parse(expression, datetime(1901, 1, 1, tzinfo=UTC))
    moments = iter(START + timedelta(days=number) for number in range(3))
    assert best_of_three(lambda: trigger.next_after(next(moments))) < 0.05
    assert best_of_three(lambda: trigger.last_until(START)) < 0.05


@pytest.mark.parametrize(
    ("expression", "outcome"),
    [
        ("FREQ=DAILY;COUNT=10000", ""),
        ("FREQ=SECONDLY;COUNT=10000", ""),
        ("FREQ=MINUTELY;INTERVAL=1441;COUNT=10000", ""),
        ("FREQ=SECONDLY;INTERVAL=61;BYHOUR=10;BYMINUTE=4,16,40;COUNT=3000", ""),
        ("FREQ=DAILY;BYHOUR=1,2,3;BYMINUTE=1,2,3;BYSECOND=1,2,3;BYSETPOS=2,5;COUNT=10000", ""),
        ("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1;COUNT=1000", ""),
        ("FREQ=YEARLY;COUNT=400", ""),
        ("FREQ=YEARLY;COUNT=10000", "more than 400 years"),
        ("FREQ=DAILY;INTERVAL=86399;COUNT=9999", "more than 400 years"),
        ("FREQ=WEEKLY;BYDAY=MO,TU;BYSETPOS=-1;COUNT=10000", "more than 20 years"),
        ("FREQ=DAILY;BYMONTH=2;BYSETPOS=2;COUNT=9999", "never matches"),
        ("FREQ=SECONDLY;BYMONTH=2;BYDAY=MO;BYHOUR=3;BYMINUTE=5;BYSECOND=7;COUNT=10000", "more than 30 years"),
        ("FREQ=SECONDLY;BYMONTH=5;BYYEARDAY=1,366;BYMINUTE=20,44;COUNT=9999", "never matches"),
        ("FREQ=SECONDLY;INTERVAL=7;BYHOUR=0;BYMINUTE=0;BYSECOND=0;COUNT=10000", "too expensive"),
        ("FREQ=SECONDLY;INTERVAL=86399;BYHOUR=3;COUNT=9999", "too expensive"),
        ("FREQ=HOURLY;INTERVAL=1441;BYMONTH=1,4,6;BYMONTHDAY=28;BYHOUR=8;COUNT=9999", "too expensive"),
    ],
)
def test_the_last_tick_of_a_count_is_found_or_refused_within_milliseconds(expression: str, outcome: str) -> None:
    def attempt() -> None:
        message = ""
        try:
            parse(expression)
        except InvalidInput as invalid:
            message = invalid.errors[0].message
        assert outcome in message
        assert bool(outcome) == bool(message)

    assert best_of_three(attempt, process_time) < 0.02


@given(st.text(alphabet="FREQ=DAILY;BYHOURMNT0123456789,-+:\n\x00é", max_size=60))
def test_any_text_is_parsed_or_refused_with_a_reason(text: str) -> None:
    fields = []
    try:
        assert parse("FREQ=DAILY;" + text).next_after(START) is not None
    except InvalidInput as invalid:
        fields = [error.field for error in invalid.errors]
    assert fields in ([], ["rrule"])
