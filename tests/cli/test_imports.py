"""`everbeat import crontab` as a user types it: what it shows, and what it writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from everbeat.app import Everbeat
from everbeat.cli.imports import ImportFailed, run_import
from everbeat.cli.imports import ImportOptions as Options
from everbeat.cli.main import cli
from everbeat.imports.base import ImportPlan, PlannedSchedule
from tests.imports.crontabs import ETC_CRONTAB


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/import.db"


def invoke(*arguments: str, text: str = "") -> Result:
    return CliRunner().invoke(cli, ["import", "crontab", *arguments], input=text)


def schedules_of(url: str) -> dict[str, str]:
    app = Everbeat(url)
    try:
        return {schedule.name: str(schedule.cron) for schedule in app.client.schedules.list(limit=None)}
    finally:
        app.close()


def test_an_import_shows_the_schedules_and_creates_them_once(tmp_path: Path, url: str) -> None:
    file = tmp_path / "crontab"
    file.write_text(ETC_CRONTAB + "@reboot root /usr/bin/start\n")
    arguments = (str(file), "--system", "--tz", "Europe/Berlin", "--url", url)
    shown = invoke(*arguments, "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert "4 schedules to create or update, 1 not carried over" in shown.output
    assert "the next 20 are equal to the original's" in shown.output
    assert "@reboot root /usr/bin/start" in shown.output
    assert "4 created, 0 updated, 0 unchanged" in invoke(*arguments, "--yes").output
    assert "0 created, 0 updated, 4 unchanged" in invoke(*arguments, "--yes").output
    assert sorted(schedules_of(url).values()) == ["17 * * * *", "25 6 * * *", "47 6 * * 7", "52 6 1 * *"]


def test_standard_input_is_read_and_nothing_is_written_without_confirmation(url: str) -> None:
    result = invoke("-", "--url", url, "--tz", "UTC", text="0 0 * * * x\n")
    assert isinstance(result.exception, ImportFailed)
    assert "--yes" in str(result.exception)


def test_a_schedule_whose_times_differ_is_not_created(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    definition = {"name": "x", "cron": "0 0 * * *", "target": {"kind": "worker", "type": "x"}}
    plan = ImportPlan(
        schedules=[
            PlannedSchedule(source="here", definition=definition, expected_times=lambda after, count: [after] * count),
            PlannedSchedule(source="there", definition={**definition, "name": "y"}),
        ]
    )
    run_import(plan, Options(url, None, dry_run=False, yes=True))
    shown = capsys.readouterr().out
    assert "here  x\n    the fire times differ" in shown
    assert "1 schedules to create or update, 1 not carried over" in shown
    assert list(schedules_of(url)) == ["y"]


def test_a_file_that_does_not_exist_and_options_that_exclude_each_other_are_clear_errors(tmp_path: Path) -> None:
    assert "cannot be read" in str(invoke(str(tmp_path / "none"), "--tz", "UTC").exception)
    result = invoke("-", "--system", "--user", "ann")
    assert "cannot be combined" in result.output
