"""A command that runs under a supervisor: starting it, reading its output, stopping it, and its exit status."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from everbeat.core.shell import ShellCommand
from everbeat.worker.outcomes import CommandFailed

OutputListener = Callable[[bytes, bool], None]

_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))
_CHUNK_BYTES = 65_536
# A process that has left the group of the command may hold its output open for longer. Its output is then lost.
_OUTPUT_SECONDS = 1.0
# What commands inherit from the worker. Its other variables can contain secrets, such as EVERBEAT_API_KEY.
_INHERITED = ("PATH", "LANG", "LANGUAGE", "TZ")


class ExitStatus(NamedTuple):
    """How a command ended: with a code, or by a signal. `stopped_by`: the last signal that was sent to stop it."""

    exit_code: int | None
    signal: int | None
    stopped_by: str | None


class CommandProcess:
    """A started command. Create it with `start`, and always await `wait`, which also reads the rest of the output."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_output: OutputListener,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        assert process.stdout is not None
        assert process.stderr is not None
        self._pumps = [
            asyncio.create_task(_pump(process.stdout, on_output, is_error=False)),
            asyncio.create_task(_pump(process.stderr, on_output, is_error=True)),
        ]

    @classmethod
    async def start(cls, command: ShellCommand, env: Mapping[str, str], on_output: OutputListener) -> CommandProcess:
        """Start a command with these variables in addition to its own. Raises CommandFailed if it cannot be started."""
        own, other = socket.socketpair()
        with other, _closed_on_error(own):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", _SUPERVISOR, str(other.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(other.fileno(),),
                # Not in the group of the worker, so that Ctrl-C and the like reach only the worker.
                start_new_session=True,
                env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
            )
        reader, writer = await asyncio.open_connection(sock=own)
        writer.write(json.dumps(_spec_of(command, env)).encode() + b"\n")
        started = cls(process, reader, writer, on_output)
        try:
            answer = await started._answer()
        except BaseException:
            await started._close()
            raise
        if "error" in answer:
            await started._close()
            raise CommandFailed(f"the command cannot be started: {answer['error']}")
        return started

    def stop(self, kill_after_seconds: float) -> None:
        """Send SIGTERM to the process group of the command, and SIGKILL if it has not ended after this time."""
        self._writer.write(f"stop {kill_after_seconds}\n".encode())

    async def wait(self) -> ExitStatus:
        """Wait until the command has ended and its output has been read."""
        try:
            answer = await self._answer()
            await asyncio.wait(self._pumps, timeout=_OUTPUT_SECONDS)
        finally:
            await self._close()
        return ExitStatus(answer.get("exit_code"), answer.get("signal"), answer.get("stopped_by"))

    async def _answer(self) -> dict[str, Any]:
        line = await self._reader.readline()
        if not line:
            raise CommandFailed("the process that supervises the command has died; it is unknown how the command ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def _close(self) -> None:
        """Close the connection to the supervisor, which ends the command if it still runs."""
        for pump in self._pumps:
            pump.cancel()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        await self._process.wait()
        # There is no public way to close the pipes of a process. They stay open if another process holds them.
        self._process._transport.close()  # type: ignore[attr-defined]
        await asyncio.sleep(0)


@contextlib.contextmanager
def _closed_on_error(connection: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


async def _pump(stream: asyncio.StreamReader, on_output: OutputListener, *, is_error: bool) -> None:
    while chunk := await stream.read(_CHUNK_BYTES):
        on_output(chunk, is_error)


def _spec_of(command: ShellCommand, env: Mapping[str, str]) -> dict[str, Any]:
    inherited = {name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith("LC_")}
    return {
        "argv": command.arguments,
        "env": {**command.env, **env},
        "base_env": {"PATH": os.defpath, "SHELL": command.shell, **inherited},
        "cwd": command.cwd,
        "user": command.user,
        "nice": command.nice,
        "stdin": command.stdin,
        "kill_after_seconds": command.kill_after_seconds,
    }
