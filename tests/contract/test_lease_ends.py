"""The ends of leases that the databases compute are those of everbeat.core.leases, for random times and durations."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import pytest

from everbeat.core.fairness import ClaimStep
from everbeat.core.leases import attempt_deadline, lease_end
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, ClaimedTask, NewTask, TaskState
from everbeat.store.base import Store
from everbeat.store.values import ClaimRequest, HeartbeatWrite
from tests.factories import NOW, lease_of, make_task

TASKS = 200
SEEDS = [1, 2, 3]


class Random:
    """Random times and durations. No number of seconds is halfway between two microseconds, where SQLite rounds differently."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def seconds(self) -> float:
        nanoseconds = self._random.randint(1, 10**9) * 1000 + self._random.randint(-499, 499)
        return nanoseconds / 10**9

    def duration(self, maximum: float = 1000.0) -> timedelta:
        return timedelta(microseconds=self._random.randint(1, int(maximum * 1_000_000)))


class Claimed(NamedTuple):
    task: ClaimedTask
    started_at: datetime
    deadline: datetime


async def claim_all(store: Store, lease_seconds: list[float], total_seconds: float, now: datetime) -> list[ClaimedTask]:
    """Claim every ready task, each as a request of its own."""
    requests = [ClaimRequest("worker", 1, seconds) for seconds in lease_seconds]
    step = ClaimStep(100, DEFAULT_TENANT, "", (("default", "work"),), len(requests))
    result = await store.task_claim([step], requests, total_seconds=total_seconds, now=now)
    return [task for part in result.tasks for task in part]


async def stored_ends(store: Store, tasks: list[ClaimedTask] | list[NewTask]) -> dict[UUID, datetime | None]:
    return {one.id: one.lease_until for one in await store.task_find(DEFAULT_TENANT, [task.id for task in tasks])}


async def stored_deadlines(store: Store) -> dict[UUID, datetime]:
    _, expired = await store.task_expired(limit=TASKS, now=NOW + timedelta(days=366))
    return {task.id: task.deadline_at for task in expired}


def put_back(task: ClaimedTask) -> AttemptEnd:
    return AttemptEnd(task.id, DEFAULT_TENANT, task.fence, AttemptOutcome.FAILED, TaskState.READY, None, None)


async def claim_twice(store: Store, chance: Random) -> list[Claimed]:
    """Claim tasks with random timeouts, end the attempts, and claim the tasks again. Checks the ends of all leases."""
    total_seconds = 600 + chance.seconds() / 10
    await store.task_submit([make_task(timeout_seconds=chance.seconds()) for _ in range(TASKS)], now=NOW)
    first_started_at, claimed = NOW + chance.duration(), []
    for now in (first_started_at, first_started_at + chance.duration(300)):
        lease_seconds = [chance.seconds() for _ in range(TASKS)]
        tasks = await claim_all(store, lease_seconds, total_seconds, now)
        assert len(tasks) == TASKS
        claimed = [
            Claimed(task, now, attempt_deadline(now, task.timeout_seconds, first_started_at, total_seconds)) for task in tasks
        ]
        ends = {one.task.id: lease_end(now, seconds, one.deadline) for one, seconds in zip(claimed, lease_seconds, strict=True)}
        assert {task.id: task.lease_until for task in tasks} == ends == await stored_ends(store, tasks)
        if now == first_started_at:
            await store.task_end([put_back(task) for task in tasks], is_expired=False, now=now)
    assert await stored_deadlines(store) == {one.task.id: one.deadline for one in claimed}
    return claimed


@pytest.mark.parametrize("seed", SEEDS)
async def test_task_claim_computes_the_ends_of_leases(store: Store, seed: int) -> None:
    claimed = await claim_twice(store, Random(seed))
    # Otherwise the test would not compare the three limits: the lease, the timeout and the total time.
    latest = max(one.deadline for one in claimed)
    limits = {(one.task.lease_until < one.deadline, one.deadline == latest) for one in claimed}
    assert limits >= {(True, False), (False, False), (False, True)}


@pytest.mark.parametrize("seed", SEEDS)
async def test_task_heartbeat_computes_the_ends_of_leases(store: Store, seed: int) -> None:
    chance = Random(seed)
    claimed = await claim_twice(store, chance)
    now, ends = claimed[0].started_at, {one.task.id: one.task.lease_until for one in claimed}
    for _ in range(5):
        now += chance.duration(50)
        claimed = [one for one in claimed if ends[one.task.id] > now]
        renewed = await store.task_heartbeat([HeartbeatWrite(lease_of(one.task)) for one in claimed], now=now)
        ends = {one.task.id: lease_end(now, one.task.lease_seconds, one.deadline) for one in claimed}
        assert {one.id: one.lease_until for one in renewed} == ends == await stored_ends(store, [one.task for one in claimed])
    assert len(claimed) > TASKS / 10


@pytest.mark.parametrize("seed", SEEDS)
async def test_task_submit_computes_the_ends_of_leases_in_a_direct_handoff(store: Store, seed: int) -> None:
    chance = Random(seed)
    tasks = [
        make_task(
            timeout_seconds=chance.seconds(),
            lease_owner="worker",
            lease_seconds=chance.seconds(),
            total_seconds=None if number % 10 == 0 else chance.seconds(),
        )
        for number in range(TASKS)
    ]
    now = NOW + chance.duration()
    await store.task_submit(tasks, now=now)
    deadlines = {task.id: attempt_deadline(now, task.timeout_seconds, now, task.total_seconds) for task in tasks}
    assert await stored_deadlines(store) == deadlines
    ends = {task.id: lease_end(now, task.lease_seconds, deadlines[task.id]) for task in tasks}
    assert await stored_ends(store, tasks) == ends
