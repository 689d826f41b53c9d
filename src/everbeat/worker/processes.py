"""Starts, restarts and stops several worker processes, for handlers that need more than one core.

All children run the same command. Each has its own process group, so that Ctrl-C signals only the parent, which forwards it
once. A child stops when its parent has ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from time import monotonic
from types import FrameType
from typing import Any

import structlog

from everbeat.worker.signals import EXIT_CODE_FORCED

PARENT_VARIABLE = "EVERBEAT_WORKER_PARENT"
_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS = 0.5, 30.0
_STABLE_SECONDS = 60.0
_POLL_INTERVAL_SECONDS = 0.1
_KILL_AFTER_SECONDS = 3.0


class WorkerProcess:
    """One of the worker processes, and when to restart it."""

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.number = number
        self._command = list(command)
        self._delay = _FIRST_DELAY_SECONDS
        self._started_at = 0.0
        self.start_at = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._started_at = monotonic()
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
        self.process = subprocess.Popen(self._command, env=environment, **group_options())

    def ended(self) -> int | None:
        """Return the exit code if the process has ended since the last call, else None. Sets the time of the restart."""
        code = None if self.process is None else self.process.poll()
        if code is None:
            return None
        self.process = None
        now = monotonic()
        if now - self._started_at > _STABLE_SECONDS:
            self._delay = _FIRST_DELAY_SECONDS
        self.start_at = now + self._delay
        self._delay = min(self._delay * 2, _MAX_DELAY_SECONDS)
        return code

    def send(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


class WorkerProcesses:
    """Runs a process for each command until a signal. `run` returns the exit code of the parent."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._children = [WorkerProcess(number, command) for number, command in enumerate(commands, 1)]
        self._log = structlog.get_logger("everbeat")
        self._signals = 0
        self._signalled = threading.Event()

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        while not self._signals:
            for child in self._children:
                self._restart_if_ended(child)
            self._signalled.wait(_POLL_INTERVAL_SECONDS)
        return self._stop()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        self._signalled.set()

    def _restart_if_ended(self, child: WorkerProcess) -> None:
        if child.process is None:
            if monotonic() >= child.start_at and not self._signals:
                child.start()
            return
        if (code := child.ended()) is not None:
            wait = round(child.start_at - monotonic(), 1)
            self._log.error("worker_process_died", process=child.number, exit_code=code, restart_in_seconds=wait)

    def _stop(self) -> int:
        """Stop all processes and wait for them. A second signal is forwarded and shortens the wait."""
        self._signal_all(signal.SIGTERM)
        codes: list[int] = []
        forwarded, kill_at = 1, float("inf")
        while any(child.process is not None for child in self._children):
            codes += [code for child in self._children if (code := child.ended()) is not None]
            if self._signals > forwarded:
                forwarded, kill_at = self._signals, min(kill_at, monotonic() + _KILL_AFTER_SECONDS)
                self._signal_all(signal.SIGTERM)
            if monotonic() > kill_at:
                self._signal_all(signal.SIGKILL)
            self._signalled.clear()
            self._signalled.wait(_POLL_INTERVAL_SECONDS / 5)
        if forwarded > 1:
            return EXIT_CODE_FORCED
        # A process that receives the signal while it starts is killed by it.
        return 0 if all(code in (0, -signal.SIGTERM) for code in codes) else 1

    def _signal_all(self, number: int) -> None:
        for child in self._children:
            child.send(number)


def group_options() -> dict[str, Any]:
    """Return the options of Popen that give a child a process group of its own. Windows has another one."""
    return {"process_group": 0} if os.name == "posix" else {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}  # type: ignore[attr-defined]


def command_of(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "everbeat", *arguments]


def pop_parent_pid() -> int | None:
    """Return the process id of the parent if WorkerProcesses started this process. Hides it from this process's children."""
    parent = os.environ.pop(PARENT_VARIABLE, "")
    return int(parent) if parent.isdigit() else None
