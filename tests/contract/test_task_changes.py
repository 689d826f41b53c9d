"""Every verb that changes tasks returns exactly the tasks that it changed, once each, in their new state."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.changes import ScheduleWrite
from everbeat.core.fairness import ClaimStep
from everbeat.core.schedules import DEFAULT_TENANT, Overlap, Schedule, Status
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, ClaimedTask, Origin, TaskChange, TaskChangeKind, TaskKey, TaskState
from everbeat.store.base import Store
from everbeat.store.values import ClaimRequest, FireResult, Replay
from tests.factories import (
    NOW,
    OTHER_TENANT,
    changed,
    claim,
    complete,
    execute_raw,
    find,
    firing_of,
    insert,
    make_schedule,
    make_task,
    minutes,
    own_all_partitions,
    seconds,
)

NODE = UUID(int=7)
SCHEDULE = UUID(int=9)
KEY = TaskKey("once", b"1")
Snapshot = dict[UUID, tuple[Any, ...]]

LIVE = "SELECT id, state, attempt, run_at, cancel_requested, lease_owner FROM tasks"
FINISHED = "SELECT id, state, attempt, run_at, finished_at, worker FROM task_history"


async def snapshot(store: Store) -> Snapshot:
    rows = [*await execute_raw(store, LIVE), *await execute_raw(store, FINISHED)]
    return {row[0] if isinstance(row[0], UUID) else UUID(bytes=row[0]): row[1:] for row in rows}


async def verify(store: Store, before: Snapshot, changes: Sequence[TaskChange]) -> list[TaskChange]:
    """Compare the changes with the rows that differ from `before`, and return the changes."""
    after = await snapshot(store)
    assert sorted(change.id for change in changes) == sorted(id_ for id_ in after if after[id_] != before.get(id_))
    for change in changes:
        (task,) = await store.task_find(change.tenant_id, [change.id])
        assert (change.queue, change.type, change.state) == (task.queue, task.type, task.state)
        assert (change.attempt, change.schedule_id) == (task.attempt, task.schedule_id)
        assert change.priority in (None, task.priority)
        assert change.fair_key in (None, task.fair_key)
        assert change.run_at in (None, task.run_at)
        assert change.origin in (None, task.origin)
        if task.state in (TaskState.READY, TaskState.SCHEDULED, TaskState.HELD):
            assert (change.priority, change.fair_key, change.run_at) == (task.priority, task.fair_key, task.run_at)
        else:
            assert change.worker == task.worker
    return list(changes)


def summary(changes: Sequence[TaskChange]) -> list[tuple[str, str, str | None]]:
    return sorted((one.kind.value, one.state.value, one.outcome.value if one.outcome else None) for one in changes)


def end_of(task: ClaimedTask, outcome: AttemptOutcome, state: TaskState, run_at: datetime | None = None) -> AttemptEnd:
    return AttemptEnd(task.id, task.tenant_id, task.fence, outcome, state, run_at, None, "why")


async def fire(store: Store, *schedules: Schedule, times: int = 1) -> FireResult:
    """Fire the next ticks of each schedule, each at its own time."""
    for _ in range(times):
        firings = [firing_of(await find(store, schedule)) for schedule in schedules]
        now = max(firing.expected for firing in firings)
        epochs = await own_all_partitions(store, NODE, now=now)
        result = await store.tick_fire(NODE, [one._replace(epoch=epochs[one.partition]) for one in firings], now=now)
    return result


async def test_task_submit_returns_the_new_tasks(store: Store) -> None:
    await store.task_submit([make_task(key=KEY)], now=NOW)
    before = await snapshot(store)
    tasks = [
        make_task("a", fair_key="k", priority=2, schedule_id=SCHEDULE, origin=Origin.TRIGGER),
        make_task("b", tenant_id=OTHER_TENANT, delay_seconds=5.5),
        make_task("c", run_at=NOW + minutes(1), origin=Origin.BACKFILL),
        make_task("d", run_at=NOW - minutes(1)),
        make_task("e", delay_seconds=0.0),
        make_task("f", lease_owner="w1"),
        make_task(key=KEY),
    ]
    submitted = await store.task_submit(tasks, now=NOW)
    assert submitted.repeated == {6}
    changes = await verify(store, before, submitted.changes)
    assert [(one.type, one.state.value, one.attempt, one.worker) for one in changes] == [
        ("a", "ready", 0, None),
        ("b", "scheduled", 0, None),
        ("c", "scheduled", 0, None),
        ("d", "ready", 0, None),
        ("e", "ready", 0, None),
        ("f", "running", 1, "w1"),
    ]
    assert {one.kind for one in changes} == {TaskChangeKind.SUBMITTED}
    assert [one.origin for one in changes[:3]] == [Origin.TRIGGER, Origin.SUBMIT, Origin.BACKFILL]


@pytest.mark.parametrize("fingerprint", [b"1", b"2"])
async def test_task_submit_with_a_taken_key_changes_nothing(store: Store, fingerprint: bytes) -> None:
    await store.task_submit([make_task(key=KEY)], now=NOW)
    before = await snapshot(store)
    again = make_task(key=TaskKey("once", fingerprint))
    assert await verify(store, before, (await store.task_submit([again], now=NOW)).changes) == []
    assert await verify(store, before, (await store.task_submit([], now=NOW)).changes) == []


async def test_task_submit_with_one_key_twice_is_one_change(store: Store) -> None:
    submitted = await store.task_submit([make_task(key=KEY), make_task(key=KEY), make_task()], now=NOW)
    assert len(await verify(store, {}, submitted.changes)) == 2


async def test_tick_fire_returns_the_tasks_of_its_ticks(store: Store) -> None:
    ready = make_schedule("ready", priority=1)
    behind = make_schedule("behind", overlap=Overlap.QUEUE)
    skipped = make_schedule("skipped", overlap=Overlap.SKIP)
    jobs = (ready, behind, skipped)
    await insert(store, *jobs)
    await fire(store, behind)
    await fire(store, skipped)
    before = await snapshot(store)
    fired = await fire(store, *jobs)
    changes = await verify(store, before, fired.changes)
    assert {one.schedule_id: one.state.value for one in changes} == {ready.id: "ready", behind.id: "held"}
    assert {(one.kind, one.origin) for one in changes} == {(TaskChangeKind.SUBMITTED, Origin.TICK)}
    before = await snapshot(store)
    stale = await store.tick_fire(NODE, [firing_of(one) for one in jobs], now=NOW)
    assert await verify(store, before, stale.changes) == []


async def test_task_claim_returns_the_tasks_of_each_worker(store: Store) -> None:
    await store.task_submit([make_task(schedule_id=SCHEDULE), make_task(), make_task()], now=NOW)
    before = await snapshot(store)
    flows = await store.task_flows(DEFAULT_TENANT, ["default"], limit=10)
    steps = [ClaimStep(flow.priority, flow.tenant_id, flow.fair_key, ((flow.queue, flow.type),), 2) for flow in flows]
    result = await store.task_claim(steps, [ClaimRequest("w1", 1, 30), ClaimRequest("w2", 1, 30)], now=NOW)
    changes = await verify(store, before, result.changes)
    assert summary(changes) == [("claimed", "running", None)] * 2
    assert [one.id for one in changes] == [task.id for part in result.tasks for task in part]
    assert [one.worker for one in changes] == ["w1", "w2"]


async def test_task_complete_returns_the_finished_tasks(store: Store) -> None:
    await store.task_submit([make_task(schedule_id=SCHEDULE), make_task(), make_task()], now=NOW)
    one, two, _ = await claim(store, worker="w1")
    await complete(store, two)
    before = await snapshot(store)
    changes = await verify(store, before, (await complete(store, one, one, two, now=NOW + seconds(1))).changes)
    assert summary(changes) == [("completed", "completed", "completed")]
    assert changes[0].worker == "w1"


async def test_task_end_returns_the_new_state_of_each_task(store: Store) -> None:
    await store.task_submit([make_task(fair_key="k", schedule_id=SCHEDULE) for _ in range(7)], now=NOW)
    one, two, three, four, five, six, _ = await claim(store, worker="w1")
    endings = [
        end_of(one, AttemptOutcome.FAILED, TaskState.SCHEDULED, NOW + minutes(1)),
        end_of(two, AttemptOutcome.RELEASED, TaskState.READY),
        end_of(three, AttemptOutcome.FAILED, TaskState.DEAD),
        end_of(four, AttemptOutcome.FAILED, TaskState.FAILED),
        end_of(five, AttemptOutcome.CANCELLED, TaskState.CANCELLED),
        end_of(six, AttemptOutcome.FAILED, TaskState.READY)._replace(fence=5),
    ]
    before = await snapshot(store)
    ended = await store.task_end([*endings, endings[0], endings[2]], is_expired=False, now=NOW + seconds(1))
    changes = await verify(store, before, ended.changes)
    assert summary(changes) == [
        ("cancelled", "cancelled", "cancelled"),
        ("dead", "dead", "failed"),
        ("failed", "failed", "failed"),
        ("released", "ready", "released"),
        ("retried", "scheduled", "failed"),
    ]
    assert {one.worker for one in changes} == {"w1"}
    before = await snapshot(store)
    again = await store.task_end(endings, is_expired=False, now=NOW + seconds(2))
    assert await verify(store, before, again.changes) == []


async def test_task_end_of_lost_attempts_returns_their_tasks(store: Store) -> None:
    await store.task_submit([make_task(), make_task()], now=NOW)
    one, two = await claim(store, worker="w1")
    before = await snapshot(store)
    endings = [
        end_of(one, AttemptOutcome.LOST, TaskState.READY),
        end_of(two, AttemptOutcome.TIMEOUT, TaskState.DEAD),
    ]
    ended = await store.task_end(endings, is_expired=True, now=NOW + minutes(10))
    assert summary(await verify(store, before, ended.changes)) == [("dead", "dead", "timeout"), ("retried", "ready", "lost")]


async def test_task_promote_returns_the_tasks_that_became_ready(store: Store) -> None:
    await store.task_submit([make_task(delay_seconds=delay, fair_key="k") for delay in (1.0, 2.0, 9.0)], now=NOW)
    before = await snapshot(store)
    promoted = await store.task_promote(limit=10, now=NOW + seconds(5))
    changes = await verify(store, before, promoted.changes)
    assert summary(changes) == [("promoted", "ready", None)] * 2
    assert (promoted.count, promoted.queues) == (2, frozenset({changes[0].queue}))


@pytest.mark.parametrize("is_named", [True, False])
async def test_task_release_held_returns_the_released_tasks(store: Store, is_named: bool) -> None:
    job, other = make_schedule("a", overlap=Overlap.QUEUE), make_schedule("b", overlap=Overlap.QUEUE)
    await insert(store, job, other)
    await fire(store, job, times=3)
    await fire(store, other, times=2)
    await complete(store, *[task for task in await claim(store) if task.schedule_id == job.id])
    before = await snapshot(store)
    released = await store.task_release_held([job.id] if is_named else None, limit=10, now=NOW + minutes(60))
    changes = await verify(store, before, released.changes)
    assert summary(changes) == [("released_from_hold", "ready", None)]
    assert changes[0].schedule_id == job.id


async def test_task_release_held_returns_the_replaced_tasks(store: Store) -> None:
    """A newer tick replaces older tasks: a running task is requested to stop once; a waiting task ends."""
    job = make_schedule(overlap=Overlap.CANCEL_PREVIOUS)
    await insert(store, job)
    await fire(store, job, times=3)
    before = await snapshot(store)
    released = await store.task_release_held([job.id], limit=10, now=NOW + minutes(60))
    changes = await verify(store, before, released.changes)
    assert summary(changes) == [
        ("released_from_hold", "ready", None),
        ("replaced", "cancelled", None),
        ("replaced", "cancelled", None),
    ]
    await claim(store, worker="w1")
    await fire(store, job, times=2)
    before = await snapshot(store)
    released = await store.task_release_held([job.id], limit=10, now=NOW + minutes(60))
    changes = await verify(store, before, released.changes)
    assert summary(changes) == [("cancel_requested", "running", None), ("replaced", "cancelled", None)]
    before = await snapshot(store)
    again = await store.task_release_held([job.id], limit=10, now=NOW + minutes(60))
    assert await verify(store, before, again.changes) == []


async def test_task_cancel_returns_ended_and_requested_tasks(store: Store) -> None:
    running, ready = make_task(priority=0, schedule_id=SCHEDULE), make_task(priority=3, schedule_id=SCHEDULE)
    theirs = make_task(tenant_id=OTHER_TENANT, delay_seconds=60.0)
    await store.task_submit([running, ready, theirs], now=NOW)
    await claim(store, limit=1, worker="w1")
    ids = [running.id, ready.id, ready.id, theirs.id, UUID(int=5)]
    before = await snapshot(store)
    changes = await verify(store, before, (await store.task_cancel(DEFAULT_TENANT, ids, now=NOW)).changes)
    assert summary(changes) == [("cancel_requested", "running", None), ("cancelled", "cancelled", None)]
    before = await snapshot(store)
    again = await store.task_cancel(DEFAULT_TENANT, ids, now=NOW)
    assert again.requested == {running.id}
    assert await verify(store, before, again.changes) == []


async def test_task_reschedule_returns_the_task(store: Store) -> None:
    task = make_task(fair_key="k")
    await store.task_submit([task], now=NOW)
    for minute, state in ((5, "scheduled"), (-1, "ready")):
        before = await snapshot(store)
        changes = await store.task_reschedule(DEFAULT_TENANT, task.id, NOW + minutes(minute), now=NOW)
        assert summary(await verify(store, before, changes)) == [("rescheduled", state, None)]


async def test_dead_replay_returns_the_new_tasks(store: Store) -> None:
    await store.task_submit([make_task(), make_task()], now=NOW)
    one, two = await claim(store)
    endings = [end_of(task, AttemptOutcome.FAILED, TaskState.DEAD) for task in (one, two)]
    await store.task_end(endings, is_expired=False, now=NOW + seconds(1))
    replays = [
        Replay(one.id, make_task(origin=Origin.REPLAY)),
        Replay(two.id, make_task(origin=Origin.REPLAY, delay_seconds=60.0)),
        Replay(UUID(int=5), make_task(origin=Origin.REPLAY)),
    ]
    before = await snapshot(store)
    replayed = await store.dead_replay(DEFAULT_TENANT, [*replays, replays[0]], again=False, now=NOW)
    changes = await verify(store, before, replayed.changes)
    assert summary(changes) == [("submitted", "ready", None), ("submitted", "scheduled", None)]
    assert {change.origin for change in changes} == {Origin.REPLAY}
    before = await snapshot(store)
    again = await store.dead_replay(DEFAULT_TENANT, replays, again=False, now=NOW)
    assert await verify(store, before, again.changes) == []


async def test_schedule_write_returns_the_tasks_that_a_pause_holds(store: Store) -> None:
    job, other = make_schedule("a", max_concurrent=3), make_schedule("b")
    await insert(store, job, other)
    await fire(store, job, times=2)
    await claim(store, limit=1)
    await fire(store, other)
    before = await snapshot(store)
    current = await find(store, job)
    write = ScheduleWrite(changed(current, status=Status.PAUSED), current)
    written = await store.schedule_write(DEFAULT_TENANT, [write], now=NOW)
    assert written.is_written
    changes = await verify(store, before, written.changes)
    assert summary(changes) == [("held", "held", None)]
    before = await snapshot(store)
    stale = await store.schedule_write(DEFAULT_TENANT, [write], now=NOW)
    assert (stale.is_written, await verify(store, before, stale.changes)) == (False, [])
