"""Makes the disk of chosen processes fail while they run (see diskshim.c). Linux only."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Self

from tests.support.clockshim import build_shim
from tests.support.processes import make_folder


class DiskFault(IntEnum):
    NONE = 0
    FULL = 1
    FSYNC = 2


class DiskShim:
    """The disk fails for processes started with `env()`, for files whose path contains `path_part`, while in `failing`."""

    def __init__(self, library: Path, folder: Path, path_part: str) -> None:
        self._library = library
        self._folder = folder
        self._path_part = path_part
        self._fault_file = folder / "fault"
        self._fault_file.write_bytes(struct.pack("=q", DiskFault.NONE))
        self._fault_file.chmod(0o644)

    @classmethod
    def create(cls, path_part: str) -> Self:
        library = build_shim(Path(__file__).with_suffix(".c"))
        folder = make_folder("everbeat-disk-")
        folder.chmod(0o755)
        return cls(library, folder, path_part)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def env(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "EVERBEAT_DISK_FAULT_FILE": str(self._fault_file),
            "EVERBEAT_DISK_PATH": self._path_part,
        }

    @contextmanager
    def failing(self, fault: DiskFault) -> Iterator[None]:
        self._set(fault)
        try:
            yield
        finally:
            self._set(DiskFault.NONE)

    def _set(self, fault: DiskFault) -> None:
        # Written in place, because running processes have this file mapped.
        with self._fault_file.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", fault))
