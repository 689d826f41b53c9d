"""Contexts: how they are stored, and which server and key a command uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from everbeat.cli.connection import connect
from everbeat.cli.contexts import UnknownContext, contexts_path
from everbeat.cli.main import cli
from everbeat.core.keys import make_key

KEY = make_key(b"k" * 32)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERBEAT_CONFIG_DIR", str(tmp_path / "config"))
    for name in ("EVERBEAT_URL", "EVERBEAT_API_KEY", "EVERBEAT_CONTEXT"):
        monkeypatch.delenv(name, raising=False)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["context", *arguments])


def add_two(tmp_path: Path) -> Path:
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    key_file.chmod(0o600)
    assert invoke("add", "prod", "--url", "https://prod.example", "--key-file", str(key_file)).exit_code == 0
    assert invoke("add", "test", "--url", "https://test.example").exit_code == 0
    return key_file


def test_the_file_is_private_and_stores_no_key(tmp_path: Path) -> None:
    add_two(tmp_path)
    assert contexts_path().stat().st_mode & 0o777 == 0o600
    assert KEY not in contexts_path().read_text()
    assert [line.split() for line in invoke("list").stdout.splitlines()[1:]] == [
        ["*", "prod", "https://prod.example", str(tmp_path / "key")],
        ["test", "https://test.example", "-"],
    ]


def test_the_key_of_a_context_is_used_only_for_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_two(tmp_path)
    chosen = [connect(None, None), connect("https://other.example", None), connect(None, None, "test")]
    assert [(app.url, app._api_key) for app in chosen] == [
        ("https://prod.example", KEY),
        ("https://other.example", None),
        ("https://test.example", None),
    ]
    monkeypatch.setenv("EVERBEAT_URL", "https://variable.example")
    assert connect(None, None).url == "https://variable.example"
    monkeypatch.setenv("EVERBEAT_CONTEXT", "test")
    assert connect(None, None).url == "https://test.example"


def test_another_context_can_be_chosen_and_removed(tmp_path: Path) -> None:
    add_two(tmp_path)
    assert invoke("use", "test").exit_code == 0
    assert '"url": "https://test.example"' in invoke("show", "-o", "json").stdout
    assert invoke("remove", "test").exit_code == 0
    assert "there is no current context" in invoke("show").output
    result = invoke("use", "nothing")
    assert isinstance(result.exception, UnknownContext)
    assert "known are prod" in str(result.exception)
