"""The output of a command: its lines go to the log of the task, up to a limit, and its end is kept for errors and results."""

from __future__ import annotations

import codecs
from collections.abc import Callable

MAX_LOGGED_BYTES = 1_000_000
MAX_TAIL_CHARACTERS = 2_000
_MAX_LINE_CHARACTERS = 4_000
_ERROR_PREFIX = "[stderr] "


class CommandOutput:
    """Passes complete lines to `log`. The lines of standard error begin with [stderr]."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._streams = {False: _LineSplitter(), True: _LineSplitter()}
        self._tail = ""
        self._unlogged = 0
        self.bytes_read = 0

    @property
    def tail(self) -> str:
        """The last lines of the output."""
        return self._tail.strip("\n")

    def add(self, chunk: bytes, is_error: bool) -> None:
        self.bytes_read += len(chunk)
        for line in self._streams[is_error].add(chunk):
            self._add_line(line, is_error)

    def finish(self) -> None:
        """Log the lines without an end, and what was not logged because of the limit."""
        for is_error, stream in self._streams.items():
            for line in stream.finish():
                self._add_line(line, is_error)
        if self._unlogged:
            self._log(f"[{self._unlogged} more bytes of output were not logged; the last lines are:]\n{self.tail}")

    def _add_line(self, line: str, is_error: bool) -> None:
        self._tail = f"{self._tail}{line}\n"[-MAX_TAIL_CHARACTERS:]
        if self.bytes_read > MAX_LOGGED_BYTES:
            self._unlogged += len(line.encode("utf-8", "replace")) + 1
        else:
            self._log(f"{_ERROR_PREFIX}{line}" if is_error else line)


class _LineSplitter:
    """Splits a stream of bytes into lines of text. A line that is too long is split."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""

    def add(self, chunk: bytes) -> list[str]:
        *lines, self._rest = (self._rest + self._decode(chunk)).split("\n")
        while len(self._rest) > _MAX_LINE_CHARACTERS:
            lines.append(self._rest[:_MAX_LINE_CHARACTERS])
            self._rest = self._rest[_MAX_LINE_CHARACTERS:]
        return [part for line in lines for part in _parts(line.removesuffix("\r"))]

    def finish(self) -> list[str]:
        rest, self._rest = self._rest + self._decode(b"", True), ""
        return [rest] if rest else []


def _parts(line: str) -> list[str]:
    return [line[start : start + _MAX_LINE_CHARACTERS] for start in range(0, len(line), _MAX_LINE_CHARACTERS)] or [""]
