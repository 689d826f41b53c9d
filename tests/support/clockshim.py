"""Steps the wall clock of chosen processes while they run (see clockshim.c). Linux only."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.support.processes import cache_folder, make_folder

SOURCE = Path(__file__).with_suffix(".c")


class CompilerMissing(Exception):
    """The clock shim cannot be built on this machine."""


class ClockShim:
    """Shifts the wall clock of processes started with `env()` by the last `set_offset`. Monotonic time does not change.

    The folder is readable by all users, because PostgreSQL may run as another user. Use it as a context manager.
    """

    def __init__(self, library: Path, folder: Path) -> None:
        self._library = library
        self._folder = folder
        self._offset_file = folder / "offset"
        self._offset_file.write_bytes(struct.pack("=q", 0))
        self._offset_file.chmod(0o644)

    @classmethod
    def create(cls) -> Self:
        library = build_shim(SOURCE)
        folder = make_folder("everbeat-clock-")
        folder.chmod(0o755)
        return cls(library, folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "EVERBEAT_CLOCK_OFFSET_FILE": str(self._offset_file)}

    def set_offset(self, seconds: float) -> None:
        """Shift the clock of every process started with `env()`, effective immediately."""
        # Written in place, because running processes have this file mapped.
        with self._offset_file.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", round(seconds * 1_000_000)))


def build_shim(source: Path) -> Path:
    """Compile a library for LD_PRELOAD. It is kept between runs."""
    if sys.platform != "linux":
        raise CompilerMissing("the shims need Linux (LD_PRELOAD)")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise CompilerMissing("no C compiler (cc, gcc or clang) to build the shims")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    library = cache_folder() / f"{source.stem}-{digest}.so"
    if not library.exists():
        draft = library.with_suffix(f".{os.getpid()}")
        command = [compiler, "-O2", "-Wall", "-shared", "-fPIC", "-o", str(draft), str(source), "-ldl"]
        subprocess.run(command, check=True)
        draft.chmod(0o755)
        draft.rename(library)
    return library
