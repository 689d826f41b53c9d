"""Random histories of schedules: every tick is accounted for exactly once, which the audit verifies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from everbeat.core.errors import Conflict, InvalidInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.calendars import CalendarService
from everbeat.services.ledger import LedgerService
from everbeat.store.base import Store
from tests.factories import SteppedNode, claim, complete, ledger, seconds

START = datetime(2026, 3, 28, 22, tzinfo=UTC)  # a few hours before clocks go forward in Europe
TRIGGERS: list[dict[str, Any]] = [
    {"cron": "* * * * *"},
    {"cron": "*/5 * * * *", "timezone": "Europe/Berlin"},
    {"cron": "*/20 1-4 * * *", "timezone": "Europe/Berlin", "dst": {"gap": "skip"}},
    {"cron": "30 2 * * *", "timezone": "Europe/London", "dst": {"gap": "skip", "fold": "both"}},
    {"cron": "H * * * *", "timezone": "America/New_York"},
    {"every_seconds": 90},
    {"every_seconds": 47.5},
    {"rrule": "FREQ=MINUTELY;INTERVAL=3"},
    {"cron": "*/2 * * * *", "calendars": {"exclude": ["closed"]}},
    {"cron": "*/10 * * * *", "calendars": {"only": ["closed"]}},
]
CALENDARS: list[dict[str, Any]] = [
    {"weekdays": ["SUN"]},
    {"weekdays": ["MON"]},
    {"intervals": [{"from": "2026-03-29T00:00:00", "to": "2026-03-29T01:00:00"}]},
]


class History:
    """A node, some schedules, and random operations on them."""

    def __init__(self, store: Store, seed: int) -> None:
        self.random = Random(seed)
        self.node = SteppedNode(store, now=START)
        self.calendars = CalendarService(store, self.node.schedules)
        self.names = [f"job-{number}" for number in range(12)]

    async def create_schedules(self) -> None:
        await self.calendars.put(DEFAULT_TENANT, "closed", CALENDARS[0], now=self.node.now)
        for name in self.names:
            await self.put(name)

    async def put(self, name: str) -> None:
        await self.node.put(name, **self.random.choice(TRIGGERS), **self.policies())

    def policies(self) -> dict[str, Any]:
        return {
            "catch_up": self.random.choice(["latest", "all", "none"]),
            "overlap": self.random.choice(["skip", "allow"]),
            "jitter_seconds": self.random.choice([0, 0, 45]),
            "misfire_grace_seconds": self.random.choice([0, 300, 3600]),
        }

    async def change_schedule(self) -> None:
        name, schedules, now = self.random.choice(self.names), self.node.schedules, self.node.now
        match self.random.randrange(10):
            case 0 | 1:
                await schedules.pause(DEFAULT_TENANT, name, note=None, now=now)
            case 2 | 3:
                await schedules.resume(DEFAULT_TENANT, name, now=now)
            case 4 | 5:
                await self.put(name)
            case 6:
                await schedules.patch(DEFAULT_TENANT, name, self.policies(), now=now)
            case 7:
                await schedules.patch(DEFAULT_TENANT, name, {"enabled": self.random.random() < 0.7}, now=now)
            case 8:
                ends_at = (now + seconds(self.random.randrange(60, 3600))).isoformat()
                await schedules.patch(DEFAULT_TENANT, name, {"ends_at": ends_at}, now=now)
            case _:
                await self.calendars.put(DEFAULT_TENANT, "closed", self.random.choice(CALENDARS), now=now)

    async def advance(self) -> None:
        span = self.random.choice([7, 30, 60, 61, 300, 3000])
        is_down = self.random.random() < 0.2
        if is_down:
            self.node.move_to(self.node.now + seconds(span))
            return
        await self.node.run(self.node.now + seconds(span), by_seconds=max(span / 3, 20))
        if self.random.random() < 0.6:
            await self.finish_tasks()

    async def finish_tasks(self) -> None:
        store, now = self.node.store, self.node.now
        while tasks := await claim(store, limit=1000, now=now):
            await complete(store, *tasks, now=now)


@pytest.mark.parametrize("seed", range(3))
async def test_any_history_leaves_every_tick_accounted_for_once(store: Store, seed: int) -> None:
    history = History(store, seed)
    node = history.node
    await history.create_schedules()
    for _ in range(30):
        await history.advance()
        for _ in range(history.random.randrange(4)):
            try:
                await history.change_schedule()
            except (Conflict, InvalidInput):
                pass  # refused, and nothing changed: nothing to pause, or no tick left
    await node.run(node.now + seconds(30), by_seconds=10)
    await check(history)


async def check(history: History) -> None:
    node = history.node
    audit = await node.audit.run(DEFAULT_TENANT, from_=START, to=None, limit=100, now=node.now)
    assert len(audit.schedules) == len(history.names)
    reader = LedgerService(node.store, node.timelines, late_seconds=5)
    for schedule, count in audit.schedules:
        assert (count.missing, count.doubled) == (0, 0), schedule
        assert count.expected == count.fired + count.skipped.total(), (schedule, count)
        rows = await ledger(node.store, schedule.id)
        assert all((one.until or one.scheduled_for) < other.scheduled_for for one, other in pairwise(rows)), schedule
        assert sum(row.count for row in rows) == count.expected
        entries = await reader.entries(
            schedule, from_=START, to=node.now + timedelta(hours=1), after=None, limit=5000, now=node.now
        )
        assert [entry for entry in entries if entry.outcome == "missing"] == [], schedule
    assert audit.total.fired > 10
    assert not audit.faulty


async def test_a_clock_set_back_between_edits_leaves_every_tick_accounted_for_once(store: Store) -> None:
    history = History(store, 99)
    node = history.node
    await history.create_schedules()
    for number in range(12):
        await history.advance()
        if number % 4 == 3:
            node.now -= timedelta(minutes=40)
        for name in history.names:
            await history.put(name)
    await node.run(node.now + timedelta(hours=2), by_seconds=300)
    await check(history)
