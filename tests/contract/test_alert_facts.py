"""Verbs that read the facts from which alert rules are judged."""

from __future__ import annotations

from uuid import UUID

from everbeat.core.partitioning import PARTITIONS
from everbeat.core.protocol import TaskInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.targets import WorkerTarget
from everbeat.core.tasks import Origin, TaskState
from everbeat.store.base import Store
from tests.contract.test_alerts import evaluation, make_rule
from tests.factories import NOW, OTHER_TENANT, SteppedNode, make_task, minutes, seconds
from tests.services.workers import Worker


async def submit(node: SteppedNode, type_: str = "work", **more: object) -> UUID:
    return (await node.tasks.submit(DEFAULT_TENANT, TaskInput(type=type_, **more), now=node.now))[0].id  # type: ignore[arg-type]


async def notification(store: Store) -> None:
    await store.alert_write(make_rule(), expected=None)
    task = make_task("tell", origin=Origin.ALERT)
    assert await store.alert_apply(await evaluation(store, tasks=[task]), now=NOW)


async def test_schedule_late_returns_the_overdue_schedules_of_a_tenant(store: Store) -> None:
    node = SteppedNode(store)
    await node.put("early", every_seconds=60, anchor="2026-03-02T12:00:00Z")
    await node.put("late", every_seconds=60, anchor="2026-03-02T11:59:30Z")
    await node.put("off", every_seconds=30, enabled=False)
    now = NOW + seconds(90)
    found = await store.schedule_late(DEFAULT_TENANT, late_seconds=20, limit=10, now=now)
    assert [one.spec.name for one in found] == ["late", "early"]
    assert [one.spec.name for one in await store.schedule_late(DEFAULT_TENANT, late_seconds=40, limit=10, now=now)] == ["late"]
    assert len(await store.schedule_late(DEFAULT_TENANT, late_seconds=1, limit=1, now=now)) == 1
    assert await store.schedule_late(OTHER_TENANT, late_seconds=1, limit=10, now=now) == []
    assert PARTITIONS == 256


async def test_schedule_runs_returns_the_newest_runs_of_each_schedule(store: Store) -> None:
    node = SteppedNode(store)
    await node.renew()
    schedules = [await node.put(name, every_seconds=60, anchor="2026-03-02T12:00:00Z") for name in ("a", "b")]
    worker = Worker(node)
    for minute in (1, 2, 3):
        await node.step(NOW + minutes(minute))
        claimed = await worker.claim(10)
        node.move_to(node.now + seconds(minute))
        for task in claimed:
            await (worker.fail(task, retryable=False) if minute == 2 else worker.complete(task))
    ids = [one.id for one in schedules]
    runs = await store.schedule_runs(DEFAULT_TENANT, ids, limit=2)
    for id_ in ids:
        found = [one for one in runs if one.schedule_id == id_]
        assert [(one.state, one.scheduled_for, one.seconds) for one in found] == [
            (TaskState.COMPLETED, NOW + minutes(3), 3.0),
            (TaskState.DEAD, NOW + minutes(2), 2.0),
        ]
        assert found[0].finished_at == NOW + minutes(3) + seconds(3)
    assert len(await store.schedule_runs(DEFAULT_TENANT, ids[:1], limit=10)) == 3
    assert await store.schedule_runs(OTHER_TENANT, ids, limit=2) == []
    assert await store.schedule_runs(DEFAULT_TENANT, [], limit=2) == []


async def test_task_slow_returns_tasks_that_run_for_long(store: Store) -> None:
    node = SteppedNode(store)
    await notification(store)
    await submit(node, labels={"team": "a"})
    worker = Worker(node)
    assert len(await worker.claim(10)) == 2
    node.move_to(NOW + seconds(10))
    await submit(node)
    await worker.claim_one()
    (found,) = await store.task_slow(DEFAULT_TENANT, seconds=5, limit=10, now=NOW + seconds(11))
    assert (found.queue, found.type, found.labels, found.started_at) == ("default", "work", {"team": "a"}, NOW)
    assert len(await store.task_slow(DEFAULT_TENANT, seconds=0.5, limit=10, now=NOW + seconds(11))) == 2
    assert len(await store.task_slow(DEFAULT_TENANT, seconds=0.5, limit=1, now=NOW + seconds(11))) == 1
    assert await store.task_slow(OTHER_TENANT, seconds=0.5, limit=10, now=NOW + seconds(11)) == []


