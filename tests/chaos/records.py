"""Append-only logs of JSON lines. Each process writes a separate file, and numbers its lines, to notice lost ones."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from pathlib import Path
from typing import Any


class Log:
    """Appends lines to a file. A line is one write, so that a process that is killed leaves no half of it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def write(self, event: str, **fields: Any) -> None:
        with self._lock:
            line = {"seq": next(self._numbers), "at": time.time(), "event": event, **fields}
            os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def log_of_process(folder: Path, name: str) -> Log:
    """Return a log for this process, which may be one of several that run under this name one after the other."""
    return Log(folder / f"{name}-{os.getpid()}-{time.time_ns()}.jsonl")
