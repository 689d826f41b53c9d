"""Tables, JSON and YAML, and what is safe to print in a terminal."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest
import yaml

from everbeat.cli.exit_codes import ExitCode, exit_code_of
from everbeat.cli.output import Column, Printer
from everbeat.client.errors import NotReachable, problem_of
from everbeat.core.errors import EverbeatError

ITEMS: list[dict[str, Any]] = [
    {"name": "a", "at": "2026-11-19T02:00:00.000000Z", "on": True},
    {"name": "b\x1b[31m[red]", "at": None, "on": False},
]
COLUMNS = [Column("NAME", "name"), Column("AT", "at"), Column("ON", "on")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_columns_are_aligned_and_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    Printer("table").items(ITEMS, COLUMNS, empty="nothing")
    assert capsys.readouterr().out.splitlines() == [
        "NAME            AT                    ON",
        "a               2026-11-19 02:00:00Z  yes",
        "b\\x1b[31m[red]  -                     no",
    ]


def test_json_and_yaml_have_all_fields(capsys: pytest.CaptureFixture[str]) -> None:
    Printer("json").items(ITEMS, COLUMNS, empty="nothing")
    assert json.loads(capsys.readouterr().out) == ITEMS
    Printer("yaml").items(ITEMS, COLUMNS, empty="nothing")
    assert yaml.safe_load(capsys.readouterr().out) == ITEMS


def test_yaml_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(EverbeatError, match=r"everbeat\[cli\]"):
        Printer("yaml").data({})


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_shows_rich_tables_without_markup_and_honors_no_color(
    monkeypatch: pytest.MonkeyPatch, no_color: str
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    Printer("table").items(
        [{"name": "[red]x\x1b[31m", "state": "dead"}], [Column("NAME", "name"), Column("S", "state")], empty=""
    )
    shown = terminal.getvalue()
    assert "[red]x\\x1b[31m" in shown
    assert ("\x1b[31m" in shown) == (no_color == "")


def test_a_table_that_is_wider_than_the_terminal_is_not_cropped(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    items = [{"id": "x" * 36, "state": "completed", "error": "e" * 70, "at": "2026-11-19T02:00:00.000000Z"}]
    columns = [Column("ID", "id"), Column("STATE", "state"), Column("AT", "at"), Column("ERROR", "error")]
    Printer("table").items(items, columns, empty="")
    shown = terminal.getvalue()
    assert "x" * 36 in shown
    assert "2026-11-19 02:00:00Z" in shown
    assert shown.count("e") >= 70


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EverbeatError("x"), ExitCode.FAILED),
        (problem_of(404, {}), ExitCode.NOT_FOUND),
        (problem_of(401, {}), ExitCode.NOT_ALLOWED),
        (problem_of(422, {}), ExitCode.FAILED),
        (problem_of(503, {}), ExitCode.NOT_REACHABLE),
        (NotReachable("http://x", "refused"), ExitCode.NOT_REACHABLE),
    ],
)
def test_an_error_has_a_stable_exit_code(error: EverbeatError, code: ExitCode) -> None:
    assert exit_code_of(error) == code
