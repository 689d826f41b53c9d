"""Calendars: parsing definitions, naming each invalid field, and whether an instant is covered."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.core.calendars import Calendar, DateSpan, parse_calendar
from everbeat.core.errors import InvalidInput

BERLIN = ZoneInfo("Europe/Berlin")
DEFINITION: dict[str, Any] = {
    "description": "Days off",
    "dates": ["2026-05-14", {"from": "2026-12-24", "to": "2026-12-31"}],
    "weekdays": ["SAT", "SUN"],
    "yearly": ["01-01", "02-29"],
    "intervals": [
        {"from": "2026-11-18T14:00:00", "to": "2026-11-18T18:00:00"},
        {"from": "2026-11-19T14:00:00Z", "to": "2026-11-19T18:00:00Z"},
    ],
}


def local(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN)


def errors(definition: dict[str, Any], name: str = "c") -> dict[str, str]:
    with pytest.raises(InvalidInput) as caught:
        parse_calendar(name, definition, today=date(2026, 11, 16))
    return dict(caught.value.errors)


@pytest.mark.parametrize(
    ("moment", "is_covered"),
    [
        ("2026-05-14T00:00", True),
        ("2026-05-14T23:59:59.999999", True),
        ("2026-05-15T00:00", False),
        ("2026-05-13T23:59", False),
        ("2026-12-23T23:59", False),
        ("2026-12-24T00:00", True),
        ("2026-12-31T23:59", True),
        ("2026-11-14T12:00", True),
        ("2026-11-16T12:00", False),
        ("2030-01-01T12:00", True),
        ("2028-02-29T12:00", True),
        ("2026-11-18T13:59", False),
        ("2026-11-18T14:00", True),
        ("2026-11-18T17:59", True),
        ("2026-11-18T18:00", False),
        ("2026-11-19T14:59", False),
        ("2026-11-19T15:00", True),
        ("2026-11-19T18:59", True),
        ("2026-11-19T19:00", False),
    ],
)
def test_it_covers_instants_of_the_wall_clock(moment: str, is_covered: bool) -> None:
    assert parse_calendar("c", DEFINITION).covers(local(moment)) is is_covered


def test_an_empty_calendar_covers_nothing() -> None:
    assert not parse_calendar("c", {}).covers(local("2026-11-14T12:00"))


def test_a_definition_is_unchanged_after_a_round_trip() -> None:
    calendar = parse_calendar("c", DEFINITION, revision=7)
    assert calendar.revision == 7
    assert calendar.to_definition() == DEFINITION
    assert parse_calendar("c", calendar.to_definition(), revision=7) == calendar


def test_overlapping_dates_are_merged_and_sorted() -> None:
    dates = ["2027-01-03", {"from": "2027-01-01", "to": "2027-01-04"}, "2026-01-01", "2026-01-01"]
    assert parse_calendar("c", {"dates": dates}).dates == (
        DateSpan(date(2026, 1, 1), date(2026, 1, 1)),
        DateSpan(date(2027, 1, 1), date(2027, 1, 4)),
    )


def test_an_ics_file_becomes_dates_and_intervals() -> None:
    ics = (
        "BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART;VALUE=DATE:20261225\nDTEND;VALUE=DATE:20261227\nEND:VEVENT\n"
        "BEGIN:VEVENT\nDTSTART;TZID=Europe/Berlin:20261224T140000\nDURATION:PT4H\nEND:VEVENT\nEND:VCALENDAR"
    )
    calendar = parse_calendar("c", {"ics": ics, "dates": ["2027-01-01"]}, today=date(2026, 11, 16))
    assert calendar.covers(local("2026-12-26T12:00"))
    assert calendar.covers(local("2026-12-24T14:00"))
    assert not calendar.covers(local("2026-12-24T18:00"))
    assert calendar.to_definition()["dates"] == [{"from": "2026-12-25", "to": "2026-12-26"}, "2027-01-01"]
    assert calendar.to_definition()["intervals"] == [{"from": "2026-12-24T13:00:00Z", "to": "2026-12-24T17:00:00Z"}]
    assert "ics" not in calendar.to_definition()


def test_an_ics_file_needs_today() -> None:
    with pytest.raises(TypeError, match="today"):
        parse_calendar("c", {"ics": "BEGIN:VCALENDAR\nEND:VCALENDAR"})


def test_every_invalid_field_is_named() -> None:
    assert errors(
        {
            "description": 5,
            "dates": ["2026-12-25", "2026-02-30", "25.12.2026", {"from": "2026-12-31", "to": "2026-12-24"}, {"on": 1}],
            "weekdays": ["MON", "MONDAY"],
            "yearly": ["12-25", "02-30", 3],
            "intervals": [
                {"from": "2026-12-24T14:00", "to": "2026-12-24T14:00"},
                {"from": "2026-12-24T14:00", "to": "2026-12-24T15:00Z"},
                {"from": "2026-12-24", "to": "2026-12-25"},
            ],
            "color": "red",
        }
    ) == {
        "color": "is not a known field",
        "description": "must be text without control characters",
        "dates[1]": "2026-02-30 does not exist",
        "dates[2]": "must be a date such as 2026-12-25",
        "dates[3]": "`to` must not be before `from`",
        "dates[4]": "must be an object with `from` and `to`, or a date",
        "weekdays[1]": "must be one of MON, TUE, WED, THU, FRI, SAT, SUN",
        "yearly[1]": "02-30 does not exist in any year",
        "yearly[2]": "must be a month and day such as 12-25",
        "intervals[0]": "`to` must be after `from`",
        "intervals[1]": "`from` and `to` must both have an offset, or neither",
        "intervals[2]": "must be a date and time such as 2026-12-24T14:00",
    }


def test_sizes_and_shapes_are_limited() -> None:
    assert errors({"dates": ["2026-12-25"] * 10_001}) == {"dates": "must have at most 10000 entries"}
    assert errors({"dates": "2026-12-25"}) == {"dates": "must be a list"}
    assert errors({"ics": 5}) == {"ics": "must be text"}
    assert errors({"ics": "x"}) == {"ics": "is not an ICS file: it has no BEGIN:VCALENDAR"}
    assert errors({"description": "x" * 2001}) == {"description": "must be at most 2000 characters"}
    assert len(errors({"dates": ["x"] * 100})) == 20


@pytest.mark.parametrize("name", ["", "a b", "x" * 201, "a/b", "é", "a\n"])
def test_it_refuses_a_wrong_name(name: str) -> None:
    assert list(errors({}, name)) == ["name"]


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=12),
    st.lists(st.tuples(st.integers(0, 600), st.integers(1, 30)), max_size=12),
)
def test_it_covers_exactly_the_listed_times(spans: list[tuple[int, int]], hours: list[tuple[int, int]]) -> None:
    base = datetime.fromisoformat("2026-11-16T00:00")
    moments = [(base + timedelta(hours=at), base + timedelta(hours=at + length)) for at, length in hours]
    days = [(base + timedelta(days=at), base + timedelta(days=at + length)) for at, length in spans]
    calendar = parse_calendar(
        "c",
        {
            "dates": [{"from": f"{first:%Y-%m-%d}", "to": f"{last:%Y-%m-%d}"} for first, last in days],
            "intervals": [{"from": start.isoformat(), "to": end.isoformat()} for start, end in moments],
        },
    )
    for hour in range(0, 70 * 24, 7):
        at = base + timedelta(hours=hour)
        expected = any(first <= at < last + timedelta(days=1) for first, last in days)
        expected = expected or any(start <= at < end for start, end in moments)
        assert calendar.covers(at.replace(tzinfo=BERLIN)) is expected


def test_a_calendar_may_have_ten_thousand_days() -> None:
    first = date(2000, 1, 1)
    days = [(first + timedelta(days=2 * number)).isoformat() for number in range(10_000)]
    calendar = parse_calendar("c", {"dates": days})
    assert isinstance(calendar, Calendar)
    assert calendar.covers(local("2000-01-03T12:00"))
    assert not calendar.covers(local("2000-01-04T12:00"))
