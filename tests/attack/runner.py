"""Runs attacks on a server and judges what its neighbor notices.

In the long form (`make attack`), each attack alternates with quiet phases of the same length, and is judged by the bounds that
the project promises: the 99th percentile of the neighbor's lag is within 1.5 times that of the quiet phases, and no request
blocks the event loop for longer than 25 ms. In the short form, every attack runs once, and the bounds only show that the server
stays alive, because other tests run on the same machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import NamedTuple

from tests.attack.probe import Blocked
from tests.attack.registry import Attack
from tests.attack.target import Target

LONG_SECONDS, ROUNDS = 4.0, 3
MAX_LAG_RATIO = 1.5
MIN_LAG_MS = 4.0  # a quiet lag below this is taken as this
MAX_BLOCKED_MS = 25.0
MAX_GROWTH_MEGABYTES = 300.0
SHORT_MAX_BLOCKED_MS, SHORT_MAX_HEALTH_SECONDS, SHORT_MAX_LAG_MS = 400.0, 5.0, 5_000.0
_REST_SECONDS = 0.3
_HEALTH_PAUSE_SECONDS = 0.05


class Measured(NamedTuple):
    lags: list[float]
    health_seconds: float
    blocked: Blocked
    megabytes: float

    @property
    def p99(self) -> float:
        return sorted(self.lags)[int(len(self.lags) * 0.99)] if self.lags else 0.0

    def __str__(self) -> str:
        lag = f"lag p99 {self.p99:.1f} ms, worst {max(self.lags):.0f} ms ({len(self.lags)} ticks); " if self.lags else ""
        blocked = f"loop blocked for {self.blocked.elapsed_ms:.0f} ms ({self.blocked.cpu_ms:.0f} ms CPU)"
        return f"{lag}{blocked}; /healthz {self.health_seconds * 1000:.0f} ms; {self.megabytes:.0f} MB"


async def run_short(target: Target, attacks: list[Attack]) -> None:
    """Run every attack once. Fail with all that failed."""
    begins, failed = datetime.now(UTC), []
    for attack in attacks:
        started = time.monotonic()
        try:
            measured = await _measure(target, attack, 0.0)
            assert measured.health_seconds < SHORT_MAX_HEALTH_SECONDS, measured
            assert measured.blocked.cpu_ms < SHORT_MAX_BLOCKED_MS, measured
        except AssertionError as error:
            failed.append(f"{attack.name}: {error}")
        else:
            print(f"{attack.name} ({time.monotonic() - started:.1f} s): {measured}")
    lags = await _lags_since(target, begins)
    assert not failed, "\n".join(failed)
    assert lags
    assert max(lags) < SHORT_MAX_LAG_MS


async def run_long(target: Target, attack: Attack) -> str:
    """Run an attack and quiet phases in turn, and compare them."""
    quiet: list[Measured] = []
    attacked: list[Measured] = []
    for _ in range(ROUNDS):
        for phase, results in ((None, quiet), (attack, attacked)):
            begins = datetime.now(UTC)
            measured = await _measure(target, phase, LONG_SECONDS)
            results.append(measured._replace(lags=await _lags_since(target, begins)))
    before, during = _merged(quiet), _merged(attacked)
    text = f"{attack.name}: {during}\n  quiet: {before}"
    allowed = max(before.p99, MIN_LAG_MS) * MAX_LAG_RATIO
    assert during.p99 <= allowed, text
    assert during.blocked.cpu_ms <= MAX_BLOCKED_MS, text
    # What other processes of the machine delay, they delay in the quiet phases as well.
    assert during.blocked.elapsed_ms <= MAX_BLOCKED_MS + 2 * before.blocked.elapsed_ms, text
    assert during.megabytes - before.megabytes <= MAX_GROWTH_MEGABYTES, text
    return text


def _merged(phases: list[Measured]) -> Measured:
    blocked = Blocked(max(one.blocked.elapsed_ms for one in phases), max(one.blocked.cpu_ms for one in phases))
    return Measured(
        [lag for one in phases for lag in one.lags],
        max(one.health_seconds for one in phases),
        blocked,
        max(one.megabytes for one in phases),
    )


async def _measure(target: Target, attack: Attack | None, seconds: float) -> Measured:
    """Run an attack, or nothing, at least once and for this time, and measure the neighbor."""
    target.probe.reset()
    until = time.monotonic() + seconds
    async with _watched(target) as worst:
        if attack is None:
            await asyncio.sleep(seconds)
        else:
            await attack.run(target)
            while time.monotonic() < until:
                await attack.run(target)
    blocked = target.probe.read()
    assert target.process.is_running(), target.process.logs()[-5000:]
    assert "Traceback" not in target.process.logs(), target.process.logs()[-5000:]
    return Measured([], worst["health"], blocked, worst["memory"])


async def _lags_since(target: Target, begins: datetime) -> list[float]:
    ends = datetime.now(UTC)
    await asyncio.sleep(_REST_SECONDS)
    return await target.neighbor_lags(begins, ends)


@contextlib.asynccontextmanager
async def _watched(target: Target) -> AsyncIterator[dict[str, float]]:
    """Request /healthz again and again, and record the slowest response and the highest memory usage."""
    worst = {"health": 0.0, "memory": target.megabytes()}

    async def watch() -> None:
        while True:
            worst["health"] = max(worst["health"], await target.health_seconds())
            worst["memory"] = max(worst["memory"], target.megabytes())
            await asyncio.sleep(_HEALTH_PAUSE_SECONDS)

    watching = asyncio.create_task(watch())
    try:
        yield worst
        assert not watching.done(), watching.result()
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
