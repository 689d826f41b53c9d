"""Runs `everbeat` with a probe that measures how long its event loop is blocked: python -m tests.attack.probe FILE serve …

The probe is a timer of one millisecond. Between two calls it measures the elapsed time, and the CPU time of the thread of the
event loop, which does not depend on the load of the machine. Both maxima are in a file that the tests map into memory.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

_FORMAT = struct.Struct("dd")
_INTERVAL_SECONDS = 0.001


class Blocked(NamedTuple):
    """For how long the event loop was blocked at most, in milliseconds: by the clock, and of that in its own code."""

    elapsed_ms: float
    cpu_ms: float


class ProbeFile:
    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_FORMAT.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _FORMAT.size)

    def read(self) -> Blocked:
        elapsed, cpu = _FORMAT.unpack(self._map[:])
        return Blocked(elapsed * 1000, cpu * 1000)

    def reset(self) -> None:
        self._map[:] = bytes(_FORMAT.size)

    def record(self, elapsed: float, cpu: float) -> None:
        worst_elapsed, worst_cpu = _FORMAT.unpack(self._map[:])
        if elapsed > worst_elapsed or cpu > worst_cpu:
            self._map[:] = _FORMAT.pack(max(elapsed, worst_elapsed), max(cpu, worst_cpu))


def start_probe(file: ProbeFile) -> None:
    """Start the probe in the running event loop."""
    loop = asyncio.get_running_loop()
    previous_time, previous_cpu = time.perf_counter(), time.thread_time()

    def measure() -> None:
        nonlocal previous_time, previous_cpu
        now, cpu = time.perf_counter(), time.thread_time()
        file.record(now - previous_time - _INTERVAL_SECONDS, cpu - previous_cpu)
        loop.call_later(_INTERVAL_SECONDS, measure)
        previous_time, previous_cpu = time.perf_counter(), time.thread_time()

    loop.call_later(_INTERVAL_SECONDS, measure)


def main() -> None:
    from everbeat.cli.main import main as everbeat
    from everbeat.server import Node

    file = ProbeFile(Path(sys.argv.pop(1)))
    log_started = Node._log_started

    def log_started_and_probe(node: Any) -> None:
        log_started(node)
        start_probe(file)

    setattr(Node, "_log_started", log_started_and_probe)  # noqa: B010
    everbeat()


if __name__ == "__main__":
    main()
