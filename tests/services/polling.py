"""A node with real long polls, on a store that counts claims and can delay or fail them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from everbeat.core.fairness import ClaimStep, Flow
from everbeat.core.protocol import LeaseClaimRequest
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import ClaimedTask, NewTask
from everbeat.store.base import Store
from everbeat.store.values import ClaimRequest, ClaimResult, ReadyQueue, SubmitResult
from tests.factories import SteppedNode, StoreOverride, make_input

Poll = asyncio.Task[list[ClaimedTask]]


class CountingStore(StoreOverride):
    """Counts claims and flow queries. It can delay the results of claims, delay writes, or make either fail."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.claiming_workers: list[list[str]] = []
        self.flow_queries = 0
        self.ready_checks = 0
        self.error: Exception | None = None
        self.write_error: Exception | None = None
        self.writes: list[Sequence[NewTask]] = []
        self.write_started = asyncio.Event()
        self.may_commit = asyncio.Event()
        self.may_commit.set()
        self.claim_done = asyncio.Event()
        self.may_respond = asyncio.Event()
        self.may_respond.set()

    @property
    def claims(self) -> int:
        return len(self.claiming_workers)

    async def task_flows(self, tenant_id: UUID | None, queues: Sequence[str], **more: Any) -> list[Flow]:
        self.flow_queries += 1
        if self.error is not None:
            raise self.error
        flows: list[Flow] = await self.inner.task_flows(tenant_id, queues, **more)
        if not flows:  # the same result as a claim that found nothing
            self.claim_done.set()
            await self.may_respond.wait()
        return flows

    async def task_ready_queues(self, **more: Any) -> list[ReadyQueue]:
        self.ready_checks += 1
        if self.error is not None:
            raise self.error
        found: list[ReadyQueue] = await self.inner.task_ready_queues(**more)
        return found

    async def task_claim(self, steps: Sequence[ClaimStep], claim_requests: Sequence[ClaimRequest], **more: Any) -> ClaimResult:
        self.claiming_workers.append([claimer.worker for claimer in claim_requests])
        if self.error is not None:
            raise self.error
        claims: ClaimResult = await self.inner.task_claim(steps, claim_requests, **more)
        self.claim_done.set()
        await self.may_respond.wait()
        return claims

    async def task_submit(self, tasks: Sequence[NewTask], **more: Any) -> SubmitResult:
        self.writes.append(tasks)
        self.write_started.set()
        await self.may_commit.wait()
        if self.write_error is not None:
            raise self.write_error
        submitted: SubmitResult = await self.inner.task_submit(tasks, **more)
        return submitted

    def delay_writes(self) -> None:
        """Delay the commits of writes that have been sent."""
        self.write_started.clear()
        self.may_commit.clear()

    def delay_claim_results(self) -> None:
        """Delay the results of claims that the database has executed."""
        self.claim_done.clear()
        self.may_respond.clear()


class PollingNode:
    """A node with real long polls, on the database's own clock."""

    def __init__(self, store: Store) -> None:
        self.store = CountingStore(store)
        self.node = SteppedNode(self.store)
        self.long_polls = self.node.long_polls
        self.open: list[Poll] = []

    def poll(
        self, worker: str = "worker", *, max_tasks: int = 1, wait: float = 30, tenant: UUID = DEFAULT_TENANT, **more: Any
    ) -> Poll:
        claim = LeaseClaimRequest(worker=worker, **{"queues": ["default"], **more}, max=max_tasks, wait_seconds=wait)
        self.open.append(asyncio.create_task(self.node.leases.claim(tenant, claim)))
        return self.open[-1]

    async def waiting_poll(self, worker: str = "worker", **more: Any) -> Poll:
        """Return a poll that has found nothing and waits."""
        poll = self.poll(worker, **more)
        await self.wait_for_claims()
        assert not poll.done()
        return poll

    async def wait_for_claims(self) -> None:
        """Wait until no claim is in progress and all polls have received their results."""
        await run_pending()
        async with asyncio.timeout(20):
            while self.long_polls._checking is not None or any(
                wait_queue.serving is not None for wait_queue in self.long_polls._wait_queues.values()
            ):
                await asyncio.sleep(0.001)
        await run_pending()

    async def submit(self, count: int = 1, *, tenant: UUID = DEFAULT_TENANT, **more: Any) -> list[UUID]:
        """Submit tasks that become ready and wake polls. With a delay, even of zero, tasks are not handed off directly."""
        given = [make_input(type="work", **{"delay_seconds": 0, **more}) for _ in range(count)]
        return await self.node.tasks.submit_batch(tenant, given)

    async def submit_for_handoff(self, count: int = 1, *, tenant: UUID = DEFAULT_TENANT, **more: Any) -> list[UUID]:
        """Submit tasks that may be handed off to a waiting worker."""
        given = [make_input(**{"type": "work", **more}) for _ in range(count)]
        return await self.node.tasks.submit_batch(tenant, given)

    async def states(self, ids: Sequence[UUID]) -> list[tuple[str, int]]:
        tasks = {task.id: task for task in await self.store.task_find(DEFAULT_TENANT, ids)}
        return [(tasks[id_].state.value, tasks[id_].attempt) for id_ in ids]

    async def close(self) -> None:
        self.store.may_respond.set()
        self.store.may_commit.set()
        for poll in self.open:
            poll.cancel()
        await asyncio.gather(*self.open, return_exceptions=True)
        await self.wait_for_claims()


async def run_pending() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def response(poll: Poll, deadline_seconds: float = 20) -> list[ClaimedTask]:
    async with asyncio.timeout(deadline_seconds):
        return await poll


async def ids_of(*long_polls: Poll) -> list[UUID]:
    return [task.id for poll in long_polls for task in await response(poll)]


async def until(condition: Callable[[], bool], deadline_seconds: float = 20) -> None:
    async with asyncio.timeout(deadline_seconds):
        while not condition():
            await asyncio.sleep(0.01)
