"""How entries of Celery Beat become schedules, and that both run at the same times by Celery's own arithmetic."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, solar
from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.imports.base import ImportPlan, PlannedSchedule, compare_times
from everbeat.imports.celery_beat import CeleryBeatOptions, beat_schedule_entries, field_text, plan_celery_beat

NOW = datetime(2030, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)


def plan_of(schedule: dict[str, dict[str, Any]], timezone: str = "Europe/Berlin", **conf: Any) -> ImportPlan:
    app = Celery("shop", set_as_current=False)
    app.conf.update(timezone=timezone, beat_schedule=schedule, **conf)
    return plan_celery_beat(app, beat_schedule_entries(app), CeleryBeatOptions(broker="celery"))


def planned(schedule: Any, timezone: str = "Europe/Berlin", **fields: Any) -> PlannedSchedule:
    plan = plan_of({"one": {"task": "shop.one", "schedule": schedule, **fields}}, timezone)
    assert plan.not_carried_over == []
    return plan.schedules[0]


@pytest.mark.parametrize(
    ("schedule", "field", "value"),
    [
        (crontab(), "cron", "* * * * *"),
        (crontab(minute=0, hour="*/3"), "cron", "0 */3 * * *"),
        (crontab(minute="1-59/2"), "cron", "1-59/2 * * * *"),
        (crontab(minute="5,6,7,30", hour=2, day_of_week="sun,tue-thu"), "cron", "5-7,30 2 * * 0,2-4"),
        (crontab(0, 0, day_of_month="1", month_of_year="*/3"), "cron", "0 0 1 */3 *"),
        (
            crontab(0, 7, day_of_month="1-7", day_of_week="mon"),
            "rrule",
            "FREQ=DAILY;BYMONTHDAY=1,2,3,4,5,6,7;BYDAY=MO;BYHOUR=7;BYMINUTE=0;BYSECOND=0",
        ),
        (30, "every_seconds", 30),
        (timedelta(minutes=90), "every_seconds", 5400),
        (2.5, "every_seconds", 2.5),
    ],
)
def test_a_schedule_becomes_a_trigger_with_the_same_times(schedule: Any, field: str, value: Any) -> None:
    found = planned(schedule)
    assert found.definition[field] == value
    compared = compare_times(found, NOW)
    assert not compared.differs, compared.first_difference
    assert len(compared.ticks) == 20


@pytest.mark.parametrize("timezone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_a_crontab_is_in_the_zone_of_the_application(timezone: str) -> None:
    found = planned(crontab(30, 9), timezone)
    assert found.definition["timezone"] == timezone
    assert not compare_times(found, NOW).differs


@st.composite
def crontabs(draw: st.DrawFn) -> crontab:
    def some(first: int, last: int) -> str:
        return ",".join(str(one) for one in draw(st.lists(st.integers(first, last), min_size=1, max_size=4)))

    def field(first: int, last: int) -> str:
        return draw(st.sampled_from(["*", f"*/{draw(st.integers(2, 9))}", some(first, last)]))

    return crontab(field(0, 59), field(0, 23), day_of_week=field(0, 6), day_of_month=field(1, 28), month_of_year=field(1, 12))


@settings(max_examples=60, deadline=None)
@given(crontabs())
def test_any_crontab_has_the_same_times(schedule: crontab) -> None:
    found = planned(schedule, "UTC")
    compared = compare_times(found, NOW, 5)
    assert not compared.differs, (schedule, found.definition, compared.first_difference)


@given(st.sets(st.integers(0, 59), min_size=1))
def test_the_text_of_a_field_is_read_as_the_same_values(values: set[int]) -> None:
    assert crontab(minute=field_text(values, 0, 59)).minute == values


def test_options_routes_and_arguments_are_carried_over() -> None:
    plan = plan_of(
        {
            "nightly report": {
                "task": "shop.report",
                "schedule": 60,
                "args": (1, "x"),
                "kwargs": {"full": True},
                "options": {
                    "queue": "slow",
                    "priority": 5,
                    "expires": timedelta(minutes=1),
                    "headers": {"a": "b"},
                    "link": None,
                },
            },
            "mail": {"task": "shop.mail", "schedule": 60},
        },
        task_routes={"shop.mail": {"queue": "mails"}},
    )
    report, mail = plan.schedules
    assert report.name == "beat.nightly-report"
    assert report.definition["target"] == {
        "kind": "celery",
        "task": "shop.report",
        "broker": "celery",
        "queue": "slow",
        "priority": 5,
        "headers": {"a": "b"},
        "expires_seconds": 60.0,
    }
    assert report.definition["payload"] == {"args": [1, "x"], "kwargs": {"full": True}}
    assert report.notes == ("the options link are not carried over",)
    assert (mail.definition["target"]["queue"], mail.definition["payload"]) == ("mails", {})
    assert (mail.definition["overlap"], mail.definition["catch_up"], mail.definition["max_attempts"]) == ("allow", "latest", 1)


def test_what_cannot_be_carried_over_is_listed_with_the_reason() -> None:
    sunset = solar.__new__(solar)  # its constructor needs the package ephem
    sunset.event, sunset.lat, sunset.lon = "sunset", 52.5, 13.4

    class Moon(crontab.__mro__[1]):  # type: ignore[misc]
        pass

    plan = plan_of(
        {
            "sun": {"task": "t", "schedule": sunset},
            "moon": {"task": "t", "schedule": Moon()},
            "object": {"task": "t", "schedule": 5, "args": (object(),)},
            "until": {"task": "t", "schedule": 5, "options": {"expires": NOW}},
            "a b": {"task": "t", "schedule": 5},
            "a-b": {"task": "t", "schedule": 5},
        }
    )
    reasons = {entry.text: entry.reason for entry in plan.not_carried_over}
    assert "sunset at 52.5, 13.4: Everbeat has no triggers for sunrise and sunset" in reasons["sun"]
    assert "Moon is unknown" in reasons["moon"]
    assert "not JSON" in reasons["object"]
    assert "expires is a fixed time" in reasons["until"]
    assert "another entry has the name beat.a-b" in reasons["a-b"]
    assert [one.name for one in plan.schedules] == ["beat.a-b"]
