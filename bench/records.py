"""Records of handlers: 16 bytes each (start time and tag), appended to a file that all processes share.

The size of the file is the number of started handlers, so counting needs no round trip per task.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

_RECORD = struct.Struct("dd")
_WAIT_SECONDS = 120.0
VARIABLE = "EVERBEAT_BENCH_RECORDS"


class Record(NamedTuple):
    at: float
    tag: float


class Writer:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, tag: float) -> None:
        os.write(self._file, _RECORD.pack(time.time(), tag))


class Records:
    """Reads the records."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "records.bin"
        self.path.write_bytes(b"")

    def count(self) -> int:
        return self.path.stat().st_size // _RECORD.size

    def read(self) -> list[Record]:
        return [Record(*fields) for fields in _RECORD.iter_unpack(self.path.read_bytes())]

    async def wait(self, count: int, seconds: float = _WAIT_SECONDS) -> None:
        """Wait until there are `count` records. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while self.count() < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.count():,} of {count:,} handlers started within {seconds:g} s")
            await asyncio.sleep(0.01)
