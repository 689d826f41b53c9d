"""Random interleavings of polls, cancellations, submits and failures: each task reaches one worker, and none is lost."""

from __future__ import annotations

import asyncio
import contextlib
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
from everbeat.store.values import ClaimRequest, ClaimResult, Listener, Notice, ReadyQueue, SubmitResult
from tests.factories import NOW, seconds

QUEUES = ["a", "b", "c"]


class FakeStore:
    """The part of a store that polls need, in memory. Other coroutines run before and after each operation."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.ready: list[NewTask] = []
        self.leased_to: dict[UUID, str] = {}
        self.committed: set[UUID] = set()
        self.is_faulty = True
        self.claims = 0

    def subscribe(self, _listener: Listener) -> None: ...
    def publish_to_others(self, _notice: Notice) -> None: ...

    async def _yield_or_fail(self) -> None:
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)
        if self.is_faulty and self.random.random() < 0.05:
            raise StoreUnavailable("unavailable")

    async def task_flows(self, _tenant: UUID | None, queues: Sequence[str], **_more: Any) -> list[Flow]:
        await self._yield_or_fail()
        flows = {_flow(task) for task in self.ready if task.queue in queues}
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)
        return sorted(flows)

    async def task_ready_queues(self, **_more: Any) -> list[ReadyQueue]:
        await self._yield_or_fail()
        return sorted({ReadyQueue(task.queue, task.tenant_id) for task in self.ready})

    async def task_claim(self, steps: Sequence[ClaimStep], claim_requests: Sequence[ClaimRequest], **_more: Any) -> ClaimResult:
        self.claims += 1
        await self._yield_or_fail()
        free = [claimer.worker for claimer in claim_requests for _ in range(claimer.limit)]
        taken: dict[str, list[ClaimedTask]] = {claimer.worker: [] for claimer in claim_requests}
        claimed_counts: list[int] = []
        for step in steps:
            matching = [task for task in self.ready if (task.queue, task.type) in step.queue_types][
                : min(step.limit, len(free))
            ]
            for task in matching:
                self.ready.remove(task)
                worker = self.leased_to[task.id] = free.pop(0)
                taken[worker].append(_claimed(task))
            claimed_counts.append(len(matching))
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)
        return ClaimResult(list(taken.values()), [step.limit for step in steps], claimed_counts)

    async def task_submit(self, tasks: Sequence[NewTask], **_more: Any) -> SubmitResult:
        await self._yield_or_fail()
        for task in tasks:
            self.committed.add(task.id)
            if task.lease_owner is None:
                self.ready.append(task)
            else:
                self.leased_to[task.id] = task.lease_owner
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
        self.store = FakeStore(random)
        store = cast(Store, self.store)
        publisher = ChangePublisher(store)
        self.long_polls = LongPolls(store, publisher, self.release)
        self.tasks = TaskService(store, self.long_polls, publisher)
        self.open: dict[str, asyncio.Task[list[ClaimedTask]]] = {}
        self.submits: list[asyncio.Task[Any]] = []
        self.delivered: dict[UUID, str] = {}
        self.released: set[UUID] = set()

    async def release(self, _tenant: UUID | None, tasks: list[ClaimedTask]) -> None:
        await asyncio.sleep(0)
        for task in tasks:
            del self.store.leased_to[task.id]
            self.released.add(task.id)
            queue = task.queue
            self.store.ready.append(_ready(task))
            self.long_polls.wake([queue])

    async def poll(self, name: str, max_tasks: int, wait: float) -> list[ClaimedTask]:
        queues = self.random.sample(QUEUES, self.random.randint(1, 2))
        tasks = await self.long_polls.claim(
            DEFAULT_TENANT, LeaseClaimRequest(worker=name, queues=queues, max=max_tasks, wait_seconds=wait)
        )
        assert len(tasks) <= max_tasks
        for task in tasks:
            assert task.queue in queues
            assert task.id not in self.delivered, "one task, one worker"
            assert self.store.leased_to[task.id] == name
            self.delivered[task.id] = name
        return tasks

    async def step(self, number: int) -> None:
        random = self.random
        match random.randrange(10):
            case 0 | 1 | 2 | 3:
                wait = random.choice([0, 0.001, 30, 30, 30])
                call = self.poll(f"worker-{number}", random.choice([1, 1, 3, 1000]), wait)
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
                with contextlib.suppress(StoreUnavailable):
                    await self.long_polls.run_once()
            case _:
                self.long_polls.wake([random.choice(QUEUES)])
        for _ in range(random.randrange(5)):
            await asyncio.sleep(0)

    async def wait_for_claims(self) -> None:
        async with asyncio.timeout(10):
            while any(
                wait_queue.serving is not None or wait_queue.reserved for wait_queue in self.long_polls._wait_queues.values()
            ):
                await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)

    async def finish(self) -> None:
        self.store.is_faulty = False
        await asyncio.gather(*self.submits, return_exceptions=True)
        await self.wait_for_claims()
        for queue in QUEUES:
            call = self.long_polls.claim(
                DEFAULT_TENANT, LeaseClaimRequest(worker="x", queues=[queue], max=1000, wait_seconds=0)
            )
            async with asyncio.timeout(5):
                for task in await call:
                    self.delivered[task.id] = "x"
        await self.wait_for_claims()
        assert not self.store.ready
        await self.long_polls.close()
        async with asyncio.timeout(5):
            await asyncio.gather(*self.open.values(), return_exceptions=True)
        await self.wait_for_claims()

    def check(self) -> None:
        for call in self.open.values():
            assert call.done()
            error = None if call.cancelled() else call.exception()
            assert error is None or isinstance(error, StoreUnavailable), repr(error)
        assert set(self.delivered) == self.store.committed, "every task reached a worker"


def _ready(task: ClaimedTask) -> NewTask:
    return NewTask(
        id=task.id,
        tenant_id=DEFAULT_TENANT,
        partition=0,
        queue=task.queue,
        type=task.type,
        target="{}",
        payload=b"{}",
        origin=task.origin,
        priority=100,
        max_attempts=3,
        retry="{}",
        timeout_seconds=60,
        labels="{}",
    )


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(5, 60))
def test_every_task_reaches_one_worker(seed: int, steps: int) -> None:
    asyncio.run(_walk(seed, steps))


async def _walk(seed: int, steps: int) -> None:
    loop_errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: loop_errors.append(context))
    walk = Walk(Random(seed))
    for number in range(steps):
        await walk.step(number)
    await walk.finish()
    walk.check()
    await walk.long_polls.run_once()
    assert dict.fromkeys(walk.long_polls._wait_queues.values()) == {}, "no wait queue is kept without a poll"
    assert loop_errors == []
