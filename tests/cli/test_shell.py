"""`everbeat shell` as a user types it, on a database in the process."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from everbeat.app import Everbeat
from everbeat.cli.main import cli


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shell.db"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["shell", *arguments])


def test_a_command_is_submitted_once_for_each_key(url: str) -> None:
    arguments = ("submit", "--url", url, "--env", "A=b=c", "--nice", "5", "--key", "k", "--", "df", "-h", "/")
    first, second = invoke(*arguments), invoke(*arguments)
    assert first.exit_code == 0, first.output
    assert first.output == second.output
    app = Everbeat(url)
    task = app.client.tasks.get(UUID(first.output.strip()))
    app.close()
    assert (task.type, task.queue) == ("everbeat.shell", "shell")
    assert task.payload == {"argv": ["df", "-h", "/"], "env": {"A": "b=c"}, "nice": 5}


def test_a_command_is_scheduled(url: str) -> None:
    result = invoke("schedule", "disks", "--cron", "0 3 * * *", "--tz", "Europe/Berlin", "--line", "df | sort", "--url", url)
    assert result.exit_code == 0, result.output
    app = Everbeat(url)
    schedule = app.client.schedules.get("disks")
    app.close()
    assert (schedule.cron, schedule.timezone, schedule.payload) == ("0 3 * * *", "Europe/Berlin", {"command": "df | sort"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("submit",), "either a program with its arguments after --, or --line"),
        (("submit", "--line", "a", "--", "b"), "either a program"),
        (("submit", "--env", "A", "--", "b"), "must be NAME=VALUE"),
        (("schedule", "x", "--", "b"), "--cron"),
    ],
)
def test_wrong_usage_is_a_clear_error(arguments: tuple[str, ...], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output
