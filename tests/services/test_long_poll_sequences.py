"""Polls under random interleavings of asking, leaving, submitting and failing: each task reaches one worker, none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, cast
from uuid import UUID

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.core.errors import StoreUnavailable
from everbeat.core.fairness import ClaimStep, Flow
from everbeat.core.protocol import LeaseClaimRequest, TaskInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import ClaimedTask, NewTask, Origin
from everbeat.services.long_polls import LongPolls
from everbeat.services.publisher import ChangePublisher
from everbeat.services.tasks import TaskService
from everbeat.store.base import Store
from everbeat.store.task_changes import submitted_changes
from everbeat.store.values import ClaimRequest, ClaimResult, Listener, Notice, SubmitResult
from tests.factories import NOW, seconds

QUEUES = ["a", "b", "c"]


class Shelf:
    """The little of a store that polls need, in memory; between asking and doing, and doing and answering, others run."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.ready: list[NewTask] = []
        self.held_by: dict[UUID, str] = {}
        self.committed: set[UUID] = set()
        self.is_shaky = True
        self.claims = 0

    def subscribe(self, _listener: Listener) -> None: ...
    def publish(self, _notice: Notice) -> None: ...

    async def _linger(self) -> None:
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)
        if self.is_shaky and self.random.random() < 0.05:
            raise StoreUnavailable("away")

    async def task_flows(self, _tenant: UUID | None, queues: Sequence[str], **_more: Any) -> list[Flow]:
        await self._linger()
        flows = {_flow(task) for task in self.ready if task.queue in queues}
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)
        return sorted(flows)

    async def task_claim(
        self, shares: Sequence[ClaimStep], claim_requests: Sequence[ClaimRequest], **_more: Any
    ) -> ClaimResult:
        self.claims += 1
        await self._linger()
        free = [claimer.worker for claimer in claim_requests for _ in range(claimer.limit)]
        taken: dict[str, list[ClaimedTask]] = {claimer.worker: [] for claimer in claim_requests}
        claimed_counts: list[int] = []
        for share in shares:
            fitting = [task for task in self.ready if (task.queue, task.type) in share.queue_types][
                : min(share.limit, len(free))
            ]
            for task in fitting:
                self.ready.remove(task)
                worker = self.held_by[task.id] = free.pop(0)
                taken[worker].append(_claimed(task))
            claimed_counts.append(len(fitting))
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)
        return ClaimResult(list(taken.values()), [share.limit for share in shares], claimed_counts)

    async def task_submit(self, tasks: Sequence[NewTask], **_more: Any) -> SubmitResult:
        await self._linger()
        for task in tasks:
            self.committed.add(task.id)
            if task.lease_owner is None:
                self.ready.append(task)
            else:
                self.held_by[task.id] = task.lease_owner
        for _ in range(self.random.randrange(3)):
            await asyncio.sleep(0)
        return SubmitResult(NOW, [task.id for task in tasks], frozenset(), frozenset(), submitted_changes(tasks, NOW))


def _flow(task: NewTask) -> Flow:
    return Flow(task.queue, task.tenant_id, task.priority, task.fair_key, task.type)


def _claimed(task: NewTask) -> ClaimedTask:
    return ClaimedTask(
        id=task.id,
        type=task.type,
        queue=task.queue,
        payload=msgspec.Raw(b"{}"),
        attempt=1,
        max_attempts=3,
        fence=1,
        lease_until=NOW + seconds(30),
        lease_seconds=30,
        scheduled_for=None,
        schedule=None,
        schedule_id=None,
        origin=Origin.SUBMIT,
        timeout_seconds=60,
        traceparent=None,
    )


