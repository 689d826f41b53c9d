"""The change publisher: every task change is published once and reaches metrics, event stream, long polls and overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.fairness import Flow
from everbeat.core.protocol import LeaseClaimRequest, TaskInput
from everbeat.core.schedules import DEFAULT_TENANT, Schedule
from everbeat.core.tasks import TRANSITIONS, Origin, TaskChange, TaskChangeKind, TaskState
from everbeat.services.events import TasksClaimed, TasksFinished, TasksSubmitted
from everbeat.services.publisher import ChangeEffects, effects_of
from everbeat.store.base import Store
from everbeat.store.values import DeadFilter, Notice, TaskFilter
from tests.factories import NOW, SteppedNode, minutes, seconds
from tests.services.polling import PollingNode, response
from tests.services.workers import Worker, get, submit

Transition = tuple[TaskState | None, TaskState]


class RecordedNode(SteppedNode):
    """Compares the published changes with the rows of the database after each step."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.published: list[TaskChange] = []
        self.transitions: set[Transition] = set()
        self._states: dict[UUID, TaskState] = {}
        publish = self.engine.publisher.publish

        def record(changes: Sequence[TaskChange], **more: Any) -> None:
            self.published += changes
            publish(changes, **more)

        self.engine.publisher.publish = record  # type: ignore[method-assign]

    async def check(self) -> list[TaskChange]:
        """Verify that each task whose state has changed was published once with its new state, and no other task."""
        page = await self.tasks.page(DEFAULT_TENANT, TaskFilter(), before=None, limit=1000)
        states = {task.id: task.state for task in page.tasks}
        changed = {id_: state for id_, state in states.items() if self._states.get(id_) is not state}
        changes, self.published = self.published, []
        of_states = [change for change in changes if change.state is not self._states.get(change.id)]
        assert sorted((change.id, change.state.value) for change in of_states) == sorted(
            (id_, state.value) for id_, state in changed.items()
        )
        self.transitions |= {(self._states.get(id_), state) for id_, state in changed.items()}
        self._states = states
        return changes

    async def kinds(self) -> list[str]:
        return [change.kind.value for change in await self.check()]


@pytest.fixture
def node(store: Store) -> RecordedNode:
    return RecordedNode(store)


async def test_every_transition_is_published_once(node: RecordedNode) -> None:
    for walk in (_attempts, _cancelling, _delays, _overlap, _pausing, _replays):
        await walk(node, Worker(node))
    possible = {(before, after) for before, states in TRANSITIONS.items() for after in states}
    assert {one for one in node.transitions if one[0] is not None} == possible
    new = {TaskState.READY, TaskState.SCHEDULED, TaskState.HELD}
    assert {after for before, after in node.transitions if before is None} == new


async def _attempts(node: RecordedNode, worker: Worker) -> None:
    await submit(node, max_attempts=3)
    assert await node.kinds() == ["submitted"]
    task = await worker.claim_one()
    assert await node.kinds() == ["claimed"]
    await worker.release(task)
    assert await node.kinds() == ["released"]
    task = await worker.claim_one()
    assert await node.kinds() == ["claimed"]
    await worker.fail(task, retry_in_seconds=5)
    assert await node.kinds() == ["retried"]
    await node.promote(node.now + seconds(5))
    assert await node.kinds() == ["promoted"]
    await worker.claim_one(lease_seconds=5)
    assert await node.kinds() == ["claimed"]
    await node.reap(node.now + seconds(6))
    assert await node.kinds() == ["retried"]
    task = await worker.claim_one()
    assert await node.kinds() == ["claimed"]
    await worker.fail(task)
    assert await node.kinds() == ["dead"]
    await worker.fail(task)
    assert await node.kinds() == [], "a repeated report changes nothing"
    await submit(node)
    await node.check()
    task = await worker.claim_one()
    await node.check()
    await worker.complete(task)
    assert await node.kinds() == ["completed"]
    await worker.complete(task)
    assert await node.kinds() == []


async def _cancelling(node: RecordedNode, worker: Worker) -> None:
    for kind, change in (("cancelled", "cancelled"), (None, "failed")):
        task = await submit(node)
        await node.check()
        claimed = await worker.claim_one()
        await node.check()
        await node.tasks.cancel(DEFAULT_TENANT, task.id, now=node.now)
        assert await node.kinds() == ["cancel_requested"]
        await node.tasks.cancel(DEFAULT_TENANT, task.id, now=node.now)
        assert await node.kinds() == [], "it was already requested"
        await worker.fail(claimed, kind=kind)
        assert await node.kinds() == [change]
    for delay in (None, 60):
        task = await submit(node, delay_seconds=delay)
        await node.check()
        await node.tasks.cancel(DEFAULT_TENANT, task.id, now=node.now)
        assert await node.kinds() == ["cancelled"]


