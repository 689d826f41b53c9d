"""Intervals of seconds: computed from an anchor, exact to the microsecond."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbeat.core.errors import InvalidInput
from everbeat.core.triggers.interval import IntervalTrigger, parse_every

ANCHOR = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)


def test_the_anchor_is_the_first_tick() -> None:
    trigger = parse_every("90", ANCHOR)
    assert trigger.next_after(ANCHOR - timedelta(days=400)) == ANCHOR
    assert trigger.next_after(ANCHOR) == ANCHOR + timedelta(seconds=90)
    assert trigger.last_until(ANCHOR - MOMENT) is None
    assert trigger.last_until(ANCHOR) == ANCHOR
    assert trigger.count_between(ANCHOR - MOMENT, ANCHOR) == 1
    assert trigger.count_between(ANCHOR, ANCHOR) == 0
    assert trigger.gaps_between(ANCHOR, ANCHOR + timedelta(days=9)) == []


def test_fractions_do_not_drift() -> None:
    trigger = parse_every("1.000001", ANCHOR)
    million = ANCHOR + timedelta(seconds=1_000_001)
    assert trigger.last_until(million) == million
    assert trigger.count_between(ANCHOR, million) == 1_000_000


@given(
    micros=st.integers(1_000_000, 10**12),
    offset=st.integers(-(10**13), 10**15),
    span=st.integers(0, 10**13),
)
def test_both_directions_agree_and_counts_add_up(micros: int, offset: int, span: int) -> None:
    trigger = IntervalTrigger(Decimal(micros) / 1_000_000, ANCHOR)
    at = ANCHOR + timedelta(microseconds=offset)
    tick = trigger.next_after(at)
    assert tick is not None
    assert tick > at
    assert (tick - ANCHOR) // MOMENT % micros == 0
    assert trigger.last_until(tick) == tick
    before = trigger.last_until(tick - MOMENT)
    assert before is None if tick == ANCHOR else before == tick - timedelta(microseconds=micros)
    until = at + timedelta(microseconds=span)
    middle = at + timedelta(microseconds=span // 3)
    parts = trigger.count_between(at, middle) + trigger.count_between(middle, until)
    assert trigger.count_between(at, until) == parts
    assert (tick <= until) == (parts > 0)


def test_there_is_nothing_after_the_year_9999() -> None:
    trigger = parse_every("315360000", ANCHOR)
    end = datetime.max.replace(tzinfo=UTC)
    last = trigger.last_until(end)
    assert last is not None
    assert trigger.next_after(last) is None
    assert trigger.next_after(end) is None
    assert trigger.count_between(ANCHOR, end) == (last - ANCHOR) // timedelta(days=3650)


def test_a_float_is_rounded_to_microseconds() -> None:
    assert IntervalTrigger(1.1, ANCHOR).next_after(ANCHOR) == ANCHOR + timedelta(microseconds=1_100_000)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "must be a number of seconds"),
        ("soon", "must be a number of seconds"),
        ("nan", "must be a number of seconds"),
        ("-5", "must be a number of seconds"),
        ("1e9", "must be a number of seconds"),
        ("9" * 50, "must be a number of seconds"),
        ("0", "must be between 1 and 315360000"),
        ("0.999999", "must be between 1 and 315360000"),
        ("315360000.1", "must be between 1 and 315360000"),
        ("1.0000001", "has more than six decimals"),
    ],
)
def test_the_error_explains_why_a_number_is_refused(expression: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_every(expression, ANCHOR)
    (error,) = caught.value.errors
    assert error.field == "every_seconds"
    assert error.message.startswith(message)
