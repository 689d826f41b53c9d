"""Quiet times: hours of the week in a time zone, and maintenance windows."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbeat.core.quiet_times import MaintenanceWindow, QuietHours, QuietTimes, is_quiet, parse_clock, quiet_errors


def local(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


NIGHTS = QuietTimes(timezone="Europe/Berlin", hours=[QuietHours(from_="22:00", to="07:00", days=["FRI", "SAT"])])


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("2026-03-06T21:59:59+01:00", False),
        ("2026-03-06T22:00:00+01:00", True),
        ("2026-03-07T06:59:59+01:00", True),
        ("2026-03-07T07:00:00+01:00", False),
        ("2026-03-07T23:00:00+01:00", True),
        ("2026-03-08T06:00:00+01:00", True),
        ("2026-03-08T23:00:00+01:00", False),
        ("2026-03-06T06:00:00+01:00", False),
        ("2026-07-03T22:30:00+02:00", True),
        ("2026-03-06T21:30:00+00:00", True),
    ],
)
def test_hours_over_midnight_belong_to_the_day_on_which_they_begin(at: str, expected: bool) -> None:
    assert is_quiet(NIGHTS, local(at)) is expected


def test_hours_in_a_day_and_a_whole_day() -> None:
    lunch = QuietTimes(hours=[QuietHours(from_="12:00", to="13:00")])
    assert [is_quiet(lunch, local(f"2026-03-06T{at}+00:00")) for at in ("11:59:59", "12:00:00", "13:00:00")] == [
        *(False, True),
        False,
    ]
    sundays = QuietTimes(hours=[QuietHours(from_="00:00", to="00:00", days=["SUN"])])
    times = ("2026-03-07T23:59:59", "2026-03-08T00:00:00", "2026-03-08T23:59:59", "2026-03-09T00:00:00")
    assert [is_quiet(sundays, local(f"{at}+00:00")) for at in times] == [False, True, True, False]


def test_maintenance_windows_are_instants() -> None:
    window = MaintenanceWindow(from_=local("2026-03-06T10:00:00+00:00"), to=local("2026-03-06T11:00:00+00:00"))
    quiet = QuietTimes(maintenance=[window])
    assert [is_quiet(quiet, at) for at in (window.from_, window.to)] == [True, False]
    assert not is_quiet(None, window.from_)
    assert quiet_errors(quiet) == []


@given(st.times())
def test_every_time_of_day_can_be_written(at: object) -> None:
    text = str(at)[:8]
    found = parse_clock(text)
    assert found is not None
    assert found.isoformat() == text


@pytest.mark.parametrize("text", ["", "4:00", "24:00", "12:60", "12:00:60", "12:00 ", "١٢:٠٠", "12.00", "noon"])
def test_other_texts_are_not_times_of_day(text: str) -> None:
    assert parse_clock(text) is None
