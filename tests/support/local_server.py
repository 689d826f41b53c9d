"""A server that tests start on free loopback ports, as an unprivileged user, with its data in a temporary folder.

One file per system says how it is started: redis_server.py, rabbitmq.py, nats_server.py, seaweedfs.py, moto_server.py,
kafka_cluster.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from tests.support.postgres import clean_environment, identity, unprivileged_account
from tests.support.processes import cache_folder, free_port, make_folder, open_to_all, wait_until, watchdog

START_SECONDS = 90.0


class ServiceMissing(Exception):
    """A server that tests need is not installed on this machine."""


class LocalServer:
    """A context manager that starts the server and stops it. The data survives `kill9` and `start`, but not the context."""

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self) -> None:
        self.port = free_port()
        self._program = self.find()
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def find(cls) -> str:
        """Return the path of the program, or raise ServiceMissing."""
        raise NotImplementedError

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def prepare(self) -> None:
        """Write configuration files into the folder."""

    def environment(self) -> Mapping[str, str]:
        return {}

    def is_ready(self) -> bool:
        """Whether the server answers. Exceptions of the operating system mean that it does not."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._folder = make_folder(f"everbeat-{self.name}-")
        try:
            self.prepare()
            if (account := unprivileged_account()) is not None:
                for path in (self.folder, *self.folder.rglob("*")):
                    os.chown(path, account.pw_uid, account.pw_gid)
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def folder(self) -> Path:
        assert self._folder is not None, f"{self.name} has no folder; use it as a context manager"
        return self._folder

    def start(self) -> None:
        """Start on the same port and data as before, and wait until the server answers."""
        assert self._process is None, f"{self.name} is already running"
        self._process = self.spawn(self.command())
        wait_until(self._has_started, START_SECONDS, lambda: f"{self.name} ready\n{self.logs()[-4000:]}")

    def spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program in a process group of its own, with its output in the log.

        Under root it runs as an unprivileged user, except for a Python in a folder that this user cannot read.
        """
        with (self.folder / "server.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env={**clean_environment(), "HOME": str(self.folder), **self.environment()},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **(identity() if is_readable_by_all(Path(command[0])) else {}),
            )
        watchdog().kill_later(-process.pid, signal.SIGKILL)
        return process

    def kill9(self) -> None:
        """Kill the process group, as a crash or a power failure would. Does nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            kill_group(process)

    def stop(self, deadline_seconds: float = 30.0) -> None:
        """Ask the server to end, and kill it after the deadline."""
        if self._process is not None:
            self._process.send_signal(self.stop_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(deadline_seconds)
        self.kill9()

    def remove(self) -> None:
        self.kill9()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def logs(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")

    def _has_started(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"{self.name} exited during startup:\n{self.logs()[-4000:]}")
        with contextlib.suppress(OSError):
            return self.is_ready()
        return False


def kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    watchdog().forget(-process.pid)


def exchange(port: int, request: bytes) -> bytes:
    """Send bytes to a loopback port and return the first bytes of the reply."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.settimeout(2)
        connection.sendall(request)
        return connection.recv(4096)


def is_readable_by_all(program: Path) -> bool:
    """Whether every user may run the program; the Python of a virtual environment is a link to another folder."""
    return open_to_all(program) and open_to_all(program.resolve())


def find_program(name: str, package: str) -> str:
    """Return the path of a program on this machine, or raise ServiceMissing with how to install it."""
    search = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), "/usr/sbin"))
    found = shutil.which(name, path=search)
    if found is None:
        raise ServiceMissing(f"{name} is not installed: {package}")
    return found


def readable_program(path: str) -> str:
    """Return the path of a program that the unprivileged user can run: itself, or a copy that is kept between runs."""
    program = Path(path).resolve()
    if unprivileged_account() is None or is_readable_by_all(program):
        return str(program)
    copy = cache_folder() / f"{program.name}-{program.stat().st_size}"
    if not copy.exists():
        draft = copy.with_name(f"{copy.name}.{os.getpid()}")
        shutil.copyfile(program, draft)
        draft.chmod(0o755)
        draft.rename(copy)
    return str(copy)
