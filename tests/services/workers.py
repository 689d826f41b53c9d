"""A simulated worker for tests: it calls a stepped node as a worker would over HTTP, at the node's `now`."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from everbeat.core.protocol import (
    ErrorInput,
    Lease,
    LeaseClaimRequest,
    LeaseCompleteRequest,
    LeaseCompletion,
    LeaseFailRequest,
    LeaseFailure,
    LeaseHeartbeat,
    LeaseHeartbeatRequest,
    LeaseHeartbeatResult,
    LeaseReleaseRequest,
    LeaseResult,
    Progress,
    raw_json,
)
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import Attempt, ClaimedTask, TaskRecord
from tests.factories import SteppedNode, make_input

LeasedTaskRef = ClaimedTask | Lease


class Worker:
    """A worker of one node; `tenant_id` is the tenant of its key."""

    def __init__(self, node: SteppedNode, name: str = "worker", *, tenant_id: UUID = DEFAULT_TENANT) -> None:
        self.node = node
        self.name = name
        self.tenant_id = tenant_id

    async def claim(
        self, max_tasks: int = 1, *, queues: list[str] | None = None, lease_seconds: float = 30, **more: Any
    ) -> list[ClaimedTask]:
        claim = LeaseClaimRequest(
            worker=self.name, queues=queues or ["default"], max=max_tasks, lease_seconds=lease_seconds, **more
        )
        return await self.node.leases.claim(self.tenant_id, claim, now=self.node.now)

    async def claim_one(self, **more: Any) -> ClaimedTask:
        (task,) = await self.claim(1, **more)
        return task

    async def heartbeat(
        self, task: LeasedTaskRef, *, fraction: float | None = None, message: str | None = None, log: str | None = None
    ) -> LeaseHeartbeatResult:
        progress = None if fraction is None and message is None else Progress(fraction=fraction, message=message)
        heartbeat = LeaseHeartbeatRequest(
            worker=self.name, leases=[LeaseHeartbeat(id=task.id, fence=task.fence, progress=progress, log=log)]
        )
        (response,) = await self.node.leases.heartbeat(self.tenant_id, heartbeat, now=self.node.now)
        return response

    async def complete(self, *tasks: LeasedTaskRef, result: Any = None) -> list[str]:
        results = [LeaseCompletion(id=task.id, fence=task.fence, result=raw_json(result)) for task in tasks]
        completion = LeaseCompleteRequest(worker=self.name, results=results)
        responses = await self.node.leases.complete(self.tenant_id, completion, now=self.node.now)
        assert [response.id for response in responses] == [task.id for task in tasks]
        return [response.status for response in responses]

    async def fail(
        self, task: LeasedTaskRef, message: str = "it broke", *, kind: str | None = None, trace: str | None = None, **more: Any
    ) -> LeaseResult:
        error = ErrorInput(message=message, kind=kind, trace=trace)
        failures = LeaseFailRequest(
            worker=self.name, failures=[LeaseFailure(id=task.id, fence=task.fence, error=error, **more)]
        )
        (response,) = await self.node.leases.fail(self.tenant_id, failures, now=self.node.now)
        return response

    async def release(self, *tasks: LeasedTaskRef) -> list[str]:
        leases = [Lease(id=task.id, fence=task.fence) for task in tasks]
        responses = await self.node.leases.release(
            self.tenant_id, LeaseReleaseRequest(worker=self.name, leases=leases), now=self.node.now
        )
        return [response.status for response in responses]


async def submit(node: SteppedNode, type_: str = "work", *, tenant_id: UUID = DEFAULT_TENANT, **more: Any) -> TaskRecord:
    key = more.pop("key", None)
    return (await node.tasks.submit(tenant_id, make_input(type=type_, **more), key=key, now=node.now))[0]


async def submit_many(node: SteppedNode, count: int, **more: Any) -> list[UUID]:
    tasks = [make_input(type="work", **more) for _ in range(count)]
    return await node.tasks.submit_batch(DEFAULT_TENANT, tasks, now=node.now)


async def get(node: SteppedNode, task: TaskRecord | ClaimedTask) -> TaskRecord:
    return await node.tasks.get(DEFAULT_TENANT, task.id)


async def attempts(node: SteppedNode, task: TaskRecord | ClaimedTask) -> list[Attempt]:
    return await node.tasks.attempts(DEFAULT_TENANT, task.id)


async def outcomes_of(node: SteppedNode, task: TaskRecord | ClaimedTask) -> list[tuple[int, str | None]]:
    """Return the number and the outcome of each attempt."""
    return [(one.attempt, one.outcome and one.outcome.value) for one in await attempts(node, task)]


async def finish_ready_tasks(node: SteppedNode, now: datetime | None = None, *, max_tasks: int = 500) -> int:
    """Claim and complete all ready tasks, and return their number."""
    worker, count = Worker(node), 0
    node.move_to(now or node.now)
    while tasks := await worker.claim(max_tasks):
        assert set(await worker.complete(*tasks)) == {"ok"}
        count += len(tasks)
    return count


def error_of(task: TaskRecord | Attempt) -> dict[str, Any]:
    assert task.error is not None
    decoded: dict[str, Any] = msgspec.json.decode(task.error)
    return decoded
