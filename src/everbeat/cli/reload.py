"""Restarts `everbeat dev MODULE:APP` when a Python file of the app changes.

The command runs in a child process, so that a restart begins with a fresh interpreter. The child stops as after Ctrl-C: running
handlers finish, and the others are released. Files are found and compared once per interval, because a watcher of the
operating system would be another dependency.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from everbeat.worker.processes import PARENT_VARIABLE, command_of

MAX_FILES = 5000

_INTERVAL_SECONDS = 0.5
_STOP_SECONDS = 45.0
_IGNORED = frozenset({"node_modules", "site-packages", "__pycache__", "venv", "env", "build", "dist"})

Snapshot = Mapping[Path, tuple[int, int]]


def run_reloading(arguments: Sequence[str], folder: Path) -> int:
    """Run `everbeat` with these arguments, and again after each change, until it is stopped. Returns the exit code."""
    return _Reloader(command_of(list(arguments)), folder).run()


def snapshot_of(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return the times and sizes of the Python files in a folder, up to MAX_FILES."""
    found: dict[Path, tuple[int, int]] = {}
    for path in _python_files(folder):
        try:
            status = path.stat()
        except OSError:  # removed meanwhile
            continue
        found[path] = (status.st_mtime_ns, status.st_size)
        if len(found) >= MAX_FILES:
            break
    return found


def _python_files(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in _IGNORED and not (Path(parent, name) / "pyvenv.cfg").exists()
        )
        yield from (Path(parent, name) for name in sorted(files) if name.endswith(".py"))


def changed_files(before: Snapshot, after: Snapshot) -> list[Path]:
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


class _Reloader:
    def __init__(self, command: list[str], folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._stopping = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._has_restarted = False

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        seen = snapshot_of(self._folder)
        self._start()
        while not self._stopping.wait(_INTERVAL_SECONDS):
            if self._child is not None and (code := self._child.poll()) is not None:
                if code == 0 or not self._has_restarted:  # an error at the first start is shown as without reloading
                    return code
                self._child = None
                click.echo("everbeat: waiting for a change of the code", err=True)
            now = snapshot_of(self._folder)
            if changed := changed_files(seen, now):
                seen = now
                self._restart(changed)
        return self._wait()

    def _on_signal(self, number: int, _frame: object) -> None:
        self._stopping.set()
        # Ctrl-C has already reached the child, which is in the same process group. Another SIGINT would be its second signal.
        if number == signal.SIGTERM and self._child is not None and self._child.poll() is None:
            self._child.terminate()

    def _start(self) -> None:
        self._child = subprocess.Popen(self._command, env={**os.environ, PARENT_VARIABLE: str(os.getpid())})

    def _restart(self, changed: Sequence[Path]) -> None:
        self._has_restarted = True
        names = ", ".join(os.path.relpath(path, self._folder) for path in changed[:3])
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        click.echo(f"everbeat: {names}{more} changed; restarting", err=True)
        if self._child is not None:
            self._child.terminate()
            self._wait()
        if not self._stopping.is_set():
            self._start()

    def _wait(self) -> int:
        """Wait for the child. Kill it if it does not stop."""
        if self._child is None:
            return 1
        try:
            return self._child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()


def arguments_of_child() -> list[str]:
    """Return the arguments of this command for the child, which does not watch files itself."""
    return [*sys.argv[1:], "--no-reload"]
