"""How long tasks were ready before task_claim and how long attempts ran before task_complete and task_end."""

from __future__ import annotations

from uuid import UUID

from everbeat.core.fairness import ClaimStep
from everbeat.core.schedules import DEFAULT_TENANT, Overlap
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, ClaimedTask, TaskChange, TaskState
from everbeat.store.base import Store
from everbeat.store.values import ClaimRequest, LeaseRef
from tests.factories import NOW, firing_of, insert, make_schedule, make_task, minutes, own_all_partitions, seconds

NODE = UUID(int=1)


async def claim_at(store: Store, now_seconds: float, *types: str) -> tuple[list[ClaimedTask], list[TaskChange]]:
    steps = [ClaimStep(100, DEFAULT_TENANT, "", tuple(("default", type_) for type_ in types), 10)]
    request = ClaimRequest("worker", 10, 30.0)
    claimed = await store.task_claim(steps, [request], now=NOW + seconds(now_seconds))
    return claimed.tasks[0], list(claimed.changes)


async def test_a_task_waits_from_its_submit_or_its_run_at(store: Store) -> None:
    late = make_task("late", run_at=NOW - minutes(5))  # it was submitted with a time in the past
    await store.task_submit([make_task("now"), late, make_task("soon", run_at=NOW + seconds(4))], now=NOW)
    await store.task_promote(limit=10, now=NOW + seconds(5))
    _, changes = await claim_at(store, 10, "now", "late", "soon")
    assert {change.type: change.waited_seconds for change in changes} == {"now": 10, "late": 10, "soon": 6}


async def test_several_claims_in_one_statement_have_their_own_times(store: Store) -> None:
    for number in range(3):
        await store.task_submit([make_task(str(number))], now=NOW + seconds(number))
    steps = [ClaimStep(100, DEFAULT_TENANT, "", (("default", str(number)),), 2) for number in range(3)]
    claimed = await store.task_claim(steps, [ClaimRequest("worker", 6, 30.0)], now=NOW + seconds(10))
    assert {change.type: change.waited_seconds for change in claimed.changes} == {"0": 10, "1": 9, "2": 8}


async def test_a_task_that_was_put_back_waits_from_then(store: Store) -> None:
    await store.task_submit([make_task()], now=NOW)
    ((task,), _) = await claim_at(store, 0, "work")
    end = AttemptEnd(task.id, DEFAULT_TENANT, task.fence, AttemptOutcome.RELEASED, TaskState.READY, None, None, None)
    ended = await store.task_end([end], is_expired=False, now=NOW + seconds(8))
    assert [(change.ran_seconds, change.timeout_seconds) for change in ended.changes] == [(8, 3600)]
    _, changes = await claim_at(store, 11, "work")
    assert [change.waited_seconds for change in changes] == [3]


async def test_a_task_that_was_held_waits_from_its_release(store: Store) -> None:
    schedule = make_schedule("queued", overlap=Overlap.QUEUE)
    await insert(store, schedule)
    await own_all_partitions(store, NODE)
    await store.tick_fire(NODE, [firing_of(schedule)], now=NOW)
    ((first,), _) = await claim_at(store, 0, "work")
    later = NOW + minutes(1)
    epoch = (await own_all_partitions(store, NODE, now=later))[schedule.partition]
    second = firing_of(schedule, epoch, expected=later, fires=later, next_tick_at=later + minutes(1))
    await store.tick_fire(NODE, [second], now=later)
    await store.task_complete([(LeaseRef(DEFAULT_TENANT, first.id, first.fence), None)], now=NOW + seconds(20))
    await store.task_release_held([schedule.id], limit=10, now=later + seconds(30))
    _, changes = await claim_at(store, 92, "work")
    assert [change.waited_seconds for change in changes] == [2]


async def test_a_completed_attempt_ran_from_its_claim(store: Store) -> None:
    await store.task_submit([make_task(timeout_seconds=90.5)], now=NOW)
    ((task,), _) = await claim_at(store, 5, "work")
    completed = await store.task_complete([(LeaseRef(DEFAULT_TENANT, task.id, task.fence), None)], now=NOW + seconds(12.5))
    assert [(change.ran_seconds, change.timeout_seconds) for change in completed.changes] == [(7.5, 90.5)]


async def test_a_final_attempt_ran_from_its_claim(store: Store) -> None:
    await store.task_submit([make_task()], now=NOW)
    ((task,), _) = await claim_at(store, 0, "work")
    end = AttemptEnd(task.id, DEFAULT_TENANT, task.fence, AttemptOutcome.FAILED, TaskState.DEAD, None, None, "x")
    ended = await store.task_end([end], is_expired=False, now=NOW + seconds(2))
    assert [(change.ran_seconds, change.timeout_seconds) for change in ended.changes] == [(2, 3600)]
