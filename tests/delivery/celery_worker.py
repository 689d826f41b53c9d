"""A real Celery worker for tests: a process with a pool, in a process group of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.support.processes import wait_until, watchdog

ROOT = Path(__file__).parents[2]


class CeleryWorker:
    """A context manager that starts a worker of tests/delivery/celery_app.py and kills it."""

    def __init__(self, broker_url: str, folder: Path, *, concurrency: int = 2, **environment: str) -> None:
        self.effects_path = folder / "effects"
        self._log_path = folder / "celery.log"
        self._environment = {"CELERY_BROKER": broker_url, "EFFECTS": str(self.effects_path), **environment}
        self._concurrency = concurrency
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.effects_path.touch()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill9()

    def start(self) -> None:
        """Start the worker and wait until it consumes."""
        before = self.log().count(" ready.")
        command = [sys.executable, "-m", "celery", "-A", "tests.delivery.celery_app", "worker", "--loglevel", "INFO"]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--concurrency", str(self._concurrency), "--without-gossip", "--without-mingle"],
                env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", **self._environment},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        watchdog().kill_later(-self._process.pid, signal.SIGKILL)
        wait_until(lambda: self.log().count(" ready.") > before, 60, lambda: f"the worker is ready\n{self.log()[-3000:]}")

    def kill9(self) -> None:
        """Kill the worker and its pool."""
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            watchdog().forget(-process.pid)

    def log(self) -> str:
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def effects(self) -> list[list[str]]:
        """Return what the tasks have written: the words of each line."""
        return [line.split(" ") for line in self.effects_path.read_text().splitlines()]
