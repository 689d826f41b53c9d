"""The demo: a schedule, and a tiny handler that consumes its tasks through the same store verbs as any worker."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from everbeat.services.loops import Periodic
from everbeat.store.base import Store

_QUEUE = "demo"

DEMO_SCHEDULE: dict[str, Any] = {
    "name": "demo-heartbeat",
    "description": "Fires every five seconds so that there is something to see.",
    "cron": "*/5 * * * * *",
    "target": {"kind": "worker", "queue": _QUEUE, "type": "heartbeat"},
}


class DemoHandler(Periodic):
    name = "demo"
    deadline_seconds = 10.0

    def __init__(self, store: Store) -> None:
        super().__init__(0.2)
        self._store = store

    async def run_once(self, now: datetime | None = None) -> bool:
        tasks = await self._store.task_claim("demo", [_QUEUE], limit=100, lease_seconds=30, now=now)
        if not tasks:
            return False
        moment = await self._store.clock(now=now)
        for task in tasks:
            if task.scheduled_for is not None:
                late = (moment - task.scheduled_for).total_seconds() * 1000
                click.echo(f"  ♥ {task.scheduled_for:%H:%M:%S} UTC  handled {late:.0f} ms after the tick  (task {task.id})")
        await self._store.task_complete([(task.id, task.fence) for task in tasks], now=now)
        return True
