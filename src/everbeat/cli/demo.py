"""The demo: a schedule, and a handler that claims and completes its tasks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from everbeat.core.protocol import LeaseClaimRequest, LeaseCompleteRequest, LeaseCompletion
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.server import Node
from everbeat.services.loops import Periodic

_QUEUE = "demo"

DEMO_SCHEDULE: dict[str, Any] = {
    "name": "demo-heartbeat",
    "description": "Fires every five seconds.",
    "cron": "*/5 * * * * *",
    "target": {"kind": "worker", "queue": _QUEUE, "type": "heartbeat"},
}


class DemoHandler(Periodic):
    name = "demo"
    deadline_seconds = 10.0

    def __init__(self, node: Node) -> None:
        super().__init__(0)
        self._node = node

    async def run_once(self, now: datetime | None = None) -> bool:
        claim = LeaseClaimRequest(worker="demo", queues=[_QUEUE], max=100, wait_seconds=5)
        tasks = await self._node.leases.claim(DEFAULT_TENANT, claim, now=now)
        if not tasks:
            return False
        claimed_at = await self._node.store.clock(now=now)
        for task in tasks:
            if task.scheduled_for is not None:
                lag = (claimed_at - task.scheduled_for).total_seconds() * 1000
                click.echo(f"  tick {task.scheduled_for:%H:%M:%S} UTC  handled after {lag:.0f} ms  (task {task.id})")
        results = [LeaseCompletion(id=task.id, fence=task.fence) for task in tasks]
        await self._node.leases.complete(DEFAULT_TENANT, LeaseCompleteRequest(worker="demo", results=results), now=now)
        return True
