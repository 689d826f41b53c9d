"""The commands as a user types them: what they print, and how they fail."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
from click.testing import CliRunner

from everbeat.cli.main import cli
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
