"""everbeat dev MODULE:APP restarts when the code changes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from everbeat.cli.reload import changed_files, snapshot_of
from tests.support.processes import ServerProcess, free_port, is_alive, wait_until

APP = """
from everbeat import Everbeat
eb = Everbeat(name="reloaded")
@eb.every("1s")
def tick():
    print("version VERSION", flush=True)
"""


def test_it_finds_changes_of_the_python_files_of_an_app(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    for folder in (package, tmp_path / ".git", tmp_path / "venv", tmp_path / "own"):
        folder.mkdir()
    (tmp_path / "own" / "pyvenv.cfg").touch()
    files = [package / "a.py", tmp_path / "b.py"]
    for path in (*files, package / "c.txt", tmp_path / ".git" / "d.py", tmp_path / "venv" / "e.py", tmp_path / "own" / "f.py"):
        path.touch()
    before = snapshot_of(tmp_path)
    assert sorted(before) == sorted(files)
    assert changed_files(before, snapshot_of(tmp_path)) == []
    (package / "a.py").write_text("x = 1")
    (tmp_path / "b.py").unlink()
    (package / "new.py").touch()
    assert changed_files(before, snapshot_of(tmp_path)) == sorted([*files, package / "new.py"])


def test_dev_restarts_the_app_after_a_change_and_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = tmp_path / "app.py"
    module.write_text(APP.replace("VERSION", "1"))
    port = free_port()
    database = f"sqlite:///{tmp_path}/dev.db"
    dev = ServerProcess("dev", "app:eb", "--port", str(port), "--database-url", database, folder=tmp_path, name="dev")
    with dev:
        wait_until(lambda: "version 1" in dev.logs(), 20, dev.logs)
        module.write_text("syntax error")
        wait_until(lambda: "waiting for a change of the code" in dev.logs(), 20, dev.logs)
        assert "app.py changed; restarting" in dev.logs()
        module.write_text(APP.replace("VERSION", "2"))
        wait_until(lambda: "version 2" in dev.logs(), 20, dev.logs)
        assert dev.terminate() == 0


def test_the_app_ends_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(APP.replace('"version VERSION"', '"child", __import__("os").getpid()'))
    database = f"sqlite:///{tmp_path}/dev.db"
    dev = ServerProcess("dev", "app:eb", "--port", str(free_port()), "--database-url", database, folder=tmp_path, name="dev")
    with dev:
        wait_until(lambda: "child " in dev.logs(), 20, dev.logs)
        child = int(dev.logs().rpartition("child ")[2].split()[0])
        assert child != dev.pid
        os.kill(dev.pid, signal.SIGKILL)
        started = time.monotonic()
        wait_until(lambda: not is_alive(child), 10, dev.logs)
        assert time.monotonic() - started < 10
