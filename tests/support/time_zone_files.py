"""Compiled files of the tz database with rules that a test chooses."""

from __future__ import annotations

import struct
import zoneinfo
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everbeat.core.zones import forget_zones

BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"


def compiled_zone(rule: str) -> bytes:
    """Return a TZif file without transitions, whose offsets all follow a rule in the form of the TZ variable."""
    header = b"TZif2" + bytes(15) + struct.pack(">6l", 0, 0, 0, 0, 1, 4)
    block = header + struct.pack(">lbb", 0, 0, 0) + b"LMT\0"
    return block + block + b"\n" + rule.encode() + b"\n"


@contextmanager
def replaced_zone(folder: Path, name: str, rule: str) -> Iterator[Path]:
    """Let zoneinfo find this zone in a folder, and all others where it found them before. Yields the file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(compiled_zone(rule))
    previous = zoneinfo.TZPATH
    zoneinfo.reset_tzpath([str(folder), *previous])
    forget_zones()
    try:
        yield path
    finally:
        zoneinfo.reset_tzpath(previous)
        forget_zones()


def replace_file(path: Path, rule: str) -> None:
    """Replace the file as a package manager does: atomically."""
    new = path.with_suffix(".new")
    new.write_bytes(compiled_zone(rule))
    new.replace(path)