async def _delays(node: RecordedNode, worker: Worker) -> None:
    task = await submit(node)
    await node.check()
    await node.tasks.reschedule(DEFAULT_TENANT, task.id, node.now + minutes(1), now=node.now)
    assert await node.kinds() == ["rescheduled"]
    await node.promote(node.now + minutes(1))
    assert await node.kinds() == ["promoted"]
    await _finish(node, worker)


async def _overlap(node: RecordedNode, worker: Worker) -> None:
    job = await _fire(node, "queued", overlap="queue")
    await _fire_again(node)
    assert [task.state for task in await _live(node, job)] == [TaskState.READY, TaskState.HELD]
    task = await worker.claim_one()
    await node.check()
    await worker.complete(task)
    await node.check()
    await node.release_held()
    assert await node.kinds() == ["released_from_hold"]
    await _fire_again(node)
    (held,) = [task for task in await _live(node, job) if task.state is TaskState.HELD]
    await node.tasks.cancel(DEFAULT_TENANT, held.id, now=node.now)
    assert await node.kinds() == ["cancelled"]
    await _remove(node, worker, job)
    job = await _fire(node, "replacing", overlap="cancel_previous")
    await _fire_again(node)
    await node.release_held()
    assert sorted(await node.kinds()) == ["released_from_hold", "replaced"]
    await _remove(node, worker, job)


async def _pausing(node: RecordedNode, worker: Worker) -> None:
    first, second = await _fire(node, "first"), await _fire(node, "second", retry={"kind": "fixed", "base_seconds": 600})
    (task,) = await _live(node, second)
    for claimed in await worker.claim(2):
        await node.check()
        await (worker.fail(claimed) if claimed.id == task.id else worker.release(claimed))
        await node.check()
    for change, states in (("held", {TaskState.HELD}), ("released_from_hold", {TaskState.READY, TaskState.SCHEDULED})):
        for job in (first, second):
            if change == "held":
                await node.schedules.pause(DEFAULT_TENANT, str(job.id), note=None, now=node.now)
            else:
                await node.schedules.resume(DEFAULT_TENANT, str(job.id), now=node.now)
            await node.release_held()
            assert await node.kinds() == [change]
        assert {task.state for job in (first, second) for task in await _live(node, job)} == states
    for job in (first, second):
        await _remove(node, worker, job)


async def _replays(node: RecordedNode, worker: Worker) -> None:
    await submit(node, max_attempts=1)
    await node.check()
    task = await worker.claim_one()
    await node.check()
    await worker.fail(task)
    await node.check()
    await node.dead_letters.replay(DEFAULT_TENANT, task.id, now=node.now)
    assert await node.kinds() == ["submitted"]
    await _finish(node, worker)
    await node.dead_letters.replay_all(DEFAULT_TENANT, DeadFilter(), rate_per_second=None, now=node.now)
    assert set(await node.kinds()) == {"submitted"}
    await _finish(node, worker)
    await node.tasks.retry(DEFAULT_TENANT, task.id, now=node.now)
    assert await node.kinds() == ["submitted"]
    await node.tasks.submit_batch(DEFAULT_TENANT, [TaskInput(type="work", delay_seconds=60)] * 3, now=node.now)
    assert await node.kinds() == ["submitted"] * 3
    job = await _fire(node, "triggered")
    await node.backfill.trigger(DEFAULT_TENANT, str(job.id), now=node.now)
    assert await node.kinds() == ["submitted"]


async def _fire(node: RecordedNode, name: str, **more: Any) -> Schedule:
    job = await node.put(name, **more)
    await _fire_again(node)
    return job


async def _fire_again(node: RecordedNode) -> None:
    await node.step(node.now + minutes(1))
    assert "submitted" in await node.kinds()


async def _live(node: RecordedNode, job: Schedule) -> list[Any]:
    page = await node.tasks.page(DEFAULT_TENANT, TaskFilter(schedule_id=job.id), before=None, limit=100)
    live = [task for task in page.tasks if task.finished_at is None]
    return sorted(live, key=lambda task: task.scheduled_for or NOW)


async def _finish(node: RecordedNode, worker: Worker) -> None:
    tasks = await worker.claim(100)
    assert await node.kinds() == ["claimed"] * len(tasks)
    await worker.complete(*tasks)
    assert await node.kinds() == ["completed"] * len(tasks)


