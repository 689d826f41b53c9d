"""The parent process of one command: starts it as the given user, ends its process group, and reports its exit status.

The worker starts this file as a script, with the file descriptor of a socket. It sends the command as one line of JSON, and may
later send `stop SECONDS`. If the worker dies, the socket closes, and the command is ended too. If this process dies, the kernel
ends the command (Linux). A process that the command moved to another process group or session is not ended.

This is a process of its own because only a process with a single thread can safely run code between fork and exec. It imports
as little as possible, because it starts once for each command.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import signal
import sys
import time

# Type checkers take this for true. The import would slow down the start of each command.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.02
_SHELL_SIGNALS = (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


def main(control: int) -> None:
    """Run the command that the worker sends, and report how it ended."""
    wakeup, wakeup_writer = os.pipe()
    os.set_blocking(wakeup_writer, False)
    signal.set_wakeup_fd(wakeup_writer)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Orphans of the command become children of this process, which then knows when the last of the group has ended.
    _set_process_option(_PR_SET_CHILD_SUBREAPER, 1)
    spec = json.loads(_read_line(control))
    try:
        pid = _start(spec, [control, wakeup, wakeup_writer])
    except OSError as error:
        _send(control, {"error": str(error)})
        return
    # The command and its children must be the only ones that hold the output open.
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    _send(control, {"pid": pid})
    try:
        ending = _Command(pid, control, wakeup, spec["kill_after_seconds"]).wait()
    except BaseException:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        raise
    _send(control, ending)


class _Command:
    """A running command, which is the leader of its process group."""

    def __init__(self, pid: int, control: int, wakeup: int, kill_after_seconds: float) -> None:
        self._pid = pid
        self._control: int | None = control
        self._wakeup = wakeup
        self._kill_after_seconds = kill_after_seconds
        self._kill_at: float | None = None
        self._last_signal: str | None = None

    def wait(self) -> dict[str, Any]:
        """Wait until the command has ended, end what is left of its process group, and return its status."""
        while not self._has_ended():
            timeout = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
            sources = [self._wakeup] if self._control is None else [self._wakeup, self._control]
            ready, _, _ = select.select(sources, [], [], timeout)
            if self._wakeup in ready and signal.SIGTERM in os.read(self._wakeup, 4096):
                self._stop(self._kill_after_seconds)
            if self._control is not None and self._control in ready:
                self._read_control(self._control)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._signal(signal.SIGKILL)
                self._kill_at = None
        # The status is read last: until then the process id cannot be used for another group.
        self._signal(signal.SIGTERM, is_requested=False)
        _, status = os.waitpid(self._pid, 0)
        self._end_group()
        code = os.waitstatus_to_exitcode(status)
        ending = {"exit_code": code} if code >= 0 else {"signal": -code}
        return {**ending, "stopped_by": self._last_signal}

    def _has_ended(self) -> bool:
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _read_control(self, control: int) -> None:
        try:
            line = os.read(control, 4096)
        except OSError:  # the worker has died before it has read what this process has sent
            line = b""
        if not line:
            self._control = None
        words = line.split()
        self._stop(float(words[1]) if len(words) > 1 else self._kill_after_seconds)

    def _stop(self, seconds: float) -> None:
        if self._last_signal is None:
            self._signal(signal.SIGTERM)
            self._kill_at = time.monotonic() + seconds

    def _signal(self, number: int, *, is_requested: bool = True) -> None:
        if is_requested:
            self._last_signal = signal.Signals(number).name
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)

    def _end_group(self) -> None:
        kill_at = time.monotonic() + self._kill_after_seconds
        while True:
            _reap_orphans()
            try:
                os.killpg(self._pid, 0 if time.monotonic() < kill_at else signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                return
            if time.monotonic() >= kill_at:
                return
            time.sleep(_POLL_SECONDS)


def _reap_orphans() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _start(spec: dict[str, Any], inherited: list[int]) -> int:
    """Start the command and return its process id. Raises OSError if it cannot be started."""
    errors, errors_writer = os.pipe()
    stdin = _input(spec["stdin"].encode())
    pid = os.fork()
    if pid == 0:
        try:
            os.close(errors)
            for descriptor in inherited:
                os.close(descriptor)
            os.dup2(stdin, 0)
            _become(spec)
        except BaseException as error:
            os.write(errors_writer, _explained(error, spec).encode("utf-8", "replace"))
        finally:
            os._exit(127)
    os.close(errors_writer)
    os.close(stdin)
    message = b""
    while part := os.read(errors, 65_536):
        message += part
    os.close(errors)
    if message:
        os.waitpid(pid, 0)
        raise OSError(message.decode("utf-8", "replace"))
    return pid


def _become(spec: dict[str, Any]) -> None:
    """Turn this process into the command."""
    os.setsid()
    if spec["nice"]:
        os.nice(spec["nice"])
    account = _account(spec["user"])
    if account.pw_uid != os.geteuid():
        os.initgroups(account.pw_name, account.pw_gid)
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    # After the change of user, which clears it.
    _die_with_parent()
    environment = {
        "HOME": account.pw_dir,
        "LOGNAME": account.pw_name,
        "USER": account.pw_name,
        **spec["base_env"],
        **spec["env"],
    }
    _change_directory(spec["cwd"], environment["HOME"])
    signal.set_wakeup_fd(-1)
    for number in _SHELL_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(spec["argv"][0], spec["argv"], environment)


def _account(user: str | None) -> pwd.struct_passwd:
    if user is not None:
        return pwd.getpwnam(user)
    try:
        return pwd.getpwuid(os.geteuid())
    except KeyError:  # in a container, the user id may have no name
        number = os.geteuid()
        return pwd.struct_passwd((str(number), "", number, os.getegid(), "", os.environ.get("HOME", "/"), "/bin/sh"))


def _change_directory(cwd: str | None, home: str) -> None:
    if cwd is not None:
        os.chdir(cwd)
        return
    try:
        os.chdir(home)
    except OSError:
        os.chdir("/")


def _die_with_parent() -> None:
    parent = os.getppid()
    _set_process_option(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has died just now
        os._exit(127)


def _set_process_option(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _explained(error: BaseException, spec: dict[str, Any]) -> str:
    user = spec["user"]
    if isinstance(error, KeyError):
        return f"there is no user {user} on this machine"
    if isinstance(error, PermissionError) and user is not None and os.geteuid() != 0 and error.filename is None:
        return f"cannot run commands as {user}: the worker has to run as root, or as {user}"
    if isinstance(error, OSError):
        name = error.filename if isinstance(error.filename, str) else spec["argv"][0]
        return f"{name}: {os.strerror(error.errno)}" if error.errno else f"{name}: {error}"
    return f"{type(error).__name__}: {error}"


def _input(data: bytes) -> int:
    if not data:
        return os.open(os.devnull, os.O_RDONLY)
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("stdin")
        os.write(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return os.dup(file.fileno())


def _read_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        part = b""
        with contextlib.suppress(OSError):
            part = os.read(descriptor, 65_536)
        if not part:
            os._exit(1)  # the worker died before it sent the command
        line += part
    return line


def _send(descriptor: int, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the worker has died
        os.write(descriptor, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
