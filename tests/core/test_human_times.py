"""Times as people write them, and how they are understood."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from everbeat.core.errors import InvalidInput
from everbeat.core.human_times import parse_time

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 19, 13, 30, tzinfo=UTC)  # a Thursday; 14:30 in Berlin


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", "2026-11-19T13:30:00Z"),
        ("2h ago", "2026-11-19T11:30:00Z"),
        ("1h30m ago", "2026-11-19T12:00:00Z"),
        ("in 10 minutes", "2026-11-19T13:40:00Z"),
        ("in 1 day and 2 hours", "2026-11-20T15:30:00Z"),
        ("an hour ago", "2026-11-19T12:30:00Z"),
        ("-15m", "2026-11-19T13:15:00Z"),
        ("+2w", "2026-12-03T13:30:00Z"),
        ("yesterday 02:00", "2026-11-18T01:00:00Z"),
        ("Yesterday at 2:05:07", "2026-11-18T01:05:07Z"),
        ("tomorrow", "2026-11-19T23:00:00Z"),
        ("today noon", "2026-11-19T11:00:00Z"),
        ("09:15", "2026-11-19T08:15:00Z"),
        ("last monday 09:00", "2026-11-16T08:00:00Z"),
        ("last thursday", "2026-11-11T23:00:00Z"),
        ("next thu", "2026-11-25T23:00:00Z"),
        ("2026-07-01", "2026-06-30T22:00:00Z"),
        ("2026-07-01 02:00", "2026-07-01T00:00:00Z"),
        ("2026-07-01T02:00", "2026-07-01T00:00:00Z"),
        ("2026-07-01T02:00:00Z", "2026-07-01T02:00:00Z"),
        ("2026-07-01T02:00:00-05:00", "2026-07-01T07:00:00Z"),
    ],
)
def test_a_time_is_understood_in_the_zone(text: str, expected: str) -> None:
    assert parse_time(text, NOW, BERLIN).at == datetime.fromisoformat(expected)


@pytest.mark.parametrize("text", ["", "soon", "monday", "25:00", "3 moons ago", "in", "2h", "yesterday 24:00", "in 9999 weeks"])
def test_a_time_that_is_not_understood_names_the_forms(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"not understood|not a duration|longer than"):
        parse_time(text, NOW, BERLIN)


def test_a_local_time_that_the_clocks_skip_is_refused_and_a_repeated_one_is_the_first() -> None:
    with pytest.raises(InvalidInput, match="does not exist in Europe/Berlin"):
        parse_time("2026-03-29 02:30", NOW, BERLIN)
    found = parse_time("2026-10-25 02:30", NOW, BERLIN)
    assert found.at == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert str(found) == (
        '"2026-10-25 02:30" is 2026-10-25 02:30:00+02:00 in Europe/Berlin '
        "(2026-10-25T00:30:00.000000Z; the first of the two times with this name)"
    )