class Walk:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.shelf = Shelf(random)
        store = cast(Store, self.shelf)
        publisher = ChangePublisher(store)
        self.long_polls = LongPolls(store, publisher, self.release)
        self.tasks = TaskService(store, self.long_polls, publisher)
        self.open: dict[str, asyncio.Task[list[ClaimedTask]]] = {}
        self.submits: list[asyncio.Task[Any]] = []
        self.delivered: dict[UUID, str] = {}
        self.given_back: set[UUID] = set()

    async def release(self, _tenant: UUID | None, tasks: list[ClaimedTask]) -> None:
        await asyncio.sleep(0)
        for task in tasks:
            del self.shelf.held_by[task.id]
            self.given_back.add(task.id)
            queue = task.queue
            self.shelf.ready.append(_ready(task))
            self.long_polls.wake([queue])

    async def ask(self, name: str, most: int, wait: float) -> list[ClaimedTask]:
        queues = self.random.sample(QUEUES, self.random.randint(1, 2))
        tasks = await self.long_polls.ask(
            DEFAULT_TENANT, LeaseClaimRequest(worker=name, queues=queues, max=most, wait_seconds=wait)
        )
        assert len(tasks) <= most
        for task in tasks:
            assert task.queue in queues
            assert task.id not in self.delivered, "one task, one worker"
            assert self.shelf.held_by[task.id] == name
            self.delivered[task.id] = name
        return tasks

    async def step(self, number: int) -> None:
        random = self.random
        match random.randrange(10):
            case 0 | 1 | 2 | 3:
                wait = random.choice([0, 0.001, 30, 30, 30])
                call = self.ask(f"worker-{number}", random.choice([1, 1, 3, 1000]), wait)
                self.open[f"worker-{number}"] = asyncio.create_task(call)
            case 4 | 5 | 6:
                for _ in range(random.randint(1, 3)):
                    queue, delay = random.choice(QUEUES), random.choice([None, 0])
                    given = TaskInput(type="work", queue=queue, delay_seconds=delay)
                    self.submits.append(asyncio.create_task(self.tasks.submit(DEFAULT_TENANT, given)))
            case 7:
                if self.open:
                    self.open[random.choice(list(self.open))].cancel()
            case 8:
                await self.long_polls.run_once()
            case _:
                self.long_polls.wake([random.choice(QUEUES)])
        for _ in range(random.randrange(5)):
            await asyncio.sleep(0)

    async def settle(self) -> None:
        async with asyncio.timeout(10):
            while any(line._serving is not None or line.reserved for line in self.long_polls.wait_queues()):
                await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)

    async def finish(self) -> None:
        self.shelf.is_shaky = False
        await asyncio.gather(*self.submits, return_exceptions=True)
        await self.settle()
        for queue in QUEUES:
            call = self.long_polls.ask(DEFAULT_TENANT, LeaseClaimRequest(worker="x", queues=[queue], max=1000, wait_seconds=0))
            async with asyncio.timeout(5):
                for task in await call:
                    self.delivered[task.id] = "x"
        await self.settle()
        assert not self.shelf.ready
        await self.long_polls.close()
        async with asyncio.timeout(5):
            await asyncio.gather(*self.open.values(), return_exceptions=True)
        await self.settle()

    def check(self) -> None:
        for call in self.open.values():
            assert call.done()
            error = None if call.cancelled() else call.exception()
            assert error is None or isinstance(error, StoreUnavailable), repr(error)
        assert set(self.delivered) == self.shelf.committed, "every task reached a worker"


def _ready(task: ClaimedTask) -> NewTask:
    return NewTask(
        id=task.id,
        tenant_id=DEFAULT_TENANT,
        partition=0,
        queue=task.queue,
        type=task.type,
        target="{}",
        payload="{}",
        origin=task.origin,
        priority=100,
        max_attempts=3,
        retry="{}",
        timeout_seconds=60,
        labels="{}",
    )


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(5, 60))
def test_every_task_reaches_one_worker_whoever_comes_and_goes(seed: int, steps: int) -> None:
    asyncio.run(_walk(seed, steps))


async def _walk(seed: int, steps: int) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    walk = Walk(Random(seed))
    for number in range(steps):
        await walk.step(number)
    await walk.finish()
    walk.check()
    await walk.long_polls.run_once()
    assert dict.fromkeys(walk.long_polls.wait_queues()) == {}, "no line is kept that nobody stands in"
    assert complaints == []
