"""ICS import: conversion of events, expansion of rules, and limits on the work that a file can cause."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime, timedelta
from itertools import islice

import pytest
from dateutil.rrule import rrulestr
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from everbeat.core.errors import InvalidInput
from everbeat.core.ics import ImportedIcs, import_ics

TODAY = date(2026, 11, 16)


def ics(*events: str, prefix: str = "") -> str:
    bodies = [f"BEGIN:VEVENT\nUID:{number}\n{event}\nEND:VEVENT" for number, event in enumerate(events)]
    return "\n".join(["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//test", prefix, *bodies, "END:VCALENDAR", ""])


def imported(*events: str) -> ImportedIcs:
    return import_ics(ics(*events), TODAY)


def refusal(text: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        import_ics(text, TODAY)
    (error,) = caught.value.errors
    assert error.field == "ics"
    return error.message


def test_an_all_day_event_ends_before_its_dtend() -> None:
    one = imported("DTSTART;VALUE=DATE:20261225")
    assert one.days == [(date(2026, 12, 25), date(2026, 12, 25))]
    three = imported("DTSTART;VALUE=DATE:20261224\nDTEND;VALUE=DATE:20261227")
    assert three.days == [(date(2026, 12, 24), date(2026, 12, 26))]


def test_a_timed_event_becomes_hours_in_utc_or_local_time() -> None:
    zoned = imported("DTSTART;TZID=Europe/Berlin:20261224T140000\nDTEND;TZID=Europe/Berlin:20261224T180000")
    assert zoned.hours == [(datetime(2026, 12, 24, 13, tzinfo=UTC), datetime(2026, 12, 24, 17, tzinfo=UTC))]
    floating = imported("DTSTART:20261224T140000\nDURATION:PT4H")
    assert floating.hours == [(datetime(2026, 12, 24, 14), datetime(2026, 12, 24, 18))]  # noqa: DTZ001


def test_crlf_and_folded_lines_are_read_and_other_components_skipped() -> None:
    text = ics(
        "DTSTART;VALUE=DATE:2026\n 1225\nSUMMARY:long\n  text\nBEGIN:VALARM\nDTSTART:nonsense\nEND:VALARM",
        prefix="BEGIN:VTODO\nDTSTART:nonsense\nEND:VTODO",
    )
    assert import_ics("\ufeff" + text.replace("\n", "\r\n"), TODAY).days == [(date(2026, 12, 25), date(2026, 12, 25))]


def test_a_recurring_event_is_expanded_from_one_year_ago_to_ten_years_ahead() -> None:
    days = imported("DTSTART;VALUE=DATE:20001225\nRRULE:FREQ=YEARLY").days
    assert [first.year for first, _ in days] == list(range(2025, 2036))
    assert {(first.month, first.day) for first, _ in days} == {(12, 25)}


def test_excluded_replaced_and_cancelled_occurrences_are_omitted() -> None:
    weekly = "DTSTART;TZID=Europe/Berlin:20261201T090000\nDURATION:PT1H\nRRULE:FREQ=WEEKLY;COUNT=4"
    text = ics(
        f"{weekly}\nEXDATE:20261208T080000Z",
        "DTSTART;VALUE=DATE:20270101\nSTATUS:CANCELLED",
    ).replace(
        "END:VCALENDAR",
        "BEGIN:VEVENT\nUID:0\nRECURRENCE-ID;TZID=Europe/Berlin:20261215T090000\nDTSTART:20261216T080000Z\n"
        "DURATION:PT1H\nEND:VEVENT\nEND:VCALENDAR",
    )
    assert import_ics(text, TODAY).days == []
    assert sorted(start.day for start, _ in import_ics(text, TODAY).hours) == [1, 16, 22]


def test_additional_dates_are_imported() -> None:
    days = imported("DTSTART;VALUE=DATE:20261225\nRDATE;VALUE=DATE:20261231,20270106").days
    assert [first for first, _ in days] == [date(2026, 12, 25), date(2026, 12, 31), date(2027, 1, 6)]


def test_until_is_compared_in_the_zone_of_the_event() -> None:
    hours = imported(
        "DTSTART;TZID=America/New_York:20270104T220000\nDURATION:PT1H\nRRULE:FREQ=DAILY;UNTIL=20270107T030000Z"
    ).hours
    assert [start for start, _ in hours] == [datetime(2027, 1, day, 3, tzinfo=UTC) for day in (5, 6, 7)]


@pytest.mark.parametrize("until", ["99991231T235959Z", "99991231"])
def test_until_in_the_year_9999_means_no_end(until: str) -> None:
    rule = f"DTSTART;TZID=Europe/Berlin:20261201T090000\nDURATION:PT1H\nRRULE:FREQ=YEARLY;UNTIL={until}"
    assert len(imported(rule).hours) == 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not an ICS file: it has no BEGIN:VCALENDAR"),
        ("hello", "is not an ICS file: it has no BEGIN:VCALENDAR"),
        ("BEGIN:VCALENDAR\nBEGIN:VEVENT\n", "has BEGIN:VEVENT without END"),
        ("BEGIN:VCALENDAR\nEND:VEVENT\nEND:VCALENDAR", "has END:VEVENT without BEGIN"),
        (ics("SUMMARY:x"), "event 1: has no DTSTART"),
        (ics("DTSTART:20261225T0900"), "event 1: DTSTART: "),
        (ics("DTSTART:20261399"), "event 1: DTSTART: "),
        (ics("DTSTART;TZID=Mars/Olympus:20261225T090000"), "event 1: has an unknown time zone: Mars/Olympus"),
        (ics("DTSTART:20261225T090000\nDTEND:20261225T080000"), "event 1: ends before it starts"),
        (ics("DTSTART:20261225T090000\nDTEND;VALUE=DATE:20261226"), "event 1: DTSTART and DTEND must both be"),
        (ics("DTSTART;VALUE=DATE:00011225"), "event 1: has an invalid date, or one that is not between 1900 and 2200"),
        (ics("DTSTART;VALUE=DATE:20261225\nRRULE:FREQ=MINUTELY"), "event 1: RRULE: FREQ must be one of DAILY, "),
        (ics("DTSTART;VALUE=DATE:20261225\nRRULE:FREQ=DAILY;BYHOUR=1"), "event 1: RRULE: BYHOUR is not supported"),
        (ics("DTSTART;VALUE=DATE:20261225\nRRULE:FREQ=DAILY;INTERVAL=0"), "event 1: RRULE: INTERVAL must be at least"),
        (ics("DTSTART;VALUE=DATE:20261225\nRRULE:FREQ=DAILY;UNTIL=00010101T000000Z"), "event 1: RRULE: UNTIL must be"),
        (ics("DTSTART;VALUE=DATE:20261225\nRRULE:INTERVAL=2"), "event 1: RRULE: FREQ must be one of"),
    ],
)
def test_a_malformed_file_is_refused_and_the_error_names_the_event(text: str, message: str) -> None:
    assert refusal(text).startswith(message)


def test_a_file_above_the_size_limit_is_refused() -> None:
    assert refusal("BEGIN:VCALENDAR\n" + "x" * 1024 * 1024) == "must be at most 1048576 bytes"


def test_without_icalendar_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "icalendar", None)
    assert refusal(ics("DTSTART;VALUE=DATE:20261225")).endswith("pip install 'everbeat[ics]'")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=DAILY;INTERVAL=999999999",
        "FREQ=DAILY;COUNT=999999999;BYMONTH=13",
        "FREQ=MONTHLY;BYSETPOS=300",
    ],
)
def test_rules_without_matches_end_quickly(rule: str) -> None:
    assert imported(*[f"DTSTART;VALUE=DATE:20261116\nRRULE:{rule}"] * 20).days in ([], [(TODAY, TODAY)] * 20)


@pytest.mark.timeout(60)
def test_many_infinite_rules_are_refused_in_bounded_time() -> None:
    rule = "DTSTART;VALUE=DATE:19000101\nRRULE:FREQ=DAILY;COUNT=99999999;BYMONTH=13"
    assert refusal(ics(*[rule] * 9000)) == "has recurring events that take too long to expand; list the dates instead"
    assert refusal(ics(*["DTSTART;VALUE=DATE:20260101\nRRULE:FREQ=DAILY"] * 5)) == (
        "contains more than 10000 days and hours in the imported period"
    )


def test_an_event_with_too_many_lines_is_refused() -> None:
    text = ics("DTSTART;VALUE=DATE:20261225\n" + "\n".join(["UID:"] * 1001))
    assert refusal(text) == "must have at most 1000 lines of dates and rules per event"


def test_time_zone_definitions_in_the_file_are_ignored() -> None:
    zone = (
        "BEGIN:VTIMEZONE\nTZID:Infinite\nBEGIN:STANDARD\nDTSTART:19000101T000000\nTZOFFSETFROM:+0000\nTZOFFSETTO:+0100\n"
        "RRULE:FREQ=SECONDLY\nEND:STANDARD\nEND:VTIMEZONE"
    )
    text = ics("DTSTART;TZID=Infinite:20261225T090000\nDURATION:PT1H", prefix=zone)
    assert refusal(text) == "event 1: has an unknown time zone: Infinite"


def parts(frequency: str) -> st.SearchStrategy[str]:
    weekdays = st.sampled_from(["MO", "TU", "WE", "TH", "FR", "SA", "SU"])
    numbered = st.tuples(st.sampled_from(["1", "2", "-1", "-2", "4"]), weekdays).map("".join)
    several = st.lists(weekdays, min_size=1, max_size=3).map(",".join)
    # Never both forms in one rule: dateutil requires both to match, the RFC either.
    several_numbered = st.lists(numbered, min_size=1, max_size=3).map(",".join)
    options = {
        "INTERVAL": st.integers(1, 5),
        "BYMONTH": st.integers(1, 12),
        "BYMONTHDAY": st.sampled_from([1, 5, 15, 28, 31, -1, -3]),
        "BYDAY": several | several_numbered if frequency in ("MONTHLY", "YEARLY") else several,
        "COUNT": st.integers(1, 40),
        "WKST": weekdays,
    }
    if frequency in ("MONTHLY", "YEARLY"):
        options["BYSETPOS"] = st.sampled_from([1, 2, -1])
    if frequency == "YEARLY":
        options["BYYEARDAY"] = st.sampled_from([1, 60, 100, -1, -60])
    return st.fixed_dictionaries({}, optional=options).map(
        lambda chosen: ";".join([f"FREQ={frequency}", *(f"{key}={value}" for key, value in chosen.items())])
    )


@settings(max_examples=100, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    st.sampled_from(["DAILY", "WEEKLY", "MONTHLY", "YEARLY"]).flatmap(parts),
    st.dates(date(2024, 1, 1), date(2027, 12, 31)),
)
def test_rules_expand_as_with_dateutil(rule: str, first: date) -> None:
    # dateutil does not terminate for rules without matches, and requires another BY part with BYSETPOS.
    assume("BYMONTHDAY=31" not in rule or "BYMONTH=" not in rule)
    assume("BYYEARDAY" not in rule or "BYMONTH" not in rule)
    assume("BYSETPOS" not in rule or rule.count("BY") > 1)
    assume("INTERVAL" not in rule or "DAILY" not in rule)
    start = datetime(first.year, first.month, first.day)  # noqa: DTZ001
    until = TODAY + timedelta(days=3660)
    expected = []
    for moment in islice(rrulestr(rule, dtstart=start), 5000):
        if moment.date() > until:
            break
        if moment.date() >= TODAY - timedelta(days=366):
            expected.append(moment.date())
    days = [first for first, _ in imported(f"DTSTART;VALUE=DATE:{start:%Y%m%d}\nRRULE:{rule}").days]
    assert days == expected


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(["BEGIN:VEVENT", "END:VEVENT", "DTSTART;VALUE=DATE:20261225", "RRULE:FREQ=DAILY;COUNT=3"]),
            st.sampled_from(["DTEND", "DTSTART;", "DTSTART;VALUE=PERIOD:x", "EXDATE:,", "DURATION:-P1D", "RRULE:="]),
            st.tuples(st.sampled_from(["DTSTART:", "RRULE:", "EXDATE;TZID=", "RDATE;VALUE=", "UID:"]), st.text()).map("".join),
        ),
        max_size=12,
    )
)
def test_any_text_is_either_imported_or_refused_with_an_error_of_the_field_ics(lines: list[str]) -> None:
    fields = []
    try:
        import_ics("\n".join(["BEGIN:VCALENDAR", "BEGIN:VEVENT", *lines, "END:VEVENT", "END:VCALENDAR"]), TODAY)
    except InvalidInput as error:
        fields = [each.field for each in error.errors]
    assert fields in ([], ["ics"])
