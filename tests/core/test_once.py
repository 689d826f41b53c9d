"""A single instant: which texts are accepted, and that it ticks once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from everbeat.core.errors import InvalidInput
from everbeat.core.triggers.once import parse_at

AT = datetime(2026, 12, 24, 17, 0, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("expression", "at"),
    [
        ("2026-12-24T17:00:00Z", AT),
        ("2026-12-24t17:00:00z", AT),
        ("2026-12-24 18:00:00+01:00", AT),
        ("2026-12-24T17:00:00-00:00", AT),
        ("2026-12-24T17:00:00.000001Z", AT + MOMENT),
        ("2026-12-24T17:00:00.5Z", AT + timedelta(milliseconds=500)),
        ("2028-02-29T00:00:00Z", datetime(2028, 2, 29, tzinfo=UTC)),
    ],
)
def test_it_ticks_once_at_that_instant(expression: str, at: datetime) -> None:
    trigger = parse_at(expression)
    assert trigger.next_after(at - MOMENT) == at
    assert trigger.next_after(at) is None
    assert trigger.last_until(at) == at
    assert trigger.last_until(at - MOMENT) is None
    assert trigger.count_between(at - MOMENT, at) == 1
    assert trigger.count_between(at, at + MOMENT) == 0
    assert trigger.gaps_between(at - MOMENT, at) == []


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("2026-12-24T17:00:00", "needs an offset from UTC"),
        ("2026-12-24", "must be a date and time with an offset"),
        ("tomorrow", "must be a date and time with an offset"),
        ("", "must be a date and time with an offset"),
        ("٢026-12-24T17:00:00Z", "must be a date and time with an offset"),
        ("2026-12-24T17:00:00Z" + " " * 60, "must be a date and time with an offset"),
        ("2026-02-29T17:00:00Z", "has a date, time or offset that does not exist"),
        ("2026-12-24T25:00:00Z", "has a date, time or offset that does not exist"),
        ("2026-12-24T17:00:00+25:00", "has a date, time or offset that does not exist"),
        ("0001-01-01T00:00:00+14:00", "has a date, time or offset that does not exist"),
        ("2026-12-31T23:59:60Z", "is a leap second (:60), which is not supported"),
        ("2026-12-24T17:00:00.1234567Z", "has more than six decimals"),
    ],
)
def test_the_error_explains_why_an_instant_is_refused(expression: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_at(expression)
    (error,) = caught.value.errors
    assert error.field == "at"
    assert error.message.startswith(message)
