"""A node that evaluates alert rules, stepped by hand, and what it has sent."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from everbeat.core.alerts import AlertInput
from everbeat.core.incidents import Incident, IncidentState
from everbeat.core.protocol import TaskInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import Origin, TaskRecord
from everbeat.store.values import TaskFilter
from tests.factories import SteppedNode, seconds
from tests.services.workers import Worker

NOTIFY = {"kind": "worker", "type": "tell", "queue": "alerts"}


class AlertingNode(SteppedNode):
    async def rule(self, name: str = "rule", *, tenant_id: UUID = DEFAULT_TENANT, **given: Any) -> None:
        """Write a rule. Notifications go to workers of the queue `alerts`, one for each incident, unless the rule says more."""
        fields = {"notify": [NOTIFY], "group_seconds": 0, **given}
        decoded = msgspec.json.decode(msgspec.json.encode(fields), type=AlertInput)
        await self.engine.alerts.put(tenant_id, name, decoded, now=self.now)

    async def evaluate(self) -> None:
        """Evaluate all rules until there is nothing more to judge. A node that has sent a heartbeat before sends another."""
        if self.owned or self.renewed > 0:
            await self.renew()
        for _ in range(100):
            if not await self.engine.alert_evaluator.run_once(self.now):
                return
        raise AssertionError("there is always more to judge")

    async def incidents(self, *states: IncidentState) -> list[Incident]:
        """Return the incidents in these states, or all, newest first."""
        return await self.store.incident_list(DEFAULT_TENANT, states=states or tuple(IncidentState), limit=1000)

    async def unresolved(self) -> list[Incident]:
        return await self.incidents(IncidentState.OPEN, IncidentState.ACKNOWLEDGED)

    async def sent(self) -> list[dict[str, Any]]:
        """Return the payloads of the notifications that wait for a worker, oldest first."""
        return [msgspec.json.decode(task.payload) for task in await self.notifications()]

    async def notifications(self) -> list[TaskRecord]:
        scan = await self.store.task_list(DEFAULT_TENANT, TaskFilter(), before=None, limit=1000, live=True)
        return [task for task in reversed(scan.tasks) if task.origin is Origin.ALERT]

    async def events_sent(self) -> list[str]:
        return [one["event"].removeprefix("incident.") for one in await self.sent()]

    async def submit(self, type_: str = "work", **more: Any) -> UUID:
        return (await self.tasks.submit(DEFAULT_TENANT, TaskInput(type=type_, **more), now=self.now))[0].id

    async def run_task(self, *, takes: float = 0.0, fails: bool = False, queue: str = "default") -> None:
        """Let a worker run the next task of a queue."""
        worker = Worker(self)
        task = await worker.claim_one(queues=[queue], lease_seconds=3600)
        self.move_to(self.now + seconds(takes))
        await (worker.fail(task, "it broke", retryable=False) if fails else worker.complete(task))
