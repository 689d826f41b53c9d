"""A node whose polls wait for real: the store under it counts claims, and holds back or fails what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from everbeat.core.fairness import ClaimStep, Flow
from everbeat.core.protocol import LeaseClaimRequest, TaskInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import ClaimedTask, NewTask
from everbeat.store.base import Store
from everbeat.store.values import ClaimRequest, ClaimResult, SubmitResult
from tests.factories import SteppedNode, StoreOverride

Poll = asyncio.Task[list[ClaimedTask]]


class Counting(StoreOverride):
    """Counts the claims, and can hold back their answers, or writes, or make them fail."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.asked: list[list[str]] = []
        self.looks = 0
        self.error: Exception | None = None
        self.write_error: Exception | None = None
        self.writes: list[Sequence[NewTask]] = []
        self.written = asyncio.Event()
        self.may_commit = asyncio.Event()
        self.may_commit.set()
        self.taken = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    @property
    def claims(self) -> int:
        return len(self.asked)

    async def task_flows(self, tenant_id: UUID | None, queues: Sequence[str], **more: Any) -> list[Flow]:
        self.looks += 1
        if self.error is not None:
            raise self.error
        flows: list[Flow] = await self.inner.task_flows(tenant_id, queues, **more)
        if not flows:  # as good as a claim that found nothing
            self.taken.set()
            await self.may_answer.wait()
        return flows

    async def task_claim(self, shares: Sequence[ClaimStep], claim_requests: Sequence[ClaimRequest], **more: Any) -> ClaimResult:
        self.asked.append([claimer.worker for claimer in claim_requests])
        if self.error is not None:
            raise self.error
        claims: ClaimResult = await self.inner.task_claim(shares, claim_requests, **more)
        self.taken.set()
        await self.may_answer.wait()
        return claims

    async def task_submit(self, tasks: Sequence[NewTask], **more: Any) -> SubmitResult:
        self.writes.append(tasks)
        self.written.set()
        await self.may_commit.wait()
        if self.write_error is not None:
            raise self.write_error
        submitted: SubmitResult = await self.inner.task_submit(tasks, **more)
        return submitted

    def hold_writes(self) -> None:
        """Writes are sent, but the database takes its time."""
        self.written.clear()
        self.may_commit.clear()

    def hold_back(self) -> None:
        """Claims take place, but nobody hears of it yet."""
        self.taken.clear()
        self.may_answer.clear()


class PollingNode:
    """A node whose polls wait for real, on the database's own clock."""

    def __init__(self, store: Store) -> None:
        self.store = Counting(store)
        self.node = SteppedNode(self.store)
        self.long_polls = self.node.long_polls
        self.open: list[Poll] = []

    def poll(
        self, worker: str = "worker", *, most: int = 1, wait: float = 30, tenant: UUID = DEFAULT_TENANT, **more: Any
    ) -> Poll:
        claim = LeaseClaimRequest(worker=worker, **{"queues": ["default"], **more}, max=most, wait_seconds=wait)
        self.open.append(asyncio.create_task(self.node.leases.claim(tenant, claim)))
        return self.open[-1]

    async def idle(self, worker: str = "worker", **more: Any) -> Poll:
        """A poll that has found nothing and waits."""
        poll = self.poll(worker, **more)
        await self.settle()
        assert not poll.done()
        return poll

    async def settle(self) -> None:
        """Until no claim is under way and everybody has heard of its outcome."""
        await turn_over()
        async with asyncio.timeout(20):
            while any(line._serving is not None for line in self.long_polls._wait_queues.values()):
                await asyncio.sleep(0.001)
        await turn_over()

    async def submit(self, count: int = 1, *, tenant: UUID = DEFAULT_TENANT, **more: Any) -> list[UUID]:
        """Tasks that become ready and ring; a delay, even of nothing, keeps them from going to a worker directly."""
        given = [TaskInput(type="work", **{"delay_seconds": 0, **more}) for _ in range(count)]
        return await self.node.tasks.submit_batch(tenant, given)

    async def hand(self, count: int = 1, *, tenant: UUID = DEFAULT_TENANT, **more: Any) -> list[UUID]:
        """Tasks that may go directly to a worker that waits."""
        given = [TaskInput(**{"type": "work", **more}) for _ in range(count)]
        return await self.node.tasks.submit_batch(tenant, given)

    async def states(self, ids: Sequence[UUID]) -> list[tuple[str, int]]:
        tasks = {task.id: task for task in await self.store.task_find(DEFAULT_TENANT, ids)}
        return [(tasks[id_].state.value, tasks[id_].attempt) for id_ in ids]

    async def close(self) -> None:
        self.store.may_answer.set()
        self.store.may_commit.set()
        for poll in self.open:
            poll.cancel()
        await asyncio.gather(*self.open, return_exceptions=True)
        await self.settle()


async def turn_over() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def response(poll: Poll, deadline_seconds: float = 20) -> list[ClaimedTask]:
    async with asyncio.timeout(deadline_seconds):
        return await poll


async def ids_of(*long_polls: Poll) -> list[UUID]:
    return [task.id for poll in long_polls for task in await response(poll)]


async def until(is_so: Callable[[], bool], deadline_seconds: float = 20) -> None:
    async with asyncio.timeout(deadline_seconds):
        while not is_so():
            await asyncio.sleep(0.01)
