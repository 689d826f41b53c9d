from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.clockshim import ClockShim
from tests.support.postgres import PostgresServer

HOUR = 3600.0

CHILD = """
import asyncio, datetime, json, os, sys, time
for _ in sys.stdin:
    before = time.monotonic()
    asyncio.run(asyncio.sleep(0.05))
    print(json.dumps({
        "datetime": datetime.datetime.now(datetime.UTC).timestamp(),
        "time": time.time(),
        "coarse": time.clock_gettime(5),  # CLOCK_REALTIME_COARSE, which Python does not name
        "monotonic": time.monotonic(),
        "slept": time.monotonic() - before,
    }), flush=True)
"""


@pytest.mark.parametrize("offset", [HOUR, -HOUR, 0.25, -0.25])
def test_a_running_python_sees_the_wall_clock_step_and_sleeps_as_long_as_before(clock_shim: ClockShim, offset: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD],
        env=clock_shim.env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for expected in (0.0, offset, 0.0):
            clock_shim.set_offset(expected)
            before, before_monotonic = time.time(), time.monotonic()
            child.stdin.write("\n")
            child.stdin.flush()
            seen = json.loads(child.stdout.readline())
            after, after_monotonic = time.time(), time.monotonic()
            for clock in ("datetime", "time", "coarse"):
                assert before <= seen[clock] - expected <= after, clock
            assert before_monotonic <= seen["monotonic"] <= after_monotonic
            assert 0.05 <= seen["slept"] <= after_monotonic - before_monotonic
        child.stdin.close()


def test_a_running_postgresql_sees_its_clock_step(clock_shim: ClockShim, postgres_binaries: Path) -> None:
    with PostgresServer(env=clock_shim.env()) as server:
        for offset in (0.0, HOUR, -HOUR, 0.0):
            clock_shim.set_offset(offset)
            shifted = server.fetch_value("SELECT now()")
            assert (shifted - datetime.now(UTC)).total_seconds() == pytest.approx(offset, abs=2)
