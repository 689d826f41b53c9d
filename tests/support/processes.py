"""Starts the processes of tests, waits for them and cleans up after them.

A test process may be killed with SIGKILL, and then no fixture and no atexit hook runs. Every process and folder is therefore
also registered with a watchdog: a small child process (this file, run as a script) that reads registrations from a pipe. When
the pipe closes, it kills and removes what is still registered. PR_SET_PDEATHSIG is not used: it fires when the *thread* that
started the child ends, it is lost on a change of user, and it does not reach grandchildren.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import inspect
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar, overload

T = TypeVar("T")

POLL_SECONDS = 0.01
LOG_TAIL_CHARACTERS = 8_000


def free_port() -> int:
    """Return a free loopback port below the ephemeral range.

    An outgoing connection could take an ephemeral port while its server restarts, and a client that retries a closed ephemeral
    port on loopback can even connect to itself.
    """
    source = random.SystemRandom()
    for _ in range(200):
        port = source.randrange(15_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port found")


def wait_until(
    predicate: Callable[[], T], deadline_seconds: float = 10.0, message: str | Callable[[], str] = "condition is true"
) -> T:
    """Poll until the predicate returns a true value, and return this value. After the deadline, fail with the message."""
    give_up_at = time.monotonic() + deadline_seconds
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= give_up_at:
            raise AssertionError(_timed_out(message, deadline_seconds))
        time.sleep(POLL_SECONDS)


@overload
async def wait_until_async(
    predicate: Callable[[], Awaitable[T]], deadline_seconds: float = ..., message: str | Callable[[], str] = ...
) -> T: ...
@overload
async def wait_until_async(
    predicate: Callable[[], T], deadline_seconds: float = ..., message: str | Callable[[], str] = ...
) -> T: ...
async def wait_until_async(
    predicate: Callable[[], Any], deadline_seconds: float = 10.0, message: str | Callable[[], str] = "condition is true"
) -> Any:
    """Like `wait_until`, without blocking the event loop. The predicate may be a plain or an async function."""
    give_up_at = time.monotonic() + deadline_seconds
    while True:
        outcome = predicate()
        value = await outcome if inspect.isawaitable(outcome) else outcome
        if value:
            return value
        if time.monotonic() >= give_up_at:
            raise AssertionError(_timed_out(message, deadline_seconds))
        await asyncio.sleep(POLL_SECONDS)


def _timed_out(message: str | Callable[[], str], deadline_seconds: float) -> str:
    return f"not within {deadline_seconds:g} s: {message if isinstance(message, str) else message()}"


def public_temp() -> Path:
    """Return the system's temporary folder; for root, one that an unprivileged user can also enter."""
    candidates = [Path(tempfile.gettempdir()).resolve(), Path("/tmp"), Path("/var/tmp")]
    if os.geteuid() != 0:
        return candidates[0]
    return next((path for path in candidates if path.is_dir() and open_to_all(path)), candidates[0])


def open_to_all(path: Path) -> bool:
    """Whether all users may enter the path and every folder above it."""
    return all(part.stat().st_mode & 0o001 for part in (path, *path.parents))


def cache_folder() -> Path:
    """Return a folder, kept between runs, for files that are slow to make. All users can read it; only this user can write."""
    folder = public_temp() / f"everbeat-tests-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    # The name is guessable, so another user could have created the folder, and files in it are executed.
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user")
    folder.chmod(0o755)
    return folder


