"""Reading crontabs: variables, users, `%`, and what is not carried over."""

from __future__ import annotations

import pytest

from everbeat.core.definitions import parse_definition
from everbeat.core.shell import parse_shell_command
from everbeat.imports.base import ImportPlan
from everbeat.imports.crontab import parse_assignment, split_command
from everbeat.imports.crontab_schedules import CrontabOptions, plan_crontab, slug_of
from tests.imports.crontabs import CRON_D


def plan_of(text: str, *, is_system: bool = False, **options: str) -> ImportPlan:
    return plan_crontab(text, "c", CrontabOptions(**options), is_system=is_system)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("A=b", ("A", "b")),
        ("A = b c ", ("A", "b c")),
        ('A="  b "', ("A", "  b ")),
        ("A='x\"y'", ("A", 'x"y')),
        ("\"A B\" = 'c'", ("A B", "c")),
        ("A=", ("A", "")),
        ("A=$HOME/bin", ("A", "$HOME/bin")),
        ("A=b # c", ("A", "b # c")),
        ("* * * * * A=b", None),
        ("0 0 * * * env A=b x", None),
        ("@daily A=b x", None),
    ],
)
def test_variables_are_read_as_cron_reads_them(line: str, expected: tuple[str, str] | None) -> None:
    assert parse_assignment(line) == expected


@pytest.mark.parametrize(
    ("text", "command", "stdin"),
    [
        ("cat", "cat", ""),
        ("cat%a%b", "cat", "a\nb\n"),
        ("date +\\%d%x", "date +%d", "x\n"),
        ("mail%100\\%%", "mail", "100%\n"),
        ("printf '\\n'", "printf '\\n'", ""),
        ("a\\\\b", "a\\\\b", ""),
        ("a\\", "a\\", ""),
        ("cat%", "cat", ""),
        ("cat%%", "cat", "\n"),
    ],
)
def test_the_first_percent_sign_begins_the_standard_input(text: str, command: str, stdin: str) -> None:
    assert split_command(text) == (command, stdin)


def test_variables_apply_to_the_lines_after_them() -> None:
    plan = plan_of("* * * * * a\nX=1\nSHELL=/bin/bash\nHOME=/srv\n* * * * * b\nX=2\nCRON_TZ=Asia/Tokyo\n* * * * * c\n")
    payloads = [planned.definition["payload"] for planned in plan.schedules]
    assert payloads[0] == {"command": "a", "env": {"PATH": "/usr/bin:/bin"}}
    assert payloads[1] == {
        "command": "b",
        "env": {"PATH": "/usr/bin:/bin", "X": "1", "HOME": "/srv"},
        "cwd": "/srv",
        "shell": "/bin/bash",
    }
    assert payloads[2]["env"]["X"] == "2"
    assert [planned.definition["timezone"] for planned in plan.schedules] == ["UTC", "UTC", "Asia/Tokyo"]


def test_the_users_of_a_system_crontab_and_of_the_option_are_in_the_payloads() -> None:
    system = plan_of("0 0 * * * www-data a b\n@daily root:wheel c\n", is_system=True)
    assert [planned.definition["payload"]["user"] for planned in system.schedules] == ["www-data", "root"]
    assert [planned.definition["payload"]["command"] for planned in system.schedules] == ["a b", "c"]
    assert plan_of("0 0 * * * a\n", user="ann").schedules[0].definition["payload"]["user"] == "ann"


def test_what_is_not_carried_over_is_listed_with_its_line_and_reason() -> None:
    plan = plan_of(
        "MAILTO=ops\n@reboot start\n@fortnightly x\n* * * *\n1 5 cron.daily nice run-parts\n5/2 * * * * x\n"
        "CRON_TZ=Mars/Base\n0 0 * * * y\n"
    )
    assert [(entry.source, entry.text) for entry in plan.not_carried_over] == [
        ("c:1", "MAILTO=ops"),
        ("c:2", "@reboot start"),
        ("c:3", "@fortnightly x"),
        ("c:4", "* * * *"),
        ("c:5", "1 5 cron.daily nice run-parts"),
        ("c:6", "5/2 * * * * x"),
        ("c:8", "0 0 * * * y"),
    ]
    assert all(len(entry.reason) > 20 for entry in plan.not_carried_over)
    assert plan.schedules == []


def test_a_user_crontab_that_is_read_as_a_system_crontab_is_an_error_of_each_line() -> None:
    plan = plan_of("0 0 * * * /usr/bin/backup --all\n", is_system=True)
    assert "user form" in plan.not_carried_over[0].reason


def test_a_random_delay_becomes_jitter_with_a_note() -> None:
    (planned,) = plan_of("RANDOM_DELAY=45\n0 0 * * * x\n").schedules
    assert planned.definition["jitter_seconds"] == 45 * 60
    assert "RANDOM_DELAY=45" in planned.notes[0]
    assert "RANDOM_DELAY" not in planned.definition["payload"]["env"]


def test_a_background_command_and_a_zone_of_the_command_are_noted() -> None:
    first, second = plan_of("TZ=Asia/Tokyo\n-0 0 * * * x &\n0 0 * * * a && b\n").schedules
    assert [note.split()[0] for note in first.notes] == ["the", "TZ=Asia/Tokyo", "the"]
    assert len(second.notes) == 1
    assert second.definition["payload"]["env"]["TZ"] == "Asia/Tokyo"


def test_names_are_stable_unique_and_short() -> None:
    twice = "0 0 * * * /usr/bin/backup --all\n0 1 * * * /usr/bin/backup --all\n"
    text = f"{twice}0 2 * * * {'x' * 500}\n0 3 * * * ↯\n"
    names = [planned.name for planned in plan_of(text).schedules]
    assert names[:2] == ["cron.usr-bin-backup-all", "cron.usr-bin-backup-all-2"]
    assert len(names[2]) < 100
    assert names[3] == "cron.command"
    assert [planned.name for planned in plan_of(text).schedules] == names
    assert slug_of("y" * 100) != slug_of("y" * 101)


def test_every_definition_and_payload_is_valid() -> None:
    for text in CRON_D.values():
        for planned in plan_of(text, is_system=True).schedules:
            parse_definition(planned.definition)
            parse_shell_command(planned.definition["payload"])


def test_input_with_percent_signs_is_that_of_the_mailman_file() -> None:
    planned = plan_of(CRON_D["mailman"], is_system=True).schedules[1]
    assert planned.definition["payload"]["command"] == 'mail -s "held'
    assert planned.definition["payload"]["stdin"] == '" owner\nDear owner,\nthere are held messages: 100%\n'
