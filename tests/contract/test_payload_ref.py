"""Payloads in a blob store: the reference stays with its task, and a blob is unused only when no row refers to it."""

from __future__ import annotations

from typing import Any

import msgspec

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.submissions import task_for_replay
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, ClaimedTask, ClaimedTaskWithoutPayload, NewTask, TaskState
from everbeat.store.base import Store
from everbeat.store.values import ClaimRequest, DeadFilter, LeaseRef, Replay, TaskFilter
from tests.factories import NOW, claim_for, make_task, minutes

REF = "00000000-0000-0000-0000-000000000000/2026-01/0-1"
OTHER = "00000000-0000-0000-0000-000000000000/2026-01/1-1"


def large(**more: Any) -> NewTask:
    return make_task(payload=b"null", payload_ref=REF, **more)


async def claim(store: Store) -> ClaimedTask:
    ((task,),) = await claim_for(store, ["default"], [ClaimRequest("w", 1, 30)], now=NOW)
    return task


async def end(store: Store, task: ClaimedTask, outcome: AttemptOutcome, state: TaskState) -> None:
    ending = AttemptEnd(task.id, DEFAULT_TENANT, task.fence, outcome, state, None, None)
    ended = await store.task_end([ending], is_expired=False, now=NOW)
    assert ended.ids


async def test_task_claim_returns_the_payload_reference(store: Store) -> None:
    await store.task_submit([large()], now=NOW)
    task = await claim(store)
    assert isinstance(task, ClaimedTaskWithoutPayload)
    assert task.payload_ref == REF
    assert bytes(task.payload) == b"null"


async def test_task_claim_returns_a_small_payload_inline(store: Store) -> None:
    await store.task_submit([make_task(payload=b'{"a":1}')], now=NOW)
    task = await claim(store)
    assert type(task) is ClaimedTask
    assert msgspec.json.decode(task.payload) == {"a": 1}


async def test_task_find_and_task_list_return_the_reference_of_live_and_finished_tasks(store: Store) -> None:
    task = large()
    await store.task_submit([task], now=NOW)
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    scan = await store.task_list(DEFAULT_TENANT, TaskFilter(), before=None, limit=10, live=True)
    assert found.payload_ref == REF
    assert [one.payload_ref for one in scan.tasks] == [REF]
    claimed = await claim(store)
    await store.task_complete([(LeaseRef(DEFAULT_TENANT, claimed.id, claimed.fence), None)], now=NOW)
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    scan = await store.task_list(DEFAULT_TENANT, TaskFilter(), before=None, limit=10, live=False)
    assert found.payload_ref == REF
    assert [one.payload_ref for one in scan.tasks] == [REF]


async def test_task_end_keeps_the_reference_of_a_retried_task(store: Store) -> None:
    await store.task_submit([large()], now=NOW)
    await end(store, await claim(store), AttemptOutcome.RELEASED, TaskState.READY)
    again = await claim(store)
    assert isinstance(again, ClaimedTaskWithoutPayload)
    assert again.attempt == 1


async def test_task_cancel_keeps_the_reference(store: Store) -> None:
    task = large()
    await store.task_submit([task], now=NOW)
    await store.task_cancel(DEFAULT_TENANT, [task.id], now=NOW)
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert found.state is TaskState.CANCELLED
    assert found.payload_ref == REF


async def test_dead_replay_copies_the_reference_and_dead_purge_removes_it(store: Store) -> None:
    await store.task_submit([large()], now=NOW)
    task = await claim(store)
    await end(store, task, AttemptOutcome.FAILED, TaskState.DEAD)
    (letter,) = await store.dead_find(DEFAULT_TENANT, [task.id])
    assert letter.payload_ref == REF
    assert [one.payload_ref for one in await store.dead_list(DEFAULT_TENANT, DeadFilter(), before=None, limit=9)] == [REF]
    again = task_for_replay(letter, make_task().id)
    assert await store.dead_replay(DEFAULT_TENANT, [Replay(task.id, again)], again=False, now=NOW)
    replayed = await claim(store)
    assert isinstance(replayed, ClaimedTaskWithoutPayload)
    assert replayed.payload_ref == REF
    await store.task_complete([(LeaseRef(DEFAULT_TENANT, replayed.id, replayed.fence), None)], now=NOW)
    await store.month_prune(before=NOW + minutes(60 * 24 * 70), limit=1000)
    assert await store.blob_unused([REF]) == []
    await store.dead_purge(DEFAULT_TENANT, DeadFilter(), limit=10, now=NOW)
    assert await store.blob_unused([REF]) == [REF]


async def test_blob_unused_returns_references_that_no_row_has(store: Store) -> None:
    await store.task_submit([large(), make_task()], now=NOW)
    assert await store.blob_unused([]) == []
    assert await store.blob_unused([REF, OTHER]) == [OTHER]
    task = await claim(store)
    await store.task_complete([(LeaseRef(DEFAULT_TENANT, task.id, task.fence), None)], now=NOW)
    assert await store.blob_unused([REF, OTHER]) == [OTHER]
