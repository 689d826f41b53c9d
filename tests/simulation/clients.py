"""Simulated users and workers. They tell the model what was acknowledged to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from random import Random
from typing import Any, Protocol, TypeVar
from uuid import UUID

from everbeat.core.access import Caller
from everbeat.core.errors import Conflict, EverbeatError, InvalidInput, NotFound
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
    LeaseReleaseRequest,
    LeaseResult,
    Progress,
    TaskInput,
    raw_json,
)
from everbeat.core.schedules import DEFAULT_TENANT, Retry, RetryKind
from everbeat.core.tasks import ClaimedTask
from everbeat.engine import Engine
from everbeat.store.sqlite.conversions import from_microseconds
from tests.simulation.database import Database
from tests.simulation.model import Model
from tests.simulation.nodes import Node, Unreachable

T = TypeVar("T")
QUEUES = ["default", "other"]
_TRIES = 6
_CALLER = Caller(DEFAULT_TENANT, frozenset())


class Cluster(Protocol):
    """What clients see of a run."""

    model: Model
    database: Database
    scale: float
    client_loss: float
    client_delay_seconds: float
    is_draining: bool

    def nodes(self) -> list[Node]: ...


class Client:
    """Sends requests to random nodes, and repeats those without an answer."""

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self.cluster = cluster
        self.random = random

    async def call(self, request: Callable[[Engine], Awaitable[T]], *, wait_seconds: float = 0) -> T:
        cluster = self.cluster
        nodes = cluster.nodes()
        if not nodes:
            await asyncio.sleep(cluster.scale)
            raise Unreachable
        return await self.random.choice(nodes).call(
            request,
            timeout_seconds=wait_seconds + 15 * cluster.scale,
            lost=cluster.client_loss,
            delay_seconds=cluster.client_delay_seconds,
        )

    async def call_repeatedly(self, request: Callable[[Engine], Awaitable[T]], tries: int = _TRIES) -> T | None:
        """Return the answer. None: it is not known whether the request was executed."""
        for attempt in range(tries):
            try:
                return await self.call(request)
            except (Conflict, InvalidInput, NotFound):
                raise
            except (EverbeatError, TimeoutError, Unreachable):
                await asyncio.sleep(self.random.uniform(0.1, 1 + attempt) * self.cluster.scale)
        return None


class User(Client):
    """Executes one operation of the plan."""

    def __init__(self, cluster: Cluster, random: Random, submitted: list[UUID]) -> None:
        super().__init__(cluster, random)
        self._submitted = submitted

    async def run(self, kind: str, data: dict[str, Any]) -> None:
        try:
            await getattr(self, kind)(**data)
        except (Conflict, InvalidInput, NotFound):
            return  # a definite answer: nothing was changed

    async def put(self, name: str, definition: dict[str, Any]) -> None:
        definition = self._with_times(definition)
        found = await self.call_repeatedly(lambda engine: engine.schedules.put(DEFAULT_TENANT, name, definition))
        if found is not None:
            one = found.schedule
            self.cluster.model.acknowledged_schedule(one.id, name, one.revision, one.status.value)

    def _with_times(self, definition: dict[str, Any]) -> dict[str, Any]:
        """Replace times that are given in seconds from now by the database's clock."""
        now = self.cluster.database.now()
        replaced = dict(definition)
        for field in ("anchor", "at", "starts_at", "ends_at"):
            if isinstance(definition.get(field), int):
                at = from_microseconds((now // 1_000_000 + definition[field]) * 1_000_000)
                replaced[field] = at.isoformat()
        return replaced

    async def pause(self, name: str) -> None:
        found = await self.call_repeatedly(lambda engine: engine.schedules.pause(DEFAULT_TENANT, name, note=None))
        if found is not None:
            self.cluster.model.acknowledged_schedule(found.id, name, found.revision, found.status.value)

    async def resume(self, name: str) -> None:
        found = await self.call_repeatedly(lambda engine: engine.schedules.resume(DEFAULT_TENANT, name))
        if found is not None:
            self.cluster.model.acknowledged_schedule(found.id, name, found.revision, found.status.value)

    async def delete(self, name: str) -> None:
        self.cluster.model.deleting(name)
        await self.call_repeatedly(lambda engine: engine.schedules.delete(DEFAULT_TENANT, name))

    async def trigger(self, name: str) -> None:
        task = await self.call_repeatedly(lambda engine: engine.backfill.trigger(DEFAULT_TENANT, name), tries=1)
        if task is not None:
            self.cluster.model.acknowledged_submit(task.id, None)

    async def submit(self, key: str | None, more: dict[str, Any], is_repeated: bool) -> None:
        retry = Retry(kind=RetryKind.FIXED, base_seconds=more.get("retry_seconds", 0))
        task_input = TaskInput(
            type="work",
            queue=more["queue"],
            delay_seconds=more.get("delay_seconds"),
            priority=more["priority"],
            max_attempts=more["max_attempts"],
            timeout_seconds=more["timeout_seconds"],
            retry=retry,
        )
        for _ in range(2 if is_repeated and key is not None else 1):
            task = await self.call_repeatedly(
                lambda engine: engine.tasks.submit(DEFAULT_TENANT, task_input, key=key), tries=_TRIES if key else 1
            )
            if task is not None:
                self.cluster.model.acknowledged_submit(task[0].id, key)
                self._submitted.append(task[0].id)

    async def cancel(self, pick: float) -> None:
        if (id_ := self._pick(pick)) is not None:
            task = await self.call_repeatedly(lambda engine: engine.tasks.cancel(DEFAULT_TENANT, id_))
            if task is not None:
                self.cluster.model.acknowledged_cancel(id_)

    async def reschedule(self, pick: float, seconds: float) -> None:
        if (id_ := self._pick(pick)) is not None:
            at = from_microseconds(self.cluster.database.now()) + timedelta(seconds=seconds)
            await self.call_repeatedly(lambda engine: engine.tasks.reschedule(DEFAULT_TENANT, id_, at))

    async def retry(self, pick: float) -> None:
        if (id_ := self._pick(pick)) is not None:
            task = await self.call_repeatedly(lambda engine: engine.tasks.retry(DEFAULT_TENANT, id_), tries=1)
            if task is not None:
                self.cluster.model.acknowledged_submit(task.id, None)

    async def replay(self, pick: float) -> None:
        dead = [id_ for id_, row in self.cluster.model.ended.items() if row.state == "dead"][-20:]
        if dead:
            id_ = UUID(bytes=dead[int(pick * len(dead))])
            task = await self.call_repeatedly(lambda engine: engine.dead_letters.replay(DEFAULT_TENANT, id_), tries=1)
            if task is not None:
                self.cluster.model.acknowledged_submit(task.id, None)

    async def backfill(self, name: str, seconds: float) -> None:
        to = from_microseconds(self.cluster.database.now())
        from_ = to - timedelta(seconds=seconds)
        await self.call_repeatedly(
            lambda engine: engine.backfill.backfill(DEFAULT_TENANT, name, from_=from_, to=to, missing_only=False), tries=1
        )

    async def pause_queue(self, queue: str | None, seconds: float | None) -> None:
        until = None
        if seconds is not None:
            until = from_microseconds(self.cluster.database.now()) + timedelta(seconds=seconds)
        await self.call_repeatedly(lambda engine: engine.pauses.pause(DEFAULT_TENANT, queue, until=until, by=_CALLER))

    async def resume_queue(self, queue: str | None) -> None:
        await self.call_repeatedly(lambda engine: engine.pauses.resume(DEFAULT_TENANT, queue, by=_CALLER))

    def _pick(self, fraction: float) -> UUID | None:
        """One of the last submitted tasks."""
        recent = self._submitted[-20:]
        return recent[int(fraction * len(recent))] if recent else None


class Worker(Client):
    """Claims tasks in a loop, and runs each of them: heartbeats, then a report. Some attempts crash, stall or fail."""

    def __init__(self, cluster: Cluster, random: Random, name: str, mood: dict[str, float]) -> None:
        super().__init__(cluster, random)
        self.name = name
        self._mood = mood
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        while True:
            scale, wait = self.cluster.scale, 30 * self.cluster.scale
            lease = self.random.choice([10, 30]) * scale
            claim = LeaseClaimRequest(
                worker=self.name, queues=QUEUES, max=self.random.randint(1, 4), wait_seconds=wait, lease_seconds=lease
            )
            try:
                claimed = await self._claim(claim)
            except (EverbeatError, TimeoutError, Unreachable):
                await asyncio.sleep(self.random.uniform(0.5, 2) * scale)
                continue
            for task in claimed:
                self.cluster.model.acknowledged_claim(task.id, task.fence, self.name)
                running = asyncio.create_task(self._work(task))
                self._tasks.add(running)
                running.add_done_callback(self._tasks.discard)
            if not self.cluster.is_draining:
                await asyncio.sleep(self.random.uniform(0, 5) * scale)

    async def _claim(self, claim: LeaseClaimRequest) -> list[ClaimedTask]:
        return await self.call(lambda engine: engine.leases.claim(DEFAULT_TENANT, claim), wait_seconds=claim.wait_seconds)

    async def _work(self, task: ClaimedTask) -> None:
        random, scale = self.random, self.cluster.scale
        if self.cluster.is_draining:
            await self._complete(task)
            return
        mood = random.choices(list(self._mood), list(self._mood.values()))[0]
        seconds = random.expovariate(1 / (4 * scale)) if random.random() < 0.9 else random.uniform(0, 3) * task.lease_seconds
        status = await self._run_until(task, seconds)
        if mood == "crash" or (status == "lost" and random.random() < 0.7):
            return  # a worker that has lost its lease mostly stops; the others report nevertheless
        if mood == "stall":
            await asyncio.sleep(random.uniform(0.8, 2.5) * task.lease_seconds)
        if status == "cancel":
            await self._fail(task, "cancelled")
        elif mood == "fail":
            await self._fail(task, None)
        elif mood == "release":
            await self._release(task)
        else:
            await self._complete(task)

    async def _run_until(self, task: ClaimedTask, seconds: float) -> str:
        """Send a heartbeat every third of the lease. Returns the last status."""
        lease = LeaseHeartbeat(id=task.id, fence=task.fence, progress=Progress(message=f"fence={task.fence}"), log="a line")
        heartbeat = LeaseHeartbeatRequest(worker=self.name, leases=[lease])
        status = "ok"
        while seconds > 0 and status == "ok" and not self.cluster.is_draining:
            pause = min(seconds, task.lease_seconds / 3)
            await asyncio.sleep(pause)
            seconds -= pause
            if seconds > 0:
                try:
                    (answer,) = await self.call(lambda engine: engine.leases.heartbeat(DEFAULT_TENANT, heartbeat))
                    status = answer.status
                except (EverbeatError, TimeoutError, Unreachable):
                    continue
        return status

    async def _complete(self, task: ClaimedTask) -> None:
        result = LeaseCompletion(id=task.id, fence=task.fence, result=raw_json(f"fence={task.fence}"))
        request = LeaseCompleteRequest(worker=self.name, results=[result])
        answer = await self._report(lambda engine: engine.leases.complete(DEFAULT_TENANT, request))
        if answer is not None and answer.status == "ok":
            self.cluster.model.acknowledged_completion(task.id, task.fence)

    async def _fail(self, task: ClaimedTask, kind: str | None) -> None:
        error = ErrorInput(message=f"fence={task.fence}", kind=kind)
        failure = LeaseFailure(id=task.id, fence=task.fence, error=error, retryable=self.random.random() < 0.9)
        request = LeaseFailRequest(worker=self.name, failures=[failure])
        answer = await self._report(lambda engine: engine.leases.fail(DEFAULT_TENANT, request))
        if answer is not None and answer.status == "ok":
            self.cluster.model.acknowledged_failure(task.id, task.fence)

    async def _release(self, task: ClaimedTask) -> None:
        request = LeaseReleaseRequest(worker=self.name, leases=[Lease(id=task.id, fence=task.fence)])
        await self._report(lambda engine: engine.leases.release(DEFAULT_TENANT, request))

    async def _report(self, request: Callable[[Engine], Awaitable[list[LeaseResult]]]) -> LeaseResult | None:
        """Send a report until there is an answer, and sometimes once more although there was one."""
        answers = await self.call_repeatedly(request)
        if answers is not None and self.random.random() < 0.1:
            again = await self.call_repeatedly(request)
            if again is not None:
                assert [one.status for one in again] == [one.status for one in answers], "a repeated report has the same answer"
        return answers[0] if answers else None
