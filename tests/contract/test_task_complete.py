"""task_complete: running tasks move to history under their lease, once."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, ClaimedTask, Origin, TaskState
from everbeat.store.base import Store
from everbeat.store.values import CompleteResult, HeartbeatWrite
from tests.factories import (
    NOW,
    OTHER_TENANT,
    claim,
    complete,
    count_rows,
    lease_of,
    make_task,
    minutes,
    open_second_store,
    seconds,
)

NOTHING = CompleteResult(frozenset(), frozenset(), [])


async def start(store: Store, count: int = 1) -> list[ClaimedTask]:
    await store.task_submit([make_task(str(number)) for number in range(count)], now=NOW)
    return await claim(store, limit=count)


async def test_task_complete_moves_the_task_to_history(store: Store) -> None:
    given = make_task(
        "mail", queue="slow", target='{"kind":"worker","type":"mail","queue":"slow"}', payload=b'{"a": 1}',
        origin=Origin.TICK, priority=3, max_attempts=9, retry='{"kind":"fixed"}', timeout_seconds=90.0, labels='{"team":"a"}',
        schedule_id=UUID(int=9), schedule_name="nightly", scheduled_for=NOW - minutes(1), traceparent="00-a-b-01",
    )  # fmt: skip
    await store.task_submit([given], now=NOW)
    (task,) = await claim(store, "slow", worker="w1", now=NOW + seconds(1))
    await store.task_heartbeat([HeartbeatWrite(lease_of(task), 0.9, "nearly")], now=NOW + seconds(2))
    (before,) = await store.task_find(DEFAULT_TENANT, [task.id])
    done = await complete(store, task, now=NOW + seconds(3), result='{"ok": "ä\\u0000"}')
    assert (done.finished, done.repeated) == ({(task.id, 1)}, frozenset())
    assert [(change.id, change.tenant_id, change.schedule_id) for change in done.changes] == [
        (task.id, DEFAULT_TENANT, UUID(int=9))
    ]
    assert await count_rows(store, "tasks") == 0
    (after,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (after.state, after.finished_at, after.result) == (
        TaskState.COMPLETED, NOW + seconds(3), '{"ok": "ä\\u0000"}'.encode()
    )  # fmt: skip
    assert (after.worker, after.lease_until, after.outcome, after.reason) == ("w1", None, AttemptOutcome.COMPLETED, None)
    changed = {"state", "finished_at", "result", "lease_until", "outcome"}
    kept = [field for field in before.__struct_fields__ if field not in changed]
    assert [getattr(after, field) for field in kept] == [getattr(before, field) for field in kept]


async def test_task_complete_of_an_empty_batch(store: Store) -> None:
    assert await store.task_complete([], now=NOW) == NOTHING


async def test_task_complete_stores_each_result(store: Store) -> None:
    tasks = await start(store, 3)
    results = [None, '"x"', "null"]
    await store.task_complete([(lease_of(task), result) for task, result in zip(tasks, results, strict=True)], now=NOW)
    found = {task.id: task.result for task in await store.task_find(DEFAULT_TENANT, [task.id for task in tasks])}
    assert [found[task.id] for task in tasks] == [None, b'"x"', b"null"]


async def test_task_complete_again_with_the_same_fence_is_reported_as_a_repetition(store: Store) -> None:
    (task,) = await start(store)
    await complete(store, task)
    again = await complete(store, task, now=NOW + minutes(5), result="1")
    assert again == CompleteResult(frozenset(), frozenset({(task.id, 1)}), [])
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.finished_at, found.result) == (NOW, None)
    assert await count_rows(store, "task_history") == 1


async def test_task_complete_twice_in_one_batch_finishes_once(store: Store) -> None:
    (task,) = await start(store)
    done = await complete(store, task, task)
    assert (done.finished, done.repeated, len(done.changes)) == ({(task.id, 1)}, frozenset(), 1)
    assert await count_rows(store, "task_history") == 1


WRONG: dict[str, dict[str, Any]] = {
    "a newer fence": {"fence": 2},
    "an older fence": {"fence": 0},
    "another tenant": {"tenant_id": OTHER_TENANT},
    "another task": {"id": UUID(int=5)},
}


@pytest.mark.parametrize("case", list(WRONG))
async def test_task_complete_without_the_lease_changes_nothing(store: Store, case: str) -> None:
    (task,) = await start(store)
    assert await store.task_complete([(lease_of(task, **WRONG[case]), "1")], now=NOW) == NOTHING
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.state, found.result) == (TaskState.RUNNING, None)
    assert len((await complete(store, task)).finished) == 1
    assert await store.task_complete([(lease_of(task, **WRONG[case]), "1")], now=NOW) == NOTHING, (
        "nor after the task is finished"
    )


async def test_task_complete_after_the_lease_expired_changes_nothing(store: Store) -> None:
    (task,) = await start(store)
    assert await complete(store, task, now=NOW + seconds(30)) == NOTHING
    assert len((await complete(store, task, now=NOW + seconds(29.999999))).finished) == 1


async def test_task_complete_with_a_stale_fence_changes_nothing(store: Store) -> None:
    (old,) = await start(store)
    back = AttemptEnd(old.id, DEFAULT_TENANT, 1, AttemptOutcome.LOST, TaskState.READY, None, None)
    await store.task_end([back], is_expired=True, now=NOW + seconds(31))
    assert await complete(store, old, now=NOW + seconds(31)) == NOTHING
    (new,) = await claim(store, worker="fresh", now=NOW + seconds(31))
    assert (new.fence, new.attempt) == (2, 2)
    assert await complete(store, old, now=NOW + seconds(32)) == NOTHING
    assert await count_rows(store, "task_history") == 0
    assert (await complete(store, new, now=NOW + seconds(32))).finished == {(new.id, 2)}
    assert await complete(store, old, now=NOW + seconds(33)) == NOTHING, "another fence finished it"


async def test_task_complete_of_a_failed_task_is_not_a_repetition(store: Store) -> None:
    (task,) = await start(store)
    dead = AttemptEnd(task.id, DEFAULT_TENANT, 1, AttemptOutcome.FAILED, TaskState.DEAD, None, None, "no use")
    await store.task_end([dead], is_expired=False, now=NOW)
    assert await complete(store, task) == NOTHING


async def test_task_complete_is_allowed_after_a_cancel_request(store: Store) -> None:
    (task,) = await start(store)
    await store.task_cancel(DEFAULT_TENANT, [task.id], now=NOW)
    assert len((await complete(store, task)).finished) == 1


async def test_task_complete_of_a_batch_finishes_tasks_with_a_valid_lease(store: Store) -> None:
    one, two, three = await start(store, 3)
    await complete(store, three)
    leases = [lease_of(one), lease_of(two, fence=9), lease_of(three), lease_of(one, id=UUID(int=5))]
    done = await store.task_complete([(lease, None) for lease in leases], now=NOW)
    assert (done.finished, done.repeated) == (frozenset({(one.id, 1)}), frozenset({(three.id, 1)}))


async def test_task_complete_of_a_thousand_tasks(store: Store) -> None:
    tasks = await start(store, 1000)
    assert len((await complete(store, *tasks)).finished) == 1000
    assert (await count_rows(store, "tasks"), await count_rows(store, "task_history")) == (0, 1000)


async def test_task_complete_creates_a_missing_month(store: Store) -> None:
    task = make_task(timeout_seconds=1e8)
    await store.task_submit([task], now=NOW)
    (claimed,) = await claim(store, lease_seconds=1e8, total_seconds=1e8)
    later = NOW + minutes(60 * 24 * 400)
    assert len((await complete(store, claimed, now=later)).finished) == 1
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert found.finished_at == later


async def test_task_complete_under_concurrency_finishes_each_task_once(store: Store) -> None:
    tasks = await start(store, 100)
    stores = [store, *(open_second_store(store) for _ in range(3))]
    batches = [tasks, tasks[::-1], tasks[50:] + tasks[:50], tasks[::2]]
    done = await asyncio.gather(*(complete(one, *batch) for one, batch in zip(stores, batches, strict=True)))
    for second_store in stores[1:]:
        await second_store.close()
    finished = [pair for one in done for pair in one.finished]
    assert len(finished) == len(set(finished)) == 100
    for one, batch in zip(done, batches, strict=True):
        # A task that another call is just completing is locked.
        assert one.finished | one.repeated | one.locked == {(task.id, 1) for task in batch}
        assert (await complete(store, *batch)).repeated == {(task.id, 1) for task in batch}
    assert await count_rows(store, "task_history") == 100


async def test_task_complete_and_a_concurrent_reaper_never_both_succeed(store: Store) -> None:
    """The lease expires while its worker completes the task. The two callers see different times, and only one succeeds."""
    second_store = open_second_store(store)
    for _ in range(20):
        await store.task_submit([make_task()], now=NOW)
        (task,) = await claim(store)
        back = AttemptEnd(task.id, DEFAULT_TENANT, task.fence, AttemptOutcome.LOST, TaskState.READY, None, None)
        done, ended = await asyncio.gather(
            complete(store, task, now=NOW + seconds(29)), second_store.task_end([back], is_expired=True, now=NOW + seconds(30))
        )
        assert len(done.finished) + len(ended.ids) == 1
        (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
        assert found.state is (TaskState.COMPLETED if done.finished else TaskState.READY)
        await store.task_cancel(DEFAULT_TENANT, [task.id], now=NOW)
    await second_store.close()
