"""`everbeat preview`, which needs no server."""

from __future__ import annotations

import json

from click.testing import CliRunner

from everbeat.cli.main import cli


def test_the_next_ticks_are_shown_in_local_time_and_utc_with_dst_warnings() -> None:
    arguments = ["preview", "30 2 * * *", "--tz", "Europe/Paris", "--after", "2027-03-26", "--count", "3"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0
    assert "2027-03-26T02:30:00+01:00  2027-03-26 01:30:00Z" in result.stdout
    assert "warning: " in result.stderr
    found = json.loads(CliRunner().invoke(cli, [*arguments, "-o", "json"]).stdout)
    assert [tick["at"][:16] for tick in found["ticks"]] == ["2027-03-26T01:30", "2027-03-27T01:30", "2027-03-28T01:00"]
    assert found["warnings"]


def test_one_trigger_is_required() -> None:
    result = CliRunner().invoke(cli, ["preview", "* * * * *", "--every", "1h"])
    assert result.exit_code == 2
    assert 'everbeat preview "0 2 * * *"' in result.output


def test_the_completion_script_of_each_shell_is_printed() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_EVERBEAT_COMPLETE" in CliRunner().invoke(cli, ["completion", shell]).stdout
