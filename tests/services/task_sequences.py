"""A random walk over the states of tasks: two nodes on one database, workers that lose replies, and their invariants."""

from __future__ import annotations

import asyncio
from datetime import datetime
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from everbeat.core.errors import Conflict
from everbeat.core.protocol import Lease, LeaseClaimRequest
from everbeat.core.schedules import DEFAULT_TENANT, Retry, RetryKind
from everbeat.core.tasks import LIVE_STATES, TRANSITIONS, ClaimedTask, TaskRecord, TaskState
from everbeat.store.base import Store
from everbeat.store.values import DeadFilter, TaskFilter
from tests.factories import NOW, SteppedNode, open_second_store, seconds
from tests.services.workers import Worker, submit, submit_many

Snapshot = dict[UUID, TaskRecord]
JOBS: dict[str, dict[str, Any]] = {
    "queue": {"overlap": "queue"},
    "two": {"overlap": "queue", "max_concurrent": 2},
    "newest": {"overlap": "cancel_previous"},
    "free": {"overlap": "allow"},
}
LIMITS = {"queue": 1, "two": 2}


class Message(NamedTuple):
    """What a worker sent under a lease, to be sent again immediately (the response was lost) or much later."""

    kind: str
    id: UUID
    fence: int
    more: dict[str, Any]

    @property
    def lease(self) -> Lease:
        return Lease(id=self.id, fence=self.fence)


