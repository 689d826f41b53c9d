"""Descriptions of rules in plain English."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbeat.core.describe import describe
from everbeat.core.rules import Rule, TriggerKind
from everbeat.core.triggers.cron_fields import read_fields

ANCHOR = datetime(2026, 11, 16, 8, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("0 2 * * *", "At 02:00 every day"),
        ("* * * * *", "Every minute"),
        ("*/5 * * * *", "Every 5 minutes"),
        ("0,30 * * * *", "Every 30 minutes"),
        ("*/25 * * * *", "At minutes 0, 25 and 50 of every hour"),
        ("5-10 * * * *", "At minutes 5 to 10 of every hour"),
        ("0 * * * *", "Every hour"),
        ("5 * * * *", "At minute 5 of every hour"),
        ("0 */2 * * *", "Every 2 hours"),
        ("15 */2 * * *", "Every 2 hours at minute 15"),
        ("*/5 */2 * * *", "Every 5 minutes of every 2nd hour"),
        ("0 9-17 * * *", "Every hour from 09:00 to 17:00"),
        ("*/15 9-17 * * 1-5", "Every 15 minutes from 09:00 to 17:45, Monday to Friday"),
        ("1,2,3,40 3,7,9 * * *", "At minutes 1, 2, 3 and 40 of hours 3, 7 and 9"),
        ("*/10 * * * * *", "Every 10 seconds"),
        ("* * * * * *", "Every second"),
        ("30 * * * * *", "At second 30 of every minute"),
        ("30 0 12 * * *", "At 12:00:30 every day"),
        ("*/20 * 9 * * *", "Every 20 seconds, every minute from 09:00 to 09:59"),
        ("30 9 * * 1-5", "At 09:30, Monday to Friday"),
        ("0 12 ? * MON", "At 12:00 on Monday"),
        ("0 0 * * 0,6", "At 00:00 on Saturday and Sunday"),
        ("0 0 * * 7", "At 00:00 on Sunday"),
        ("0 0 1 * *", "At 00:00 on the 1st of the month"),
        ("0 0 21,22,23 * *", "At 00:00 on the 21st to 23rd of the month"),
        ("0 0 11,12 * *", "At 00:00 on the 11th and 12th of the month"),
        ("0 18 L * *", "At 18:00 on the last day of the month"),
        ("0 18 LW * *", "At 18:00 on the last weekday of the month"),
        ("0 0 L,15 * *", "At 00:00 on the 15th and last day of the month"),
        ("0 9 * * 1#1", "At 09:00 on the first Monday of the month"),
        ("0 9 * * 5L", "At 09:00 on the last Friday of the month"),
        ("0 9 * * MON#1,FRI", "At 09:00 on the first Monday of the month and on Friday"),
        ("0 0 1 1 *", "At 00:00 on January 1"),
        ("0 0 1 */3 *", "At 00:00 on the 1st of January, April, July and October"),
        ("0 9 * 1-3 MON", "At 09:00 on Monday in January to March"),
        ("0 0 * 6 *", "At 00:00 every day in June"),
        ("0 0 * 1,3 1#2", "At 00:00 on the second Monday of January and March"),
        ("0 9 13 * 5", "At 09:00 on the 13th of the month and also on Friday"),
        ("0 0 */2 * 1", "At 00:00 on every 2nd day of the month, counted from the 1st, only if that is Monday"),
        ("*/15 22-2 * * FRI-MON", "Every 15 minutes from 22:00 to 02:45, Friday to Monday"),
        ("0 20-2 * * *", "Every hour from 20:00 to 02:00"),
        ("50-10 9 * * *", "At minutes 50 to 10 of hour 9"),
        ("0 9 * NOV-MAR MONDAY", "At 09:00 on Monday in November to March"),
        ("0 9 15W * *", "At 09:00 on the weekday nearest to the 15th of the month"),
        ("0 9 L-3 * *", "At 09:00 on the 4th to last day of the month"),
        ("0 9 1,L-1W JANUARY *", "At 09:00 on the 1st and weekday nearest to the 2nd to last day of January"),
        ("0 0 9 1 1 ? 2027", "At 09:00 on January 1 in 2027"),
        ("0 0 9 ? * MON 2027-2030", "At 09:00 on Monday in 2027 to 2030"),
        ("0 0 9 * * ? 2027,2029", "At 09:00 in 2027 and 2029"),
        ("0 0 9 * * ? 2027/2", "At 09:00 in 487 of the years 2027 to 2999"),
        ("0 H 9 * * ? 2027", "Once between 09:00 and 09:59 in 2027, at a fixed minute chosen from the schedule's id"),
        ("@daily", "At 00:00 every day"),
        ("@weekly", "At 00:00 on Sunday"),
        ("@hourly", "Every hour"),
        ("H * * * *", "Once an hour, at a fixed minute chosen from the schedule's id"),
        ("H H * * *", "Once a day, at a fixed time chosen from the schedule's id"),
        (
            "H 2 * * 1-5",
            "Once between 02:00 and 02:59, Monday to Friday, at a fixed minute chosen from the schedule's id",
        ),
        ("H/15 * * * *", "Cron H/15 * * * * with each H chosen from the schedule's id"),
    ],
)
def test_cron(expression: str, text: str) -> None:
    rule = Rule(kind=TriggerKind.CRON, expression=expression, timezone="Europe/Berlin")
    assert describe(rule) == f"{text}, Europe/Berlin"


def test_a_zone_in_the_expression_takes_precedence() -> None:
    rule = Rule(kind=TriggerKind.CRON, expression="CRON_TZ=Asia/Tokyo 0 9 * * *", timezone="Europe/Berlin")
    assert describe(rule) == "At 09:00 every day, Asia/Tokyo"


def test_h_is_resolved_if_the_schedule_id_is_given() -> None:
    rule = Rule(kind=TriggerKind.CRON, expression="H H * * *")
    minute, hour = read_fields("H H * * *", UUID(int=5).bytes)[1:3]
    assert describe(rule, UUID(int=5)) == f"At {int(hour):02d}:{int(minute):02d} every day, UTC"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ("1", "Every second"),
        ("1.50", "Every 1.5 seconds"),
        ("30", "Every 30 seconds"),
        ("60", "Every minute"),
        ("90", "Every 90 seconds"),
        ("100", "Every 100 seconds"),
        ("150", "Every 2 minutes 30 seconds"),
        ("300", "Every 5 minutes"),
        ("3600", "Every hour"),
        ("5400", "Every 1 hour 30 minutes"),
        ("86400", "Every 24 hours"),
        ("604800", "Every 7 days"),
    ],
)
def test_intervals(seconds: str, text: str) -> None:
    assert describe(Rule(kind=TriggerKind.EVERY, expression=seconds, anchor=ANCHOR)) == text


def test_single_instants() -> None:
    at = Rule(kind=TriggerKind.AT, expression="2027-01-01T09:00:00Z")
    assert describe(at) == "Once, on 2027-01-01 09:00 UTC"
    local = Rule(kind=TriggerKind.AT, expression="2027-01-01T09:00:05Z", timezone="Europe/Berlin")
    assert describe(local) == "Once, on 2027-01-01 10:00:05 Europe/Berlin"


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("FREQ=DAILY", "Every day at 03:30"),
        ("FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,FR", "Every 2 weeks on Monday and Friday at 03:30"),
        ("FREQ=WEEKLY", "Every week on Monday at 03:30"),
        ("FREQ=MONTHLY;BYMONTHDAY=-1", "Every month on the last day of the month at 03:30"),
        ("FREQ=MONTHLY;BYDAY=1MO,-1FR", "Every month on the first Monday and last Friday of the month at 03:30"),
        (
            "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
            "Every month on the last weekday of the month at 03:30",
        ),
        (
            "FREQ=DAILY\nEXDATE:20270101T033000,20270102\nEXDATE:20270103T083000Z\nRDATE;TZID=Asia/Tokyo:20270104T120000",
            "Every day at 03:30, except on 2027-01-01 03:30, 2027-01-02 and 2027-01-03 08:30 UTC, "
            "and also on 2027-01-04 12:00 Asia/Tokyo",
        ),
        (
            "FREQ=DAILY\nEXDATE:" + ",".join(f"202701{day:02}" for day in range(1, 9)),
            "Every day at 03:30, except on 8 listed dates",
        ),
        ("FREQ=YEARLY", "Every year on November 16 at 03:30"),
        ("FREQ=HOURLY;INTERVAL=6", "Every 6 hours"),
        ("FREQ=DAILY;BYHOUR=9,17;BYMINUTE=0;COUNT=5", "Every day at 09:00 and 17:00, 5 times"),
        ("DTSTART:20270101T090000 RRULE:FREQ=MONTHLY", "Every month on the 1st of the month at 09:00"),
        (
            "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR;UNTIL=20271231T000000Z",
            "Every week, Monday to Friday at 03:30, until 2027-12-31 00:00 UTC",
        ),
    ],
)
def test_recurrence_rules(expression: str, text: str) -> None:
    rule = Rule(kind=TriggerKind.RRULE, expression=expression, timezone="America/New_York", anchor=ANCHOR)
    assert describe(rule) == f"{text}, America/New_York"


def test_calendars_and_window_come_last() -> None:
    rule = Rule(
        kind=TriggerKind.CRON,
        expression="0 2 * * *",
        exclude=("holidays",),
        only=("open", "staffed"),
        starts_at=ANCHOR,
        ends_at=ANCHOR,
    )
    assert describe(rule) == (
        "At 02:00 every day, UTC, only in calendars open and staffed, except in calendar holidays, "
        "from 2026-11-16 08:30 UTC, until 2026-11-16 08:30 UTC"
    )


TERM = st.sampled_from(["*", "1", "2-5", "*/2", "*/9", "3,5,7", "1-6/2", "4/2", "5-2", "6-1/2", "H", "H/3", "*/2,5"])


@given(st.lists(TERM, min_size=5, max_size=6), st.one_of(st.none(), st.uuids()))
def test_every_cron_rule_has_a_description(fields: list[str], schedule_id: UUID | None) -> None:
    text = describe(Rule(kind=TriggerKind.CRON, expression=" ".join(fields)), schedule_id)
    assert text.endswith(", UTC")
    assert text[0].isupper()