async def _remove(node: RecordedNode, worker: Worker, job: Schedule) -> None:
    """Pause the schedule and cancel its tasks, so that they do not affect the next steps."""
    await node.schedules.pause(DEFAULT_TENANT, str(job.id), note=None, now=node.now)
    await node.check()
    for task in await _live(node, job):
        await node.tasks.cancel(DEFAULT_TENANT, task.id, now=node.now)
    await node.check()


# Effects of changes


async def test_a_task_replaced_by_cancel_previous_reaches_metrics_and_the_event_stream(node: RecordedNode) -> None:
    subscription = node.event_stream.subscribe(DEFAULT_TENANT)
    job = await _fire(node, "replacing", overlap="cancel_previous")
    (replaced,) = await _live(node, job)
    await _fire_again(node)
    await node.release_held()
    assert node.events_of(TasksFinished) == [TasksFinished("cancelled", 1)]
    events = [event.data for event in await subscription.take(0) if event.data.get("change") == "cancelled"]
    assert [(one["id"], one["state"], one["queue"]) for one in events] == [(replaced.id, "cancelled", "default")]
    assert (await get(node, replaced)).state is TaskState.CANCELLED


async def test_a_task_handed_to_a_waiting_worker_is_returned_as_running_and_published_as_claimed(store: Store) -> None:
    polling = PollingNode(store)
    subscription = polling.node.event_stream.subscribe(DEFAULT_TENANT)
    poll = await polling.waiting_poll("waiting", lease_seconds=60)
    returned, is_new = await polling.node.tasks.submit(DEFAULT_TENANT, TaskInput(type="work"))
    (task,) = await response(poll)
    assert is_new
    assert returned == await get(polling.node, returned), "the response is the row as it was written"
    assert (returned.state, returned.attempt, returned.fence, returned.worker) == (TaskState.RUNNING, 1, 1, "waiting")
    assert (returned.lease_until, returned.id) == (task.lease_until, task.id)
    events = [event.data for event in await subscription.take(0)]
    assert [(one["change"], one["id"]) for one in events] == [("submitted", task.id), ("claimed", task.id)]
    assert polling.node.events_of(TasksSubmitted) == [TasksSubmitted(1)]
    assert polling.node.events_of(TasksClaimed) == [TasksClaimed(1, [0.0])]
    await polling.close()


def change(kind: TaskChangeKind, state: TaskState, **more: Any) -> TaskChange:
    return TaskChange(UUID(int=1), DEFAULT_TENANT, "default", "work", kind, state, **more)


def test_effects_of_changes() -> None:
    schedule_id = UUID(int=7)
    held = change(TaskChangeKind.SUBMITTED, TaskState.HELD, origin=Origin.TICK, schedule_id=schedule_id)
    assert effects_of([held]) == ChangeEffects(set(), set(), set(), {schedule_id})
    fired = change(TaskChangeKind.SUBMITTED, TaskState.READY, origin=Origin.TICK, schedule_id=schedule_id)
    assert effects_of([fired]) == ChangeEffects({"default"}, set(), set(), set())
    promoted = change(TaskChangeKind.PROMOTED, TaskState.READY, priority=5, fair_key="shop")
    assert effects_of([promoted]).ready_flows == {Flow("default", DEFAULT_TENANT, 5, "shop", "work")}, "no scan is needed"
    replaced = change(TaskChangeKind.REPLACED, TaskState.CANCELLED, schedule_id=schedule_id)
    assert effects_of([replaced]) == ChangeEffects(set(), set(), set(), set())
    claimed = change(TaskChangeKind.CLAIMED, TaskState.RUNNING)
    assert effects_of([claimed]) == ChangeEffects(set(), set(), set(), set())


@pytest.mark.parametrize(("delay_seconds", "is_announced"), [(4, True), (6, False)])
async def test_promoters_are_woken_for_new_tasks_that_are_due_soon(
    node: RecordedNode, delay_seconds: float, is_announced: bool
) -> None:
    notices: list[Notice] = []
    node.store.subscribe(notices.append)
    await submit(node, delay_seconds=delay_seconds)
    assert (Notice.DELAYED in notices) is is_announced


async def test_a_claim_that_finds_nothing_publishes_nothing(node: RecordedNode) -> None:
    claim = LeaseClaimRequest(worker="w", queues=["default"])
    assert await node.leases.claim(DEFAULT_TENANT, claim, now=node.now) == []
    assert await node.check() == []
    assert node.events_of(TasksClaimed) == []
