"""A scan concurrent with a firing: schedules taken for the firing are not loaded again from the state that the scan read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from everbeat.clock import DatabaseClock
from everbeat.core.schedules import CatchUp
from everbeat.core.ticks import Outcome
from everbeat.core.timeline import TimelineCache
from everbeat.services.ownership import Ownership
from everbeat.services.publisher import ChangePublisher
from everbeat.services.ticker import Ticker
from everbeat.store.base import Store
from everbeat.store.values import DueScan, DueSchedule, Fired, FireResult, Firing
from tests.factories import every


class _UncommittedFiringStore:
    """A store whose scans return a schedule in its state before a firing that is not yet committed."""

    def __init__(self, due: DueSchedule) -> None:
        self._due = due
        self.scans = asyncio.Semaphore(0)
        self.fired: list[UUID] = []

    def subscribe(self, _listener: Any) -> None: ...

    async def schedule_due(self, *_: Any, **__: Any) -> DueScan:
        self.scans.release()
        return DueScan(datetime.now(UTC), [self._due], {})

    async def tick_fire(self, _node: UUID, firings: Sequence[Firing], **_: Any) -> FireResult:
        await asyncio.wait_for(self.scans.acquire(), 5)
        for _round in range(20):  # until the scan in progress has loaded its result
            await asyncio.sleep(0)
        self.fired += [firing.schedule_id for firing in firings]
        now = datetime.now(UTC)
        fired = [Fired(firing.schedule_id, Outcome.FIRED, None, now) for firing in firings]
        return FireResult(now, fired, frozenset({"default"}), frozenset())


async def test_a_scan_during_a_firing_does_not_load_its_schedules_again() -> None:
    now = datetime.now(UTC)
    tick = now - timedelta(seconds=1)
    rule = every(3600)
    due = DueSchedule(uuid4(), UUID(int=0), 0, 1, tick - timedelta(hours=1), tick, tick, CatchUp.LATEST, 3600, 0, rule)
    store, owned, clock = _UncommittedFiringStore(due), {0: 1}, DatabaseClock()
    clock.observe(clock.monotonic(), now)
    ownership = SimpleNamespace(current=lambda: dict(owned), node_id=uuid4(), lag_seconds=None, fired=0)
    ticker = Ticker(cast(Store, store), cast(Ownership, ownership), clock, TimelineCache(), ChangePublisher(cast(Store, store)))
    await ticker.run_once()
    await ticker.wait()
    await store.scans.acquire()
    owned[1] = 1  # a new partition: the next iteration scans and fires immediately
    assert await ticker.run_once()
    assert not await ticker.run_once()
    assert store.fired == [due.id]
    await ticker.close()


class _CountingStore:
    """A store that counts its scans, and fires everything."""

    def __init__(self, due: DueSchedule, clock: DatabaseClock) -> None:
        self._due = due
        self._clock = clock
        self.scans = 0

    def subscribe(self, _listener: Any) -> None: ...

    async def schedule_due(self, *_: Any, **__: Any) -> DueScan:
        self.scans += 1
        return DueScan(self._clock.now(), [self._due] if self.scans == 1 else [], {})

    async def tick_fire(self, _node: UUID, firings: Sequence[Firing], **_: Any) -> FireResult:
        now = self._clock.now()
        return FireResult(now, [Fired(one.schedule_id, Outcome.FIRED, None, now) for one in firings], frozenset(), frozenset())


@pytest.mark.parametrize(("late_seconds", "scans"), [(0.05, 2), (5.0, 1)], ids=["a little late", "well behind"])
async def test_a_slightly_late_node_scans_ahead_while_it_fires(late_seconds: float, scans: int) -> None:
    elapsed = [100.0]
    clock = DatabaseClock(lambda: elapsed[0])
    clock.observe(elapsed[0], datetime.now(UTC))
    tick = clock.now() + timedelta(seconds=4)
    due = DueSchedule(uuid4(), UUID(int=0), 0, 1, tick - timedelta(hours=1), tick, tick, CatchUp.LATEST, 3600, 0, every(3600))
    store = _CountingStore(due, clock)
    ownership = SimpleNamespace(current=lambda: {0: 1}, node_id=uuid4(), lag_seconds=None, fired=0)
    ticker = Ticker(cast(Store, store), cast(Ownership, ownership), clock, TimelineCache(), ChangePublisher(cast(Store, store)))
    await ticker.run_once()
    await ticker.wait()
    elapsed[0] += 4 + late_seconds
    assert await ticker.run_once()  # fires it, and scans concurrently
    await asyncio.sleep(0)
    assert store.scans == scans
    await ticker.close()
