"""Time zone names: accepted names, refused names with a suggestion, and the instants at which offsets change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbeat.core.errors import InvalidInput
from everbeat.core.zones import ABBREVIATIONS, Transition, load_zone, transitions

HOUR = timedelta(hours=1)


def refusal(name: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        load_zone(name)
    (error,) = caught.value.errors
    assert error.field == "timezone"
    return error.message


@pytest.mark.parametrize(
    "name", ["UTC", "Etc/UTC", "Etc/GMT+5", "GMT", "America/New_York", "Asia/Calcutta", "US/Eastern", "Europe/Kyiv"]
)
def test_it_loads_iana_names(name: str) -> None:
    assert load_zone(name).key == name


def test_it_loads_a_zone_once() -> None:
    assert load_zone("Europe/Berlin") is load_zone("Europe/Berlin")


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("EST", "America/New_York"),
        ("pdt", "America/Los_Angeles"),
        ("CST", "America/Chicago or Asia/Shanghai"),
        ("IST", "Asia/Kolkata, Europe/Dublin or Asia/Jerusalem"),
        ("EST5EDT", "America/New_York"),
        ("CET", "Europe/Berlin or Europe/Paris"),
    ],
)
def test_it_refuses_an_abbreviation_and_names_the_zone(name: str, use: str) -> None:
    assert refusal(name) == f'"{name}" is an abbreviation, not a time zone; use an IANA name such as {use}'


def test_every_suggestion_for_an_abbreviation_is_a_zone() -> None:
    for names in ABBREVIATIONS.values():
        for name in names:
            load_zone(name)


@pytest.mark.parametrize("name", ["EST", "MST", "HST", "EST5EDT", "CST6CDT", "PST8PDT", "MST7MDT", "CET", "MET", "EET", "WET"])
def test_it_refuses_the_abbreviations_that_the_tz_database_ships(name: str) -> None:
    assert "is an abbreviation" in refusal(name)


@pytest.mark.parametrize(("name", "fixed"), [("+02:00", "Etc/GMT-2"), ("UTC-5", "Etc/GMT+5"), ("GMT+2", "Etc/GMT-2")])
def test_it_refuses_an_offset_and_explains_the_reversed_sign(name: str, fixed: str) -> None:
    assert refusal(name) == (
        f'"{name}" is an offset, not a time zone; use an IANA name such as Europe/Berlin, '
        f"or {fixed} for this fixed offset (the sign is reversed there)"
    )


def test_it_names_no_fixed_zone_for_an_offset_that_has_none() -> None:
    assert refusal("+05:30") == '"+05:30" is an offset, not a time zone; use an IANA name such as Europe/Berlin'
    assert refusal("+00:00") == '"+00:00" is an offset, not a time zone; use UTC'


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("america/new_york", "America/New_York"),
        ("utc", "UTC"),
        ("New York", "America/New_York"),
        ("berlin", "Europe/Berlin"),
        ("Calcutta", "Asia/Calcutta"),
        ("Europe/Berln", "Europe/Berlin"),
        ("Amercia/Chicago", "America/Chicago"),
    ],
)
def test_it_suggests_the_most_similar_name(name: str, meant: str) -> None:
    assert refusal(name) == f'unknown time zone "{name}"; did you mean {meant}?'


@pytest.mark.parametrize(
    "name",
    [
        *["../etc/passwd", "/etc/passwd", "Europe/../UTC", "UTC\0", "C:\\zone", "\n", " UTC"],
        *["posixrules", "localtime", "Factory", "right/UTC", "posix/UTC"],
        *["Europe", "Europe/", "ZoneInfo", "Eurоpe/Berlin"],
    ],
)
def test_it_refuses_invalid_names(name: str) -> None:
    refusal(name)


def test_it_refuses_an_empty_and_an_overlong_name() -> None:
    assert refusal("") == "a time zone is required; use an IANA name such as Europe/Berlin"
    assert refusal("x" * 65) == "a time zone name must have at most 64 characters"


@given(st.text(max_size=70))
def test_any_text_either_loads_or_is_refused(name: str) -> None:
    fields = []
    try:
        assert load_zone(name).key == name
    except InvalidInput as error:
        fields = [each.field for each in error.errors]
    assert fields in ([], ["timezone"])


def test_it_finds_both_transitions_of_a_year_to_the_second() -> None:
    new_york = load_zone("America/New_York")
    found = transitions(new_york, datetime(2027, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC))
    assert found == [
        Transition(datetime(2027, 3, 14, 7, tzinfo=UTC), -5 * HOUR, -4 * HOUR),
        Transition(datetime(2027, 11, 7, 6, tzinfo=UTC), -4 * HOUR, -5 * HOUR),
    ]


def test_the_start_is_excluded_and_the_end_included() -> None:
    berlin = load_zone("Europe/Berlin")
    at = datetime(2027, 3, 28, 1, tzinfo=UTC)
    second = timedelta(seconds=1)
    assert transitions(berlin, at, at + HOUR) == []
    assert transitions(berlin, at - second, at - timedelta(microseconds=1)) == []
    assert [found.at for found in transitions(berlin, at - second, at)] == [at]


def test_it_finds_half_hour_transitions_skipped_days_and_short_periods() -> None:
    lord_howe = transitions(load_zone("Australia/Lord_Howe"), *year(2027))
    assert [found.after - found.before for found in lord_howe] == [-HOUR / 2, HOUR / 2]
    apia = transitions(load_zone("Pacific/Apia"), datetime(2011, 12, 1, tzinfo=UTC), datetime(2012, 1, 1, tzinfo=UTC))
    assert [found.after - found.before for found in apia] == [24 * HOUR]
    assert len(transitions(load_zone("Africa/Casablanca"), *year(2025))) == 2
    assert len(transitions(load_zone("America/Recife"), *year(2000))) == 3


def test_a_change_of_only_the_dst_flag_is_not_a_transition() -> None:
    # Winter time in Ireland is "negative" DST, and Lisbon changed zones in 1992 without a change of its offset that day.
    assert [found.before != found.after for found in transitions(load_zone("Europe/Dublin"), *year(2027))] == [True] * 2
    lisbon = transitions(load_zone("Europe/Lisbon"), *year(1992))
    assert all(found.before != found.after for found in lisbon)


def test_fixed_zones_have_no_transitions_over_any_span() -> None:
    assert transitions(load_zone("UTC"), datetime(1970, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)) == []


@given(
    st.sampled_from(sorted(name for name in available_timezones() if "/" in name and not name.startswith("Etc/"))),
    st.integers(0, 65 * 365 * 86400),
)
def test_between_two_transitions_the_offset_never_changes(name: str, seconds: int) -> None:
    zone = ZoneInfo(name)
    at = datetime(1995, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    around = transitions(zone, at - timedelta(days=370), at + timedelta(days=370))
    past = [found for found in around if found.at <= at]
    future = [found for found in around if found.at > at]
    if past:
        assert at.astimezone(zone).utcoffset() == past[-1].after
    if future:
        assert at.astimezone(zone).utcoffset() == future[0].before


def year(number: int) -> tuple[datetime, datetime]:
    return datetime(number, 1, 1, tzinfo=UTC), datetime(number + 1, 1, 1, tzinfo=UTC)
