"""The commands as a user types them: what they print, and how they fail."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from click.testing import CliRunner

from everbeat.cli.connection import read_key
from everbeat.cli.main import cli
from everbeat.core.errors import SettingsError
from everbeat.core.keys import make_key
from tests.support.postgres import PostgresAdmin
from tests.support.processes import ServerProcess, free_port, wait_until


def test_migrate_applies_migrations_and_lists_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    run = CliRunner()
    assert run.invoke(cli, ["migrate", "--check", "--database-url", url]).exit_code == 1
    first = run.invoke(cli, ["migrate", "--database-url", url])
    assert first.exit_code == 0
    assert "applied 0001_engine" in first.output
    assert "no migration was missing" in run.invoke(cli, ["migrate", "--database-url", url]).output
    assert run.invoke(cli, ["migrate", "--check", "--database-url", url]).exit_code == 0


def test_dev_runs_the_demo_and_stops_cleanly(tmp_path: Path) -> None:
    port = free_port()
    arguments = ("dev", "--demo", "--port", str(port), "--database-url", f"sqlite:///{tmp_path}/dev.db")
    with ServerProcess(*arguments, folder=tmp_path) as process:
        process.wait_ready(f"http://127.0.0.1:{port}/readyz", 30)
        wait_until(
            lambda: process.logs().count("handled after") >= 2, 30, lambda: f"two runs of the demo task: {process.logs()}"
        )
        audit = httpx.get(f"http://127.0.0.1:{port}/v1/audit", trust_env=False).json()
        assert process.terminate() == 0
    assert audit["fired"] >= 1
    assert (audit["missing"], audit["doubled"]) == (0, 0)
    assert "curl" in process.logs()
    assert "Traceback" not in process.logs()


def test_a_taken_port_is_a_clear_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ("serve", "--port", str(port), "--database-url", f"sqlite:///{tmp_path}/x.db")
        with ServerProcess(*arguments, folder=tmp_path) as process:
            assert process.wait_exit(20) == 1
    assert "--port" in process.logs()
    assert "Traceback" not in process.logs()


def test_a_wrong_setting_is_one_line_and_exit_code_one(tmp_path: Path) -> None:
    with ServerProcess("serve", "--host", "0.0.0.0", folder=tmp_path) as process:
        assert process.wait_exit(20) == 1
    assert process.logs().startswith("everbeat: settings: host is 0.0.0.0")
    assert len(process.logs().strip().splitlines()) == 1


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/nowhere/x.db"
    with ServerProcess("serve", "--database-url", url, folder=tmp_path) as process:
        assert process.wait_exit(20) == 1
    assert "nowhere" in process.logs()
    assert "Traceback" not in process.logs()


def test_migrate_refuses_a_database_from_a_newer_version(tmp_path: Path) -> None:
    import apsw

    url = f"sqlite:///{tmp_path}/future.db"
    CliRunner().invoke(cli, ["migrate", "--database-url", url])
    with apsw.Connection(f"{tmp_path}/future.db") as connection:
        connection.execute("INSERT INTO everbeat_migrations (number, name, applied_at) VALUES (999, 'later', 0)")
    with ServerProcess("migrate", "--database-url", url, folder=tmp_path) as process:
        assert process.wait_exit(20) == 1
    assert "run a newer version" in process.logs()


@pytest.mark.parametrize("command", [["migrate"], ["serve", "--port", "1"], ["keys", "list"]])
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://u:hunter2@h:abc/db", "database_url has a port"),
        ("postgresql://u:hunter2/w@h/db", "database_url has a port"),
        ("postgresql://h", "database_url names no database"),
        ("sqlite:///", "database_url names no file"),
    ],
)
def test_a_malformed_database_url_is_one_line_and_exit_code_one(command: list[str], url: str, message: str) -> None:
    found = CliRunner().invoke(cli, [*command, "--database-url", url])
    assert isinstance(found.exception, SettingsError)
    assert message in str(found.exception)
    assert "hunter2" not in str(found.exception)


def test_a_database_that_refuses_the_login_is_one_line_and_exit_code_one(postgres_server: PostgresAdmin) -> None:
    parts = urlsplit(postgres_server.url("everbeat_missing"))
    nobody = parts._replace(netloc=f"nobody@{parts.hostname}:{parts.port}", path="/postgres")
    for url, message in ((parts.geturl(), "does not exist on the server"), (nobody.geturl(), "check the user name")):
        for command in (["migrate"], ["serve", "--port", str(free_port())]):
            process = [sys.executable, "-m", "everbeat", *command, "--database-url", url]
            done = subprocess.run(process, capture_output=True, text=True, timeout=30)
            assert done.returncode == 1, done.stderr
            last = done.stderr.strip().splitlines()[-1]
            assert last.startswith("everbeat: ")
            assert message in last
            assert "Traceback" not in done.stderr


def test_a_key_file_that_others_can_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "key"
    file.write_text(make_key(b"k" * 32))
    for mode, is_named in ((0o600, False), (0o644, True), (0o640, True)):
        file.chmod(mode)
        assert read_key(file) == make_key(b"k" * 32)
        assert (f"chmod 600 {file}" in capsys.readouterr().err) == is_named


def test_a_mistyped_command_names_a_similar_one() -> None:
    result = CliRunner().invoke(cli, ["shedule", "list"])
    assert result.exit_code == 2
    assert "No such command 'shedule'. Did you mean 'schedule'?" in result.output
