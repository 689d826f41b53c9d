"""Which loops count as stuck, failing or blocked; the watchdog reports blocked loops, and /healthz names the reason."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from everbeat.config import Settings
from everbeat.core.errors import StoreUnavailable
from everbeat.server import EmbeddedNode
from everbeat.services import loops
from everbeat.services.events import Event, LoopBlocked
from everbeat.services.loops import LoopMonitor, LoopRunner, Periodic
from everbeat.watchdog import Watchdog


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def monitor(clock: Clock) -> LoopMonitor:
    return LoopMonitor(clock)


def test_a_loop_that_never_ran_is_not_stuck(monitor: LoopMonitor) -> None:
    assert monitor.problem("ticker", 45) is None


def test_a_loop_is_stuck_when_it_begins_no_iteration(monitor: LoopMonitor, clock: Clock) -> None:
    monitor.note_iteration("ticker", 30)
    monitor.note_end("ticker", None)
    clock.now += 44
    assert monitor.problem("ticker", 45) is None
    clock.now += 8
    assert monitor.problem("ticker", 45) == "the loop ticker has been stuck for 52 seconds"


def test_a_loop_that_only_fails_is_reported_until_it_succeeds(monitor: LoopMonitor, clock: Clock) -> None:
    for _ in range(30):
        monitor.note_iteration("ticker", 30)
        monitor.note_end("ticker", ValueError("secret"))
        clock.now += 2
    assert monitor.problem("ticker", 45) == "the loop ticker has failed for 60 seconds: ValueError"
    monitor.note_iteration("ticker", 30)
    monitor.note_end("ticker", None)
    assert monitor.problem("ticker", 45) is None


def test_an_unavailable_database_is_not_a_fault_of_the_process(monitor: LoopMonitor, clock: Clock) -> None:
    for _ in range(30):
        monitor.note_iteration("ticker", 30)
        monitor.note_end("ticker", StoreUnavailable("gone"))
        clock.now += 2
    assert monitor.problem("ticker", 45) is None


def test_an_iteration_after_its_deadline_is_overdue(monitor: LoopMonitor, clock: Clock) -> None:
    monitor.note_iteration("ticker", 30)
    clock.now += 34
    assert monitor.overdue() == {}
    clock.now += 2
    assert monitor.overdue() == {"ticker": 36}
    monitor.note_end("ticker", TimeoutError())
    assert monitor.overdue() == {}


class Stubborn(Periodic):
    """A loop whose iteration ignores its deadline until it is released."""

    name = "ticker"
    deadline_seconds = 0.05

    def __init__(self) -> None:
        super().__init__(60)
        self.released = asyncio.Event()

    async def run_once(self, now: datetime | None = None) -> bool:
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                continue
        return False


async def _until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_the_watchdog_reports_a_loop_that_ignores_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "_OVERDUE_SECONDS", 0.1)
    events: list[Event] = []
    monitor, stubborn = LoopMonitor(), Stubborn()
    watchdog = Watchdog(events.append, monitor)
    runner = LoopRunner(stubborn, events.append, monitor)
    try:
        await _until(lambda: any(isinstance(event, LoopBlocked) for event in events))
        (blocked,) = [event for event in events if isinstance(event, LoopBlocked)]
        assert blocked.loop == "ticker"
        assert blocked.seconds > 0.15
    finally:
        watchdog.stop()
        stubborn.released.set()
        await runner.stop(1)


async def test_a_frozen_tick_loop_makes_healthz_fail_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everbeat.server._STUCK_AFTER_SECONDS", 0.5)
    node = EmbeddedNode(Settings(database_url=f"sqlite:///{tmp_path}/everbeat.db", lease_seconds=1))
    release = asyncio.Event()
    await node.start()
    transport = httpx.ASGITransport(node.asgi)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.get("/healthz")).json()["status"] == "ok"

            async def frozen(now: datetime | None = None) -> bool:
                await release.wait()
                return False

            monkeypatch.setattr(node.engine.ticker, "run_once", frozen)
            node.engine.ticker._woken.set()
            await _until(lambda: not node.health().is_alive)
            response = await client.get("/healthz")
            assert (response.status_code, response.json()["status"]) == (503, "stuck")
            assert response.json()["reason"].startswith("the loop ticker has been stuck for ")
            release.set()
            await _until(lambda: node.health().is_alive)
    finally:
        release.set()
        await node.stop()


async def test_a_failing_tick_loop_makes_healthz_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everbeat.server._STUCK_AFTER_SECONDS", 0.5)
    monkeypatch.setattr(loops, "_MAX_DELAY", 0.05)
    node = EmbeddedNode(Settings(database_url=f"sqlite:///{tmp_path}/everbeat.db", lease_seconds=1))
    await node.start()
    try:

        async def failing(now: datetime | None = None) -> bool:
            raise RuntimeError("broken")

        monkeypatch.setattr(node.engine.ticker, "run_once", failing)
        node.engine.ticker._woken.set()
        await _until(lambda: not node.health().is_alive)
        assert "RuntimeError" in node.health().detail["reason"]
    finally:
        await node.stop()


def test_a_loop_that_ran_is_known_by_its_age(monitor: LoopMonitor, clock: Clock) -> None:
    monitor.note_iteration("ticker", 30)
    clock.now += 3
    assert monitor.ages() == {"ticker": 3}