def is_alive(pid: int) -> bool:
    """Whether the process runs (with a negative pid: any process of the group). A zombie that init has not reaped does not."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return pid > 0


class Watchdog:
    """Kills registered processes and removes registered folders when this process ends, even if it is killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill_later(self, pid: int, signal_number: int) -> None:
        """Register a process, or with a negative pid a process group."""
        self._send(f"kill {pid} {signal_number}")

    def forget(self, pid: int) -> None:
        self._send(f"forget {pid}")

    def remove_later(self, folder: Path) -> None:
        self._send(f"remove {folder}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        # One unbuffered write below PIPE_BUF keeps lines whole when several threads register.
        os.write(self._process.stdin.fileno(), line.encode() + b"\n")


@functools.cache
def watchdog() -> Watchdog:
    process = Watchdog()
    atexit.register(process.close)
    return process


def make_folder(prefix: str, root: Path | None = None) -> Path:
    """Create a folder, by default in `public_temp()`. The caller removes it; if the caller is killed, the watchdog does."""
    process = watchdog()
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root or public_temp()))
    process.remove_later(folder)
    return folder


class ServerProcess:
    """`python -m everbeat …` as a real process in a new process group, with its output in a file.

    As a context manager it starts on entry and is killed on exit. `start` may be called again after the process has ended.
    """

    def __init__(
        self,
        *args: str,
        folder: Path,
        env: Mapping[str, str] | None = None,
        name: str = "everbeat",
        command: Sequence[str] = (sys.executable, "-m", "everbeat"),
    ) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        self._command = [*command, *args]
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.kill9()

    def start(self) -> None:
        if self.is_running():
            raise AssertionError(f"{self.name} is already running")
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        watchdog().kill_later(-self._process.pid, signal.SIGKILL)

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def returncode(self) -> int | None:
        return self._started().poll()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def logs(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def wait_ready(self, url: str, deadline_seconds: float = 20.0) -> None:
        """Wait until the URL returns a 2xx. If the process ends first, fail immediately and show its logs."""
        # Imported here because the watchdog runs this file without site-packages.
        import httpx

        with httpx.Client(trust_env=False, timeout=2.0) as client:

            def responds() -> bool:
                if not self.is_running():
                    raise AssertionError(f"{self.name} ended with {self.returncode}{self._log_tail()}")
                try:
                    return client.get(url).is_success
                except httpx.TransportError:
                    return False

            wait_until(responds, deadline_seconds, lambda: f"{url} ready{self._log_tail()}")

    def kill9(self) -> None:
        """Kill the whole process group. Does nothing if it has ended."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            watchdog().forget(-self._process.pid)

    def sigstop(self) -> None:
        self._signal(signal.SIGSTOP)

    def sigcont(self) -> None:
        self._signal(signal.SIGCONT)

    def send_signal(self, signal_number: signal.Signals) -> None:
        """Send a signal to the main process only, as an init system would."""
        self._started().send_signal(signal_number)

    def terminate(self, wait_seconds: float = 15.0) -> int:
        """Send SIGTERM, wait for the process to end and return its exit code. After the deadline, kill it and fail."""
        self._started().send_signal(signal.SIGTERM)
        return self.wait_exit(wait_seconds)

    def wait_exit(self, wait_seconds: float = 15.0) -> int:
        process = self._started()
        try:
            code = process.wait(wait_seconds)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise AssertionError(f"{self.name} did not end within {wait_seconds:g} s{self._log_tail()}") from None
        # Kill the processes that the main process left in its group.
        self.kill9()
        return code

    def _signal(self, signal_number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._started().pid, signal_number)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise AssertionError(f"{self.name} was not started")
        return self._process

    def _log_tail(self) -> str:
        return f"\n--- {self.log_path}\n{self.logs()[-LOG_TAIL_CHARACTERS:]}"


def _watch(registrations: IO[str]) -> None:
    signals: dict[int, int] = {}
    folders: list[str] = []
    for line in registrations:
        verb, _, rest = line.rstrip("\n").partition(" ")
        if verb == "kill":
            target, number = rest.split()
            signals[int(target)] = int(number)
        elif verb == "forget":
            signals.pop(int(rest), None)
        elif verb == "remove":
            folders.append(rest)
    for pid, wanted in signals.items():
        with contextlib.suppress(OSError):
            os.kill(pid, wanted)
    give_up_at = time.monotonic() + 5.0
    while any(map(is_alive, signals)) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    for pid in filter(is_alive, signals):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _watch(sys.stdin)
