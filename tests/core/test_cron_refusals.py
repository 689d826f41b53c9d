"""Refused cron expressions: their error messages, and how fast refusals and accepted expressions are."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbeat.core.errors import InvalidInput
from everbeat.core.rules import DstFold, DstGap
from everbeat.core.triggers.cron import CronTrigger, parse_cron

START = datetime(2026, 1, 1, tzinfo=UTC)


def parse(expression: str, timezone: str = "Europe/Berlin") -> CronTrigger:
    return parse_cron(expression, timezone, DstGap.AFTER, DstFold.FIRST, None)


def refusal(expression: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        parse(expression)
    (error,) = caught.value.errors
    assert error.field == "cron"
    return error.message


def best_of_three(work: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        started_at = perf_counter()
        work()
        times.append(perf_counter() - started_at)
    return min(times)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("75 * * * *", "minute: 75 is out of range 0–59"),
        ("60 59 23 * * *", "second: 60 is out of range 0–59"),
        ("0 24 * * *", "hour: 24 is out of range 0–23"),
        ("0 0 0 * *", "day-of-month: 0 is out of range 1–31"),
        ("0 0 * 13 *", "month: 13 is out of range 1–12"),
        ("0 0 * * 8", "day-of-week: 8 is out of range 0–7"),
        ("0 0 * * MUN", 'day-of-week: "MUN" is not a day; use SUN–SAT or 0–7'),
        ("0 0 * JANU *", 'month: "JANU" is not a month; use JAN–DEC or 1–12'),
        ("x * * * *", 'minute: "X" is not a number; use 0–59, *, a range such as 1-5, or a step such as */5'),
        ("-5 * * * *", 'minute: "-5" is negative; use 0–59, *, a range such as 1-5, or a step such as */5'),
        ("0 0 * * -MON", 'day-of-week: "-MON" is a range without a start; use SUN–SAT or 0–7'),
        ("0 9- * * *", 'hour: "9-" is a range without an end; use 0–23, *, a range such as 1-5, or a step such as */5'),
        ("٣ * * * *", 'minute: "٣" is not a number; use 0–59, *, a range such as 1-5, or a step such as */5'),
        (
            "0 0 0 1 1 ? 2030-2027",
            "year: the range 2030-2027 is reversed; put the smaller value first, or use two ranges in a list",
        ),
        ("0 0 0 1 1 ? 1969", "year: 1969 is out of range 1970–2999"),
        ("0 0 0 1 1 ? H", "year: H is not available here; use years such as 2027, 2027-2030 or *"),
        (
            "0 0 0 29 2 ? 2027,2029",
            "day-of-month: 29 does not exist in FEB of 2027,2029; use an earlier day, or L for the last day",
        ),
        ("0 0 1 1 2027", "day-of-week: 2027 is out of range 0–7; a year needs all 7 fields, with seconds first"),
        ("*/0 * * * *", "minute: the step must not be 0; use 1 or more"),
        ("*/x * * * *", 'minute: "X" is not a step; use a number of 1 or more after the slash'),
        ("1,,2 * * * *", "minute: the list has an empty entry; remove the extra comma"),
        ("? * * * *", "minute: ? is allowed only in day-of-month and day-of-week; use *"),
        ("0 0 L-31 * *", 'day-of-month: "L-31": the number after L- must be 0–30'),
        ("0 0 32W * *", "day-of-month: 32 is out of range 1–31"),
        (
            "0 0 1-15W * *",
            'day-of-month: "15W" must be alone in the list; use for example 15W, LW, L or L-3, without ranges or steps',
        ),
        ("0 0 * * L", "day-of-week: L needs a day before it, such as FRIL for the last Friday of the month"),
        ("0 0 * * MON#6", 'day-of-week: "MON#6": the number after # must be 1–5 (first to fifth of the month)'),
        ("H(5-70) * * * *", "minute: 70 is out of range 0–59"),
        ("0 0 H(1-31) * *", "day-of-month: H(1-31) is out of range 1–28"),
        ("H(7) * * * *", "minute: H(7) needs a range, such as H(0-59)"),
        ("HX * * * *", 'minute: "HX" is not valid; use H, H/15, H(0-29) or H(0-29)/10'),
        (
            "0 9 * *",
            'expected 5 fields, got 4: minute "0", hour "9", day-of-month "*", month "*"; day-of-week is missing',
        ),
        ("5", 'expected 5 fields, got 1: minute "5"; hour and day-of-month and month and day-of-week are missing'),
        (
            "* * * * * * * *",
            "expected 5 to 7 fields, got 8: 5 are minute hour day-of-month month day-of-week; "
            "6 begin with the second; 7 end with the year",
        ),
        ("* " * 200, "has 400 characters; at most 256 are allowed"),
        (
            f"{','.join(map(str, range(60)))},{','.join(map(str, range(60)))} * * * *",
            "minute: the list has 120 entries; use a range or a step, because an expression has 347 characters; "
            "at most 256 are allowed",
        ),
    ],
)
def test_the_error_names_the_field_and_the_fix(expression: str, message: str) -> None:
    assert refusal(expression) == message


def test_the_error_explains_missing_and_unknown_parts() -> None:
    assert refusal("  ").startswith("is empty; it needs 5 fields")
    assert refusal("@reboot").startswith("@reboot is not a known nickname; use one of @hourly, @daily")
    assert "@every 1h30m" in refusal("@every5m")
    assert refusal("CRON_TZ=CEST 0 0 * * *").startswith('CRON_TZ: "CEST" is an abbreviation')
    assert refusal("CRON_TZ= 0 0 * * *").startswith("CRON_TZ: a time zone is required")


def test_an_unknown_zone_is_an_error_of_the_timezone() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse("0 0 * * *", "Mars/Olympus")
    assert caught.value.errors[0].field == "timezone"


@pytest.mark.parametrize(
    "expression", ["0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6 *", "0 0 30 2 ?", "* * * 30,31 2 *", "0 0 */31 * MON#2"]
)
def test_an_expression_that_never_matches_is_refused_quickly(expression: str) -> None:
    assert refusal(expression).startswith("day-of-month: ")
    assert best_of_three(lambda: refusal(expression)) < 0.05


@pytest.mark.parametrize("expression", ["0 0 30 2 MON", "0 0 29 2 *", "0 0 * 2 MON#5", "0 0 29 2 */7", "0 0 30,L 2 *"])
def test_an_expression_that_rarely_matches_is_accepted_and_fast(expression: str) -> None:
    trigger = parse(expression)
    assert trigger.next_after(START) is not None
    assert best_of_three(lambda: parse(expression).next_after(START)) < 0.05


@given(st.text(alphabet="0123456789*/,-#?LWH()@ MONJAFEB\x00é", max_size=40))
def test_any_text_is_parsed_or_refused_with_a_reason(text: str) -> None:
    fields = []
    try:
        assert parse(text).next_after(START) is not None
    except InvalidInput as invalid:
        fields = [error.field for error in invalid.errors]
    assert fields in ([], ["cron"])


def test_a_year_of_seconds_is_counted_without_iterating() -> None:
    trigger = parse("* * * * * *")
    assert trigger.count_between(START, START + timedelta(days=365)) == 365 * 86400
    assert best_of_three(lambda: trigger.count_between(START, START + timedelta(days=365))) < 0.05


@pytest.mark.parametrize("expression", ["0 9 * * *", "0 * * * *", "* * * * *", "*/5 9-17 * * MON-FRI", "0 0 L * *"])
def test_the_next_tick_takes_microseconds(expression: str) -> None:
    trigger = parse(expression)

    def walk() -> None:
        cursor: datetime | None = START
        for _ in range(200):
            assert cursor is not None
            cursor = trigger.next_after(cursor)

    assert best_of_three(walk) / 200 < 500e-6
