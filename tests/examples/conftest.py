"""Fixtures for the tests of the examples: a private server, and the examples as processes, started as in their READMEs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.processes import ServerProcess, free_port, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = EXAMPLES.parent / "src"


class ExampleRun:
    """Processes of one test, with their logs in the test's folder. They are killed when the test ends."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.database = f"sqlite:///{folder / 'everbeat.db'}"
        self.url = f"http://127.0.0.1:{free_port()}"
        self.env = {"EVERBEAT_URL": self.url, "PYTHONWARNINGS": "error::ResourceWarning"}
        self._stack = stack
        self._monkeypatch = monkeypatch

    def run(self, example: str, *arguments: str, name: str, module: str = "everbeat") -> ServerProcess:
        """Start `python -m MODULE ARGUMENTS` as if typed in the example's folder."""
        env = {**self.env, "PYTHONPATH": f"{EXAMPLES / example}{os.pathsep}{SOURCE}"}
        command = (sys.executable, "-m", module)
        process = ServerProcess(*arguments, folder=self.folder, env=env, name=name, command=command)
        self._stack.enter_context(process)
        return process

    def serve(self) -> ServerProcess:
        return self._ready(self.run("", "serve", *self.where(), name="server"))

    def dev(self, example: str, app: str) -> ServerProcess:
        process = self._ready(self.run(example, "dev", app, *self.where(), name="dev"))
        _wait_for_log(process, "is running in this process")
        return process

    def workers(self, example: str, app: str, *options: str, count: int = 1) -> list[ServerProcess]:
        """Start worker-1, worker-2 and so on, and wait until all of them claim tasks."""
        names = [f"worker-{number + 1}" for number in range(count)]
        made = [self.run(example, "worker", app, "--name", name, *options, name=name) for name in names]
        for process in made:
            _wait_for_log(process, "worker_started")
        return made

    def script(self, example: str, file: str, *arguments: str) -> str:
        """Run `python FILE ARGUMENTS` and return its output."""
        command = [sys.executable, str(EXAMPLES / example / file), *arguments]
        environment = {**os.environ, **self.env, "PYTHONPATH": f"{EXAMPLES / example}{os.pathsep}{SOURCE}"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def load(self, example: str, module: str) -> Any:
        """Import the example's module into this process, with the server's URL in the environment."""
        self._monkeypatch.setenv("EVERBEAT_URL", self.env["EVERBEAT_URL"])
        spec = importlib.util.spec_from_file_location(f"{example}_{module}", EXAMPLES / example / f"{module}.py")
        assert spec is not None
        assert spec.loader is not None
        loaded: ModuleType = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        self._stack.callback(loaded.eb.close)
        return loaded

    def where(self) -> tuple[str, ...]:
        return ("--port", self.url.rpartition(":")[2], "--database-url", self.database)

    def _ready(self, process: ServerProcess) -> ServerProcess:
        process.wait_ready(f"{self.url}/readyz")
        return process


def _wait_for_log(process: ServerProcess, text: str) -> None:
    wait_until(lambda: text in process.logs(), 20, process.logs)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExampleRun]:
    with contextlib.ExitStack() as stack:
        yield ExampleRun(tmp_path, stack, monkeypatch)