class Simulation:
    def __init__(self, store: Store, seed: int) -> None:
        self.random = Random(seed)
        self.store = store
        self.second_store = open_second_store(store)
        random_fraction = self.random.random
        self.nodes = [
            SteppedNode(store, random_fraction=random_fraction),
            SteppedNode(self.second_store, random_fraction=random_fraction),
        ]
        self.now = NOW
        self.leases: list[ClaimedTask] = []
        self.sent: list[tuple[Message, tuple[str, str | None]]] = []
        self.results: dict[UUID, Any] = {}
        self.paused: set[str] = set()
        self.before: Snapshot = {}
        self.max_transitions = 1

    @property
    def node(self) -> SteppedNode:
        return self.random.choice(self.nodes)

    @property
    def worker(self) -> Worker:
        return Worker(self.node, f"worker-{self.random.randrange(4)}")

    def advance(self, by_seconds: float) -> None:
        self.now += seconds(by_seconds)
        for node in self.nodes:
            node.move_to(self.now)

    async def create_schedules(self) -> None:
        for name, more in JOBS.items():
            await self.nodes[0].put(name, max_attempts=2, retry={"kind": "fixed", "base_seconds": 5}, **more)

    async def snapshot(self) -> Snapshot:
        live = await self.store.task_list(DEFAULT_TENANT, TaskFilter(), before=None, limit=100_000, live=True)
        past = await self.store.task_list(DEFAULT_TENANT, TaskFilter(), before=None, limit=100_000, live=False)
        both = {task.id for task in live.tasks} & {task.id for task in past.tasks}
        assert not both, "a task is either live or finished"
        found = {task.id: task for task in (*live.tasks, *past.tasks)}
        assert len(found) == len(live.tasks) + len(past.tasks), "each task is listed once"
        return found

    # Steps

    async def take_random_step(self) -> str:
        """Take one random step and return its name."""
        self.max_transitions = 1
        steps = {
            self.submit: 10,
            self.claim: 16,
            self.heartbeat: 8,
            self.report: 22,
            self.repeat_report: 10,
            self.race: 6,
            self.cancel: 4,
            self.rerun: 2,
            self.reschedule: 2,
            self.promote: 8,
            self.reap: 8,
            self.release_held: 8,
            self.tick: 4,
            self.pause_or_resume: 2,
            self.wait: 14,
        }
        (step,) = self.random.choices(list(steps), list(steps.values()))
        await step()
        return step.__name__

    async def submit(self) -> None:
        random = self.random
        more: dict[str, Any] = {
            "max_attempts": random.randint(1, 4),
            "timeout_seconds": random.choice([20, 60, 600]),
            "priority": random.choice([1, 100]),
            "delay_seconds": random.choice([None, None, 0, 3, 30]),
            "retry": Retry(kind=RetryKind.FIXED, base_seconds=random.choice([0, 2, 20])),
        }
        if random.random() < 0.3:
            await submit_many(self.node, random.randint(1, 4), **more)
        elif random.random() < 0.4:
            key = f"key-{len(self.before)}"
            tasks = [await submit(node, key=key, **more) for node in self.nodes]  # the first response was lost
            assert tasks[0].id == tasks[1].id
        else:
            await submit(self.node, **more)

    async def claim(self) -> None:
        max_tasks, lease = self.random.randint(1, 4), self.random.choice([5, 30])
        claim = LeaseClaimRequest(worker="worker", queues=["default"], max=max_tasks, lease_seconds=lease)
        nodes = self.nodes if self.random.random() < 0.3 else [self.node]
        responses = await asyncio.gather(*(node.leases.claim(DEFAULT_TENANT, claim, now=self.now) for node in nodes))
        taken = [task for tasks in responses for task in tasks]
        assert len({task.id for task in taken}) == len(taken), "no task is claimed twice"
        if self.random.random() < 0.85:  # otherwise the response was lost, and no worker has these leases
            self.leases += taken

    async def heartbeat(self) -> None:
        for lease in self.sample_leases(2):
            response = await self.worker.heartbeat(lease, fraction=self.random.random())
            was = self.before[lease.id]
            is_leased = was.state is TaskState.RUNNING and was.fence == lease.fence and _has_lease(was, self.now)
            assert response.status == ("lost" if not is_leased else "cancel" if was.cancel_requested else "ok")

    async def report(self) -> None:
        """A worker reports the end of a task."""
        for lease in self.sample_leases(self.random.choice([1, 1, 3])):
            await self.send_repeatedly(self.message(lease))
            await self.check()

    async def repeat_report(self) -> None:
        """An earlier report arrives again."""
        if not self.sent:
            return
        message, first_response = self.random.choice(self.sent)
        status, following = await self.send(message)
        if first_response[0] == "stale" and status == "ok":
            outcomes = {one.fence: one.outcome for one in await self.nodes[0].tasks.attempts(DEFAULT_TENANT, message.id)}
            expected = "cancelled" if message.kind == "release" else message.more.get("kind")
            assert expected is not None, f"{message} was stale, and no later outcome makes it a repetition"
            assert outcomes[message.fence] == expected
            return
        assert (status, following) == first_response, f"{message} had the response {first_response} before"

    async def race(self) -> None:
        """Two concurrent operations on one task."""
        self.max_transitions = 2
        for lease in self.sample_leases(1):
            one, other = self.message(lease), self.message(lease)
            if self.random.random() < 0.4:
                cancelling = self.nodes[0].tasks.cancel(DEFAULT_TENANT, lease.id, now=self.now)
                await asyncio.gather(self.send(one), cancelling, return_exceptions=True)
                return
            responses = await asyncio.gather(self.send(one), self.send(other), self.nodes[1].reaper.run_once(self.now))
            counted = {
                message.kind for message, response in zip((one, other), responses[:2], strict=True) if response[0] == "ok"
            }
            # Releasing a task that must stop and reporting it as cancelled have the same result.
            is_cancelled = (await self.snapshot())[lease.id].state is TaskState.CANCELLED
            assert len(counted) <= 1 or (is_cancelled and counted == {"fail", "release"}), "an attempt has one outcome"
            for message, response in zip((one, other), responses[:2], strict=True):
                self.record_sent(message, response)

    async def cancel(self) -> None:
        task = self.random_task(live=0.9)
        if task is None:
            return
        try:
            cancelled = await self.node.tasks.cancel(DEFAULT_TENANT, task.id, now=self.now)
        except Conflict:
            assert task.state not in LIVE_STATES
            return
        assert cancelled.state is TaskState.CANCELLED or cancelled.cancel_requested

    async def rerun(self) -> None:
        """Run a finished task again as a new one."""
        task = self.random_task(live=0)
        if task is None:
            return
        if task.state is TaskState.DEAD and self.random.random() < 0.5:
            await self.node.dead_letters.replay(DEFAULT_TENANT, task.id, now=self.now)
        else:
            await self.node.tasks.retry(DEFAULT_TENANT, task.id, now=self.now)

    async def reschedule(self) -> None:
        task = self.random_task(live=1)
        if task is not None and task.state in (TaskState.READY, TaskState.SCHEDULED):
            at = self.now + seconds(self.random.choice([-5, 5, 60]))
            await self.node.tasks.reschedule(DEFAULT_TENANT, task.id, at, now=self.now)

    async def promote(self) -> None:
        await self.node.promote()

    async def reap(self) -> None:
        nodes = self.nodes if self.random.random() < 0.3 else [self.node]
        await asyncio.gather(*(node.reaper.run_once(self.now) for node in nodes))

    async def release_held(self) -> None:
        nodes = self.nodes if self.random.random() < 0.3 else [self.node]
        await asyncio.gather(*(node.overlap.run_once(self.now) for node in nodes))

    async def tick(self) -> None:
        await self.nodes[0].step(self.now)

    async def pause_or_resume(self) -> None:
        name, schedules = self.random.choice(list(JOBS)), self.node.schedules
        if name in self.paused:
            await schedules.resume(DEFAULT_TENANT, name, now=self.now)
        else:
            await schedules.pause(DEFAULT_TENANT, name, note=None, now=self.now)
        self.paused ^= {name}

    async def wait(self) -> None:
        self.advance(self.random.choice([0.5, 1, 2, 4, 8, 16, 40, 3600 if self.random.random() < 0.1 else 5]))

    # Messages of workers

    def sample_leases(self, max_tasks: int) -> list[ClaimedTask]:
        return self.random.sample(self.leases, min(max_tasks, len(self.leases)))

    def random_task(self, *, live: float) -> TaskRecord | None:
        is_live = self.random.random() < live
        tasks = [task for task in self.before.values() if (task.state in LIVE_STATES) == is_live]
        return self.random.choice(tasks) if tasks else None

    def message(self, lease: ClaimedTask) -> Message:
        random = self.random
        kind = random.choices(["complete", "fail", "release"], [5, 4, 1])[0]
        more: dict[str, Any] = {}
        if kind == "complete":
            more = {"result": random.randrange(10**6)}
        elif kind == "fail":
            more = {
                "message": f"failure {random.randrange(10**6)}",
                "kind": random.choice([None, None, "cancelled", "timeout"]),
                "retryable": random.random() < 0.9,
                "retry_in_seconds": random.choice([None, None, 0, 3]),
            }
        return Message(kind, lease.id, lease.fence + (1 if random.random() < 0.05 else 0), more)

    async def send_repeatedly(self, message: Message) -> None:
        """Send the message, sometimes repeatedly because the response was lost."""
        response = await self.send(message)
        for _ in range(self.random.choice([0, 0, 1, 4])):
            before = await self.snapshot()
            assert await self.send(message) == response, "a repeated report has the same response"
            assert await self.snapshot() == before, "and changes nothing"
        self.record_sent(message, response)
        await self.check_response(message, response)
        if self.random.random() < 0.7:
            self.leases = [lease for lease in self.leases if (lease.id, lease.fence) != (message.id, message.fence)]

    def record_sent(self, message: Message, response: tuple[str, str | None]) -> None:
        """Keep the message and its response, unless its fence has not been used yet: then a later response may differ."""
        if message.fence <= self.before[message.id].fence:
            self.sent.append((message, response))

    async def send(self, message: Message) -> tuple[str, str | None]:
        worker = self.worker
        match message.kind:
            case "complete":
                return (await worker.complete(message.lease, **message.more))[0], None
            case "fail":
                response = await worker.fail(message.lease, **message.more)
                return response.status, response.next
            case _:
                return (await worker.release(message.lease))[0], None

    async def check_response(self, message: Message, response: tuple[str, str | None]) -> None:
        status, following = response
        was, now = self.before[message.id], (await self.snapshot())[message.id]
        is_leased = was.state is TaskState.RUNNING and was.fence == message.fence and _has_lease(was, self.now)
        assert status == "ok" or not is_leased, "a report under a valid lease is accepted"
        if not is_leased:
            return
        match message.kind, following:
            case "complete", _:
                assert (now.state, now.result) == (TaskState.COMPLETED, str(message.more["result"]).encode())
            case "release", _:
                assert now.state is (TaskState.CANCELLED if was.cancel_requested else TaskState.READY)
            case _, "retry":
                assert now.state in (TaskState.READY, TaskState.SCHEDULED)
            case _, "dead":
                assert now.state is TaskState.DEAD
            case _:
                assert now.state in (TaskState.FAILED, TaskState.CANCELLED)

    # Invariants

    async def check(self) -> None:
        after = await self.snapshot()
        for id_, was in self.before.items():
            assert id_ in after, "no task disappears"
            if after[id_] != was:
                self.check_transition(was, after[id_])
                await self.check_attempts(after[id_])
        for name, limit in LIMITS.items():
            started = [t for t in after.values() if t.schedule == name and t.origin == "tick" and t.state in LIVE_STATES]
            assert sum(task.state is not TaskState.HELD for task in started) <= limit, (
                f"{name} runs too many tasks concurrently"
            )
        requested = [task for task in after.values() if task.cancel_requested]
        assert all(task.state is TaskState.RUNNING for task in requested), "a task with a cancel request does not start again"
        self.before = after

    def check_transition(self, was: TaskRecord, now: TaskRecord) -> None:
        assert was.state in LIVE_STATES, f"a finished task was changed: {was} became {now}"
        assert now.state is was.state or now.state in _reachable_states(was.state, self.max_transitions), (
            f"{was.state} became {now.state}"
        )
        claims = now.fence - was.fence
        assert claims >= 0, "a fence never decreases"
        if self.max_transitions == 1:
            is_claimed = was.state is not TaskState.RUNNING and now.state is TaskState.RUNNING
            assert claims == is_claimed, "and it changes only with a claim"
        assert 0 <= now.attempt <= now.max_attempts
        assert now.attempt >= was.attempt - 1

    async def check_attempts(self, task: TaskRecord) -> None:
        """Every lease is explained by an attempt that has ended, or by the one that runs or has finished the task."""
        attempts = await self.nodes[0].tasks.attempts(DEFAULT_TENANT, task.id)
        assert [one.fence for one in attempts] == list(range(1, task.fence + 1)), f"{task} has {attempts}"
        counted = [one.attempt for one in attempts if one.outcome != "released"]
        assert counted == list(range(1, len(counted) + 1)), "released attempts do not count"
        assert task.attempt == len(counted)
        running = [one for one in attempts if one.outcome is None]
        assert len(running) == (task.state is TaskState.RUNNING)
        unexplained = [one for one in attempts if one.outcome in ("failed", "lost", "timeout") and one.error is None]
        assert unexplained == []

    async def finish_all(self) -> None:
        """Stop injecting faults: workers complete their tasks, and every task finishes."""
        for name in list(self.paused):
            await self.nodes[0].schedules.resume(DEFAULT_TENANT, name, now=self.now)
        for name in JOBS:
            await self.nodes[0].schedules.delete(DEFAULT_TENANT, name)
        worker = Worker(self.nodes[0])
        for _ in range(200):
            self.advance(31)
            for node in self.nodes:
                await node.reap()
                await node.promote()
            while tasks := await worker.claim(100):
                assert set(await worker.complete(*tasks)) == {"ok"}
                await self.nodes[0].release_held()
            if not any(task.state in LIVE_STATES for task in (await self.snapshot()).values()):
                break
        self.max_transitions = 8
        after = await self.snapshot()
        stuck = [task for task in after.values() if task.state in LIVE_STATES]
        assert stuck == [], "every task finishes"
        self.before = {id_: task for id_, task in self.before.items() if task.state not in LIVE_STATES}
        await self.check()
        dead = {task.id for task in after.values() if task.state is TaskState.DEAD}
        letters = await self.store.dead_list(DEFAULT_TENANT, DeadFilter(), before=None, limit=100_000)
        assert {letter.task_id for letter in letters} == dead, "there is one dead letter for each dead task, and no other"
        for task in after.values():
            await self.check_attempts(task)

    async def close(self) -> None:
        await self.second_store.close()


def _has_lease(task: TaskRecord, now: datetime) -> bool:
    return task.lease_until is not None and task.lease_until > now


def _reachable_states(state: TaskState, max_transitions: int) -> set[TaskState]:
    reached, frontier = set(), {state}
    for _ in range(max_transitions):
        frontier = {following for one in frontier for following in TRANSITIONS[one]}
        reached |= frontier
    return reached
