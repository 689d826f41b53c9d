"""Runs a command and reports it to a check: its start, its exit status and the end of its output.

The command is not affected by the monitoring. Its exit status is that of this process, its output is passed on as it comes, and
if the server cannot be reached, a warning is printed and the command runs all the same.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import IO, BinaryIO

from everbeat.client.pings import MAX_BODY_BYTES, PingSender

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_CHUNK_BYTES = 65_536
# A process that the command has left behind may hold its output open. What it still writes is not part of the report.
_OUTPUT_SECONDS = 1.0
_FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


class _Tail:
    """The last bytes of the output, of both streams in the order of their arrival."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._lock = threading.Lock()

    def add(self, chunk: bytes) -> None:
        with self._lock:
            self._bytes += chunk
            del self._bytes[:-MAX_BODY_BYTES]

    def read(self) -> bytes:
        with self._lock:
            return bytes(self._bytes)


def run_and_report(argv: Sequence[str], sender: PingSender | None, *, captures_output: bool = True) -> int:
    """Run a command between a start ping and the report of its exit status, and return this status."""
    if sender is not None:
        sender.send("start", tries=1)  # the command should not wait for a server that is down
    tail = _Tail()
    try:
        status = _run(argv, tail, captures_output)
    except OSError as error:
        status = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
        message = f"{argv[0]}: {error.strerror or error}"
        print(f"everbeat: {message}", file=sys.stderr)  # noqa: T201
        tail.add(message.encode("utf-8", "replace"))
    if sender is not None:
        sender.send(str(status), tail.read())
    return status


def _run(argv: Sequence[str], tail: _Tail, captures_output: bool) -> int:
    pipe = subprocess.PIPE if captures_output else None
    with contextlib.ExitStack() as stack:
        process = subprocess.Popen(list(argv), stdout=pipe, stderr=pipe)
        stack.enter_context(_forwarded_signals(process))
        copies = []
        for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            if source is not None:
                copy = threading.Thread(target=_copy, args=(source, getattr(target, "buffer", None), tail), daemon=True)
                copy.start()
                copies.append(copy)
        code = process.wait()
        for copy in copies:
            copy.join(_OUTPUT_SECONDS)
    return code if code >= 0 else 128 - code


def _copy(source: IO[bytes], target: BinaryIO | None, tail: _Tail) -> None:
    """Forward the output. If it can no longer be written, it is still read, so that the command does not block."""
    read: Callable[[int], bytes] = getattr(source, "read1", source.read)
    while chunk := read(_CHUNK_BYTES):
        tail.add(chunk)
        if target is not None:
            try:
                target.write(chunk)
                target.flush()
            except (OSError, ValueError):
                target = None


@contextlib.contextmanager
def _forwarded_signals(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass signals on to the command. Ctrl-C reaches it from the terminal; this process waits for its end."""

    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            process.send_signal(number)

    previous = {}
    numbers = [getattr(signal, name) for name in _FORWARDED if hasattr(signal, name)]
    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.signal(number, forward) for number in numbers}
        previous[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