async def test_task_ready_ages_returns_queues_and_types_with_waiting_tasks(store: Store) -> None:
    node = SteppedNode(store)
    await notification(store)
    for type_ in ("work", "work", "other"):
        await submit(node, type_)
    await submit(node, "work", queue="second", delay_seconds=3600.0)
    node.move_to(NOW + seconds(20))
    await submit(node, "third")
    found = await store.task_ready_ages(DEFAULT_TENANT, seconds=10, limit=10, now=NOW + seconds(30))
    assert found == [("default", "other", 1, NOW), ("default", "work", 2, NOW)]
    assert len(await store.task_ready_ages(DEFAULT_TENANT, seconds=5, limit=10, now=NOW + seconds(30))) == 3
    assert len(await store.task_ready_ages(DEFAULT_TENANT, seconds=5, limit=1, now=NOW + seconds(30))) == 1
    assert await store.task_ready_ages(OTHER_TENANT, seconds=5, limit=10, now=NOW + seconds(30)) == []


async def finish(node: SteppedNode, *, fails: bool, **more: object) -> UUID:
    id_ = await submit(node, **more)  # type: ignore[arg-type]
    worker = Worker(node)
    claimed = await worker.claim_one(queues=[str(more.get("queue") or "default")])
    await (worker.fail(claimed, retryable=False) if fails else worker.complete(claimed))
    return id_


async def test_task_outcomes_counts_the_newest_finished_tasks(store: Store) -> None:
    node = SteppedNode(store)
    first = await finish(node, fails=False)
    second = await finish(node, fails=True, labels={"team": "a"})
    await finish(node, fails=False, queue="second", labels={"team": "b"})
    completed, dead = TaskState.COMPLETED, TaskState.DEAD
    assert await store.task_outcomes(DEFAULT_TENANT, since_id=first, limit=10) == {completed: 2, dead: 1}
    assert await store.task_outcomes(DEFAULT_TENANT, since_id=second, limit=10) == {completed: 1, dead: 1}
    assert await store.task_outcomes(DEFAULT_TENANT, since_id=first, limit=1) == {completed: 1}
    assert await store.task_outcomes(DEFAULT_TENANT, since_id=first, queue="default", limit=10) == {completed: 1, dead: 1}
    counts = [
        await store.task_outcomes(DEFAULT_TENANT, since_id=first, label=label, limit=10)
        for label in (("team", None), ("team", "b"), ("none", None))
    ]
    assert counts == [{completed: 1, dead: 1}, {completed: 1}, {}]
    assert await store.task_outcomes(OTHER_TENANT, since_id=first, limit=10) == {}


async def test_task_completions_returns_the_last_completion_of_each_type(store: Store) -> None:
    node = SteppedNode(store)
    await finish(node, fails=False)
    node.move_to(NOW + minutes(1))
    await finish(node, fails=False)
    node.move_to(NOW + minutes(2))
    await finish(node, fails=True)
    await finish(node, fails=True, queue="second")
    assert await store.task_completions(DEFAULT_TENANT, limit=10) == [("default", "work", NOW + minutes(1))]
    assert await store.task_completions(DEFAULT_TENANT, limit=2) == []
    assert await store.task_completions(OTHER_TENANT, limit=10) == []


async def test_task_completions_leaves_out_the_tasks_of_schedules(store: Store) -> None:
    node = SteppedNode(store)
    await node.renew()
    await node.put(every_seconds=60, anchor="2026-03-02T12:00:00Z", target={"kind": "worker", "type": "work"})
    await node.step(NOW + minutes(1))
    worker = Worker(node)
    await worker.complete(await worker.claim_one())
    assert await store.task_completions(DEFAULT_TENANT, limit=10) == []
    assert WorkerTarget(type="work").queue == "default"
