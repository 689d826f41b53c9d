"""Previews: the next ticks, and warnings as sentences."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.core.calendars import Calendar, parse_calendar
from everbeat.core.errors import InvalidInput
from everbeat.core.preview import Preview, PreviewTick, preview
from everbeat.core.rules import DstFold, DstGap, Rule, TriggerKind

AFTER = datetime(2026, 11, 16, 8, 30, tzinfo=UTC)
NEW_YORK = "America/New_York"


def cron(expression: str, count: int = 3, timezone: str = NEW_YORK, **more: Any) -> Preview:
    calendars = more.pop("calendars", {})
    rule = Rule(kind=TriggerKind.CRON, expression=expression, timezone=timezone, **more)
    return preview(rule, AFTER, count, calendars)


def test_ticks_are_shown_in_utc_and_in_local_time() -> None:
    shown = cron("0 2 * * *", 2)
    assert shown.description == "At 02:00 every day, America/New_York"
    assert shown.ticks == [
        PreviewTick(datetime(2026, 11, 17, 7, tzinfo=UTC), "2026-11-17T02:00:00-05:00"),
        PreviewTick(datetime(2026, 11, 18, 7, tzinfo=UTC), "2026-11-18T02:00:00-05:00"),
    ]


@pytest.mark.parametrize(
    ("expression", "policy", "warning"),
    [
        (
            "30 2 * * *",
            {"gap": DstGap.AFTER},
            "Moved to 03:00 on 2027-03-14 in America/New_York because 02:30 does not exist.",
        ),
        (
            "30 2 * * *",
            {"gap": DstGap.SKIP},
            "Skipped on 2027-03-14 in America/New_York because 02:30 does not exist.",
        ),
        (
            "30 1 * * *",
            {"fold": DstFold.FIRST},
            "01:30 happens twice on 2027-11-07 in America/New_York; runs at the first.",
        ),
        (
            "30 1 * * *",
            {"fold": DstFold.SECOND},
            "01:30 happens twice on 2027-11-07 in America/New_York; runs at the second.",
        ),
        ("30 1 * * *", {"fold": DstFold.BOTH}, "01:30 happens twice on 2027-11-07 in America/New_York; runs at both."),
        (
            "0,30 2 * * *",
            {},
            "Moved to 03:00 on 2027-03-14 in America/New_York because 02:00 to 02:30 do not exist.",
        ),
        ("*/15 2 * * *", {}, "Skipped on 2027-03-14 in America/New_York because 02:00 to 02:45 do not exist."),
        ("0 0 31 * *", {}, "Does not run in months without a 31st."),
        ("0 0 1,30 * *", {}, "Does not run on the 30th in months without one."),
        (
            "0 0 13 * FRI",
            {},
            "Day-of-month and day-of-week are both set: runs when either matches (crontab OR rule).",
        ),
        ("*/25 * * * *", {}, "*/25 in minutes means 0, 25 and 50, then 0 again: the last step is shorter."),
        ("*/90 * * * *", {}, "*/90 in minutes matches 0 only, because minutes go up to 59."),
        ("0 10/60 * * * *", {"timezone": "UTC"}, "10/60 in minutes matches 10 only, because minutes go up to 59."),
        ("0-9/10 9 * * *", {}, "0-9/10 in minutes matches 0 only, because the step leads beyond the last value, 9."),
        ("0 0 1 */13 *", {}, "*/13 in months matches 1 only, because months go up to 12."),
        ("0 0 1 */5 *", {}, "*/5 in months means 1, 6 and 11, then 1 again: the last step is shorter."),
        ("0 0 */32 * *", {}, "*/32 in days matches 1 only, because days go up to 31."),
        ("0 0 31W * *", {}, "Does not run in months without a 31st."),
        (
            "0 0 9 ? * 2-6",
            {},
            "Numbers of weekdays count from 0 for Sunday, as in crontab. In Quartz, 1 is Sunday; use names such as MON.",
        ),
        ("0 0 0 1 * ? 2026", {}, "Ends after 1 more tick."),
        (
            "0,30 2 * * *",
            {"gap": DstGap.SHIFT},
            "Moved to 03:00 through 03:30 on 2027-03-14 in America/New_York because 02:00 to 02:30 do not exist.",
        ),
        ("0 0 */2 * *", {}, "*/2 in days starts again on the 1st of every month."),
        ("0 0 * * *", {"ends_at": AFTER + timedelta(days=2)}, "Ends after 2 more ticks."),
        ("0 0 * * *", {"ends_at": AFTER}, "Does not run at any time after 2026-11-16 08:30 UTC."),
        (
            "H H * * *",
            {"timezone": "UTC"},
            "H is chosen from the schedule's id when it is saved; the times shown are an example.",
        ),
    ],
)
def test_it_warns_once_in_a_sentence(expression: str, policy: dict[str, Any], warning: str) -> None:
    assert cron(expression, **policy).warnings == [warning]


@pytest.mark.parametrize(
    ("expression", "timezone"),
    [
        ("* * * * *", NEW_YORK),
        ("*/5 * * * *", NEW_YORK),
        ("30 * * * *", NEW_YORK),
        ("0 9 * * MON-FRI", NEW_YORK),
        ("30 2 * * *", "UTC"),
        ("30 2 * * *", "Asia/Tokyo"),
        ("0 0 31 1,3,12 *", "UTC"),
        ("0 0 25-31 * *", "UTC"),
        ("0 0 1 1 *", "UTC"),
        ("0 0 L * *", "UTC"),
    ],
)
def test_it_does_not_warn_about_unambiguous_rules(expression: str, timezone: str) -> None:
    assert cron(expression, timezone=timezone).warnings == []


def test_a_leap_day_is_called_rare() -> None:
    assert cron("0 0 29 2 *", 1).warnings == [
        "February 29 exists only in leap years.",
        "Runs less than once a year: after 2028-02-29 it runs next on 2032-02-29.",
    ]


def test_dst_changes_that_do_not_affect_the_rule_are_not_mentioned() -> None:
    assert cron("30 2 * * *", ends_at=AFTER + timedelta(days=30)).warnings == []
    assert cron("30 2 * * MON", fold=DstFold.BOTH).warnings == []


def test_a_zone_with_two_changes_within_a_year_names_both() -> None:
    # In the past, because newer versions of the tz database end these changes in 2026.
    rule = Rule(kind=TriggerKind.CRON, expression="30 2 * * *", timezone="Africa/Casablanca")
    assert preview(rule, datetime(2024, 11, 16, 8, 30, tzinfo=UTC), 3, {}).warnings == [
        "Moved to 03:00 on 2025-04-06 in Africa/Casablanca because 02:30 does not exist.",
        "02:30 happens twice on 2025-02-23 in Africa/Casablanca; runs at the first.",
    ]


def test_at_most_three_changes_of_a_kind_are_named() -> None:
    shown = cron("30 2 14 3 *", 40)
    assert len(shown.warnings) <= 3
    assert shown.warnings[0].startswith("Moved to 03:00 on 2027-03-14")


def test_ticks_that_calendars_remove_are_counted() -> None:
    weekend = parse_calendar("weekend", {"weekdays": ["SAT", "SUN"]})
    shown = cron("0 12 * * *", 6, exclude=("weekend",), calendars={"weekend": weekend})
    assert [tick.at.day for tick in shown.ticks] == [16, 17, 18, 19, 20, 23]
    assert shown.warnings == ["Calendars exclude 2 ticks in the period shown."]


def test_a_calendar_that_removes_everything_ends_the_search() -> None:
    always = Calendar(name="always", weekdays=frozenset(range(7)))
    shown = cron("* * * * *", 3, exclude=("always",), calendars={"always": always})
    assert shown.ticks == []
    assert shown.warnings == ["Calendars exclude 5000 of the next 5000 ticks; further ticks were not examined."]


def test_a_moved_tick_that_a_calendar_excludes_is_not_mentioned() -> None:
    calendar = parse_calendar("c", {"dates": ["2027-03-14", "2027-11-07"]})
    assert cron("30 2 * * *", exclude=("c",), calendars={"c": calendar}).warnings == []
    assert cron("30 1 * * *", exclude=("c",), calendars={"c": calendar}).warnings == []


def test_h_is_resolved_with_an_id() -> None:
    rule = Rule(kind=TriggerKind.CRON, expression="H H * * *")
    shown = preview(rule, AFTER, 1, {}, UUID(int=5))
    assert shown.description == f"At {shown.ticks[0].at:%H:%M} every day, UTC"
    assert shown.warnings == []


def test_an_interval_without_anchor_counts_from_the_given_instant() -> None:
    shown = preview(Rule(kind=TriggerKind.EVERY, expression="90"), AFTER, 2, {})
    assert [tick.at - AFTER for tick in shown.ticks] == [timedelta(seconds=90), timedelta(seconds=180)]
    assert shown.warnings == []


def test_a_single_instant_is_shown_once_or_reported_as_past() -> None:
    rule = Rule(kind=TriggerKind.AT, expression="2027-01-01T09:00:00Z", timezone="Europe/Berlin")
    assert [tick.local for tick in preview(rule, AFTER, 5, {}).ticks] == ["2027-01-01T10:00:00+01:00"]
    assert preview(rule, AFTER, 5, {}).warnings == []
    late = preview(rule, AFTER + timedelta(days=365), 5, {})
    assert late.warnings == ["Does not run at any time after 2027-11-16 08:30 UTC."]


def test_recurrence_rules_also_have_warnings() -> None:
    text = "DTSTART:20261231T023000 RRULE:FREQ=MONTHLY"
    rule = Rule(kind=TriggerKind.RRULE, expression=text, timezone="America/New_York")
    assert preview(rule, AFTER, 3, {}).warnings == ["Does not run in months without a 31st."]
    daily = Rule(kind=TriggerKind.RRULE, expression="FREQ=DAILY;BYHOUR=2;BYMINUTE=30", timezone=NEW_YORK)
    (warning,) = preview(daily, AFTER, 3, {}).warnings
    assert warning == "Moved to 03:00 on 2027-03-14 in America/New_York because 02:30 does not exist."
    shifted = msgspec.structs.replace(daily, gap=DstGap.SHIFT)
    (warning,) = preview(shifted, AFTER, 3, {}).warnings
    assert warning == "Moved to 03:30 on 2027-03-14 in America/New_York because 02:30 does not exist."


@pytest.mark.parametrize("count", [0, 101])
def test_it_refuses_a_count_out_of_range(count: int) -> None:
    with pytest.raises(InvalidInput, match="count: must be 1 to 100"):
        cron("* * * * *", count)


def test_it_refuses_the_far_future() -> None:
    with pytest.raises(InvalidInput, match="after: must be before the year 3000"):
        preview(Rule(kind=TriggerKind.EVERY, expression="90"), datetime(9999, 12, 31, tzinfo=UTC), 1, {})


FIELD = st.sampled_from(["*", "0", "1", "*/2", "*/7", "1-5", "2,4", "H", "5/3"])


@settings(max_examples=80, deadline=None)
@given(
    st.tuples(FIELD, FIELD, FIELD.filter(lambda field: not field.startswith("0")), FIELD, FIELD),
    st.sampled_from(["UTC", NEW_YORK, "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia"]),
    st.sampled_from(DstGap),
    st.sampled_from(DstFold),
)
def test_any_cron_rule_has_a_preview(fields: tuple[str, ...], timezone: str, gap: DstGap, fold: DstFold) -> None:
    expression = " ".join([fields[0], fields[1], fields[2], fields[3].replace("0", "3"), fields[4]])
    shown = cron(expression, 5, timezone, gap=gap, fold=fold)
    assert len(shown.ticks) == 5
    assert [tick.at for tick in shown.ticks] == sorted({tick.at for tick in shown.ticks})
    assert all(warning.endswith(".") for warning in shown.warnings)
