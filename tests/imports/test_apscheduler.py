"""How jobs of APScheduler become schedules, and that both run at the same times by APScheduler's own triggers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.imports.apscheduler_jobs import jobs_of
from everbeat.imports.apscheduler_schedules import APSchedulerOptions, plan_apscheduler
from everbeat.imports.base import ImportPlan, PlannedSchedule, compare_times

NOW = datetime(2030, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
NEW_YORK = "America/New_York"


def report(account: int, *, day: str = "mon") -> None:
    """A function of jobs."""


def joined(*names: str) -> None:
    """A function that cannot be a task."""


class Shop:
    def close(self) -> None:
        """A method of an object."""


def plan_of(scheduler: BackgroundScheduler) -> ImportPlan:
    return plan_apscheduler(jobs_of(scheduler), NOW, APSchedulerOptions())


def plan_with(trigger: Any, function: Any = report, args: Any = (7,), **options: Any) -> ImportPlan:
    scheduler = BackgroundScheduler(timezone=NEW_YORK)
    scheduler.add_job(function, trigger, args=args, **options)
    return plan_of(scheduler)


def planned(trigger: Any, **options: Any) -> PlannedSchedule:
    plan = plan_with(trigger, **options)
    assert plan.not_carried_over == []
    return plan.schedules[0]


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"hour": 2, "minute": 30}, "30 2 * * *"),
        ({"minute": "*/5"}, "0-59/5 * * * *"),
        ({"second": "*/10"}, "0-59/10 * * * * *"),
        ({"day_of_week": "0,sat-sun", "hour": "9-17/2"}, "0 9,11,13,15,17 * * MON,SAT,SUN"),
        ({"day": "last", "hour": 3}, "0 3 L * *"),
        ({"day": "2nd mon,last fri"}, "0 0 * * MON#2,FRIL"),
        ({"month": "jan-mar", "day": "*/10"}, "0 0 1-31/10 1-3 *"),
        ({"year": "2031-2033", "month": 6}, "0 0 0 1 6 * 2031-2033"),
        (
            {"day": "1-7", "day_of_week": "tue", "hour": 7},
            "FREQ=DAILY;BYMONTHDAY=1,2,3,4,5,6,7;BYDAY=TU;BYHOUR=7;BYMINUTE=0;BYSECOND=0",
        ),
    ],
)
def test_a_cron_trigger_becomes_a_rule_with_the_same_times(fields: dict[str, Any], rule: str) -> None:
    found = planned(CronTrigger(timezone=NEW_YORK, **fields))
    assert rule in (found.definition.get("cron"), found.definition.get("rrule"))
    compared = compare_times(found, NOW)
    assert not compared.differs, compared.first_difference
    assert compared.ticks


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["*", "*/2", "1", "2", "0-5/3", "2,14"]),
    st.sampled_from(["0", "30"]),
    st.sampled_from([datetime(2030, 3, 9, 22, tzinfo=UTC), datetime(2030, 11, 2, 22, tzinfo=UTC)]),
)
def test_the_times_around_a_dst_change_are_equal(hour: str, minute: str, after: datetime) -> None:
    found = planned(CronTrigger(hour=hour, minute=minute, timezone=NEW_YORK))
    compared = compare_times(found, after)
    assert not compared.differs, compared.first_difference


def test_a_run_that_apscheduler_misses_after_a_dst_change_is_a_difference() -> None:
    found = planned(CronTrigger(month="*", timezone="Europe/Berlin"))
    compared = compare_times(found, datetime(2031, 2, 15, tzinfo=UTC))
    april, may = datetime(2031, 3, 31, 22, tzinfo=UTC), datetime(2031, 4, 30, 22, tzinfo=UTC)
    assert compared.first_difference == (april, may)


def test_an_interval_counts_from_its_start_or_from_a_fixed_time() -> None:
    start = datetime(2030, 5, 6, 12, 0, 5, tzinfo=UTC)
    found = planned(IntervalTrigger(minutes=7, start_date=start, end_date=start + timedelta(minutes=70)))
    assert found.definition["every_seconds"] == 420
    compared = compare_times(found, NOW)
    assert not compared.differs, compared.first_difference
    assert (compared.ticks[0], compared.ticks[-1], len(compared.ticks)) == (start, start + timedelta(minutes=70), 11)
    since_start = planned(IntervalTrigger(hours=5))
    assert since_start.definition["anchor"].startswith("2000-01-01T00:00:00")
    assert "from the start of the process" in since_start.notes[0]
    assert not compare_times(since_start, NOW).differs


def test_a_date_is_a_schedule_that_runs_once_unless_it_has_passed() -> None:
    found = planned(DateTrigger(NOW + timedelta(days=1)))
    assert compare_times(found, NOW).ticks == [NOW + timedelta(days=1)]
    past = plan_with(DateTrigger(NOW - timedelta(days=1)))
    assert "its only run was at 2030-05-05" in past.not_carried_over[0].reason


def test_options_and_arguments_are_carried_over() -> None:
    trigger = CronTrigger(hour=2, jitter=30, start_date="2030-06-01", end_date="2030-06-03 02:00:00", timezone=NEW_YORK)
    found = planned(trigger, id="nightly", kwargs={"day": "tue"}, next_run_time=None, coalesce=False, max_instances=3)
    definition = found.definition
    assert (definition["name"], definition["enabled"], definition["payload"]) == (
        "aps.nightly",
        False,
        {"account": 7, "day": "tue"},
    )
    assert definition["target"] == {"kind": "worker", "queue": "default", "type": "report"}
    assert (definition["overlap"], definition["max_concurrent"], definition["catch_up"]) == ("skip", 3, "all")
    assert (definition["jitter_seconds"], definition["misfire_grace_seconds"]) == (30, 1)
    compared = compare_times(found, NOW)
    assert not compared.differs
    assert len(compared.ticks) == 3
    defaults = planned("cron", misfire_grace_time=None).definition
    assert (defaults["catch_up"], defaults["max_concurrent"], defaults["enabled"]) == ("latest", 1, True)
    assert (defaults["misfire_grace_seconds"], defaults["timezone"]) == (366 * 86_400, NEW_YORK)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"args": (object(),)}, "its arguments are not JSON"),
        ({"function": lambda: None, "args": ()}, "has no name"),
        ({"function": joined, "args": ("a",)}, "a parameter with a star"),
        ({"function": Shop().close, "args": ()}, "a method of an object"),
        ({"trigger": OrTrigger([CronTrigger(hour=2)])}, "no trigger like OrTrigger"),
        ({"trigger": CronTrigger(week="1-10")}, "weeks of the year"),
        ({"trigger": CronTrigger(day="last", day_of_week="mon")}, "both day fields"),
    ],
)
def test_a_job_that_no_schedule_represents_is_listed_with_the_reason(options: dict[str, Any], text: str) -> None:
    plan = plan_with(**{"trigger": "cron", **options})
    assert plan.schedules == []
    assert text in plan.not_carried_over[0].reason


def stored(path: Path) -> BackgroundScheduler:
    return BackgroundScheduler(jobstores={"default": SQLAlchemyJobStore(f"sqlite:///{path}/jobs.db")}, timezone="UTC")


def test_jobs_in_a_job_store_are_read_and_a_broken_one_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = stored(tmp_path)
    running.add_executor(ThreadPoolExecutor(1), "slow")
    running.start(paused=True)
    running.add_job(report, "interval", hours=1, id="hourly", args=(1,), executor="slow")
    running.add_job(joined, "interval", hours=1, id="moved")
    running.shutdown()
    monkeypatch.delattr("tests.imports.test_apscheduler.joined")
    scheduler = stored(tmp_path)
    scheduler.add_job(report, "cron", args=(2,))
    for _ in range(2):
        plan = plan_of(scheduler)
        assert [each.name for each in plan.schedules] == ["aps.hourly", "aps.report"]
        assert "the executor slow" in plan.schedules[0].notes[0]
        assert not any(compare_times(each, NOW).differs for each in plan.schedules)
        assert "it cannot be restored" in plan.not_carried_over[0].reason


def test_jobs_without_an_id_have_names_that_are_the_same_in_the_next_import() -> None:
    scheduler = BackgroundScheduler(timezone="UTC")
    for account in (1, 2):
        scheduler.add_job(report, "cron", args=(account,))
    assert [each.name for each in plan_of(scheduler).schedules] == ["aps.report", "aps.report-2"]
