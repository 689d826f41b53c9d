"""The fire times of crontab lines, against an independent oracle (croniter), and against Everbeat's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter

from everbeat.imports.base import COMPARED_TIMES, compare_times
from everbeat.imports.crontab_schedules import CrontabOptions, plan_crontab
from everbeat.imports.crontab_times import CrontabTimes, InvalidField
from tests.imports.crontabs import CRON_D, ETC_CRONTAB, generated_crontab

START = datetime(2026, 11, 19, 3, 0, 30, tzinfo=UTC)


def oracle(expression: str, zone: str, after: datetime, count: int = COMPARED_TIMES) -> list[datetime]:
    """Return the next local times, without zone. The flag is for the star in day fields such as */2, as in Vixie cron."""
    local = after.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    times = croniter(expression, local, implement_cron_bug=True)
    return [times.get_next(datetime) for _ in range(count)]


def local_times(times: list[datetime], zone: str) -> list[datetime]:
    return [time.astimezone(ZoneInfo(zone)).replace(tzinfo=None) for time in times]


def test_nothing_of_a_crontab_of_200_lines_is_lost_and_every_time_is_that_of_the_oracle() -> None:
    text, lines = generated_crontab()
    plan = plan_crontab(text, "generated", CrontabOptions(), is_system=False)
    assert plan.not_carried_over == []
    assert len(plan.schedules) == len(lines) == 200
    for planned, line in zip(plan.schedules, lines, strict=True):
        assert planned.definition["payload"]["command"] == line.command
        compared = compare_times(planned, START)
        assert not compared.differs, (line, compared.first_difference)
        assert local_times(compared.ticks, line.zone) == oracle(line.expression, line.zone, START), line


@pytest.mark.parametrize("name", ["crontab", *CRON_D])
def test_the_times_of_debians_crontabs_are_those_of_the_oracle(name: str, tmp_path: Path) -> None:
    text = ETC_CRONTAB if name == "crontab" else CRON_D[name]
    plan = plan_crontab(text, name, CrontabOptions(), is_system=True)
    jobs = [line for line in text.splitlines() if line and line[0] not in "#ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    assert len(plan.schedules) == len([line for line in jobs if not line.startswith("@reboot")])
    for planned in plan.schedules:
        compared = compare_times(planned, START)
        assert not compared.differs
        assert local_times(compared.ticks, "UTC") == oracle(str(planned.definition["cron"]), "UTC", START)


@pytest.mark.parametrize(
    "expression",
    ["0 9 13 * 5", "0 9 */2 * 1", "0 9 1-7 * */3", "0 9 * * 1", "0 9 1,15 * mon", "0 9 */2 * */2", "0 9 1-31/2 * 1"],
)
def test_the_two_day_fields_are_joined_with_or_only_if_neither_begins_with_a_star(expression: str) -> None:
    times = CrontabTimes(expression, ZoneInfo("UTC")).next_times(START, COMPARED_TIMES)
    assert local_times(times, "UTC") == oracle(expression, "UTC", START)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"])
@pytest.mark.parametrize(
    "expression", ["30 2 * * *", "*/30 * * * *", "15 1,2,3 * * *", "0 */2 * * *", "*/20 2 * * *", "59 23 * * *"]
)
def test_cron_and_everbeat_agree_during_a_year_of_dst_changes(zone: str, expression: str) -> None:
    plan = plan_crontab(f"CRON_TZ={zone}\n{expression} x", "c", CrontabOptions(), is_system=False)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for day in range(0, 365, 3):
        assert not compare_times(plan.schedules[0], start + timedelta(days=day), 12).differs


def test_a_leap_day_is_found() -> None:
    times = CrontabTimes("0 0 29 2 *", ZoneInfo("UTC")).next_times(START, 3)
    assert [time.year for time in times] == [2028, 2032, 2036]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("5/15 * * * *", "minute: 5/15 has a step after a single number"),
        ("0~30 * * * *", "is a random value, chosen when cron starts"),
        ("60 * * * *", "minute: 60 is not a value"),
        ("* * * * 8", "day of week: 8 is not a value"),
        ("* * * foo *", "month: foo is not a value"),
        ("* * * * fri-sun", "the range fri-sun is reversed"),
        ("*/0 * * * *", "has no valid step"),
        ("1,,2 * * * *", "an empty entry"),
        ("* * L * *", "day of month: l is not a value"),
        ("* * * *", "has 4 fields"),
    ],
)
def test_a_field_that_cron_rejects_or_reads_in_two_ways_is_an_error(expression: str, message: str) -> None:
    with pytest.raises(InvalidField) as caught:
        CrontabTimes(expression, ZoneInfo("UTC"))
    assert message in str(caught.value)
