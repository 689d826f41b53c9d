"""What differs on macOS and Windows, simulated on Linux: no uvloop, no signal handlers of the loop, no poll, no /dev/shm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from everbeat import Everbeat
from everbeat.testing import Harness, harness
from everbeat.worker import processes
from tests.support.processes import ServerProcess, free_port, wait_until

APP = """
from everbeat import Everbeat
eb = Everbeat(name="portable")
@eb.every("1s")
def tick():
    print("ticked", flush=True)
"""
WITHOUT = """
import asyncio, select, sys
sys.modules["uvloop"] = None
def refuse(*_args): raise NotImplementedError
asyncio.base_events.BaseEventLoop.add_signal_handler = refuse
asyncio.SelectorEventLoop.add_signal_handler = refuse
del select.poll
from everbeat.cli.main import main
sys.argv = ["everbeat", *sys.argv[1:]]
main()
"""


def test_a_node_and_a_worker_run_and_stop_without_uvloop_and_signal_handlers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "without.py").write_text(WITHOUT)
    arguments = ("dev", "app:eb", "--no-reload", "--port", str(free_port()), "--database-url", f"sqlite:///{tmp_path}/a.db")
    dev = ServerProcess(*arguments, folder=tmp_path, command=(sys.executable, str(tmp_path / "without.py")))
    with dev:
        wait_until(lambda: "ticked" in dev.logs(), 20, dev.logs)
        dev.send_signal(signal.SIGINT)
        assert dev.wait_exit(15) == 0
    assert "Traceback" not in dev.logs()


def test_the_harness_needs_no_shared_memory_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "_MEMORY_DIRECTORY", Path("/nowhere"))
    eb = Everbeat("sqlite:///unused.db")

    @eb.task
    def work() -> int:
        return 1

    with Harness(eb) as started:
        handle = work.submit()
        started.run_due()
        assert handle.wait("1s") == 1


def test_child_processes_have_a_group_of_their_own_on_every_system(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes.group_options() == {"process_group": 0}
    monkeypatch.setattr(os, "name", "nt")
    monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 512, raising=False)
    assert processes.group_options() == {"creationflags": 512}
