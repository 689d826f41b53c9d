"""Tasks that no live worker asks for: the report, and what `why` says about schedules and tasks."""

from __future__ import annotations

import pytest

from everbeat.core.explain import Verdict
from everbeat.core.protocol import LeaseClaimRequest
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import TaskState
from everbeat.core.workers import WorkerSighting, WorkerState
from everbeat.services.absences import AbsenceMonitor
from everbeat.services.events import TasksWithoutWorker
from everbeat.store.base import Store
from tests.factories import NOW, SteppedNode, make_task, minutes, seconds


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


def worker(name: str, queue: str, *types: str, age_seconds: float = 0) -> WorkerSighting:
    return WorkerSighting(DEFAULT_TENANT, name, age_seconds, WorkerState.LIVE, (queue,), types or None)


async def test_a_queue_or_type_without_a_worker_is_reported_once_and_counted(node: SteppedNode) -> None:
    await node.renew()
    monitor = AbsenceMonitor(node.store, node.ownership, emit=node.events.append)
    tasks = [make_task("a", queue="mail"), make_task("b", queue="mail"), make_task("c", queue="everbeat:http")]
    await node.store.task_submit(tasks, now=NOW)
    await node.store.worker_write("node", [worker("host:1", "mail", "a")], now=NOW)

    async def report() -> TasksWithoutWorker:
        await monitor.run_once(NOW)
        return node.events_of(TasksWithoutWorker)[-1]

    assert await report() == TasksWithoutWorker(0, [])  # it may be served soon
    first = await report()
    assert (first.count, [(one.queue, one.type) for one in first.new]) == (1, [("mail", "b")])
    assert first.new[0].reason.startswith('no worker has asked for the type "b" in the last 7 days; the workers on the queue')
    assert await report() == TasksWithoutWorker(1, [])
    await node.store.worker_write("node", [worker("host:2", "mail")], now=NOW)
    assert await report() == TasksWithoutWorker(0, [])


async def test_only_the_owner_of_partition_0_reports(node: SteppedNode) -> None:
    await node.store.task_submit([make_task("a")], now=NOW)
    monitor = AbsenceMonitor(node.store, node.ownership, emit=node.events.append)
    for _ in range(2):
        await monitor.run_once(NOW)
    assert node.events_of(TasksWithoutWorker) == [TasksWithoutWorker(0, [])] * 2


async def test_why_of_a_schedule_names_the_absence(node: SteppedNode) -> None:
    await node.put(target={"kind": "worker", "type": "work", "queue": "reports"})
    await node.store.worker_write("node", [worker("host:25558", "reports", age_seconds=120)], now=NOW)
    why = await node.engine.explainer.explain(DEFAULT_TENANT, "job", NOW + minutes(5), now=NOW)
    assert why.verdict is Verdict.UPCOMING
    assert why.explanation.endswith(
        'but no worker has asked for the queue "reports" since 11:58 UTC, when host:25558 was last seen.'
    )
    assert {one.fact: one.value for one in why.facts}["last_worker"] == "host:25558"
    now = await node.engine.explainer.explain(DEFAULT_TENANT, "job", None, now=NOW + seconds(3))
    assert now.verdict is Verdict.UPCOMING
    between = await node.engine.explainer.explain(DEFAULT_TENANT, "job", NOW + seconds(90), now=NOW + seconds(3))
    assert between.verdict is Verdict.NOT_SCHEDULED
    assert '12:02:00+00:00. No worker has asked for the queue "reports" since 11:58 UTC' in between.explanation
    await node.step(NOW + minutes(1) + seconds(1))
    fired = await node.engine.explainer.explain(DEFAULT_TENANT, "job", NOW + minutes(1), now=node.now)
    assert "no worker has claimed it" in fired.explanation
    assert "when host:25558 was last seen" in fired.explanation
    await node.store.worker_write("node", [worker("host:1", "reports")], now=node.now)
    served = await node.engine.explainer.explain(DEFAULT_TENANT, "job", NOW + minutes(5), now=node.now)
    assert served.explanation.startswith("It will run at")


async def test_why_of_a_task_says_what_it_waits_for(node: SteppedNode) -> None:
    waiting, delayed = make_task("a"), make_task("a", run_at=NOW + minutes(5))
    await node.store.task_submit([waiting, delayed], now=NOW)
    explain = node.engine.explainer.explain_task
    found = await explain(DEFAULT_TENANT, waiting.id, now=NOW)
    assert (found.state, found.explanation) == (
        TaskState.READY,
        'It has been ready for 0 seconds at position 1 in the queue "default"; '
        'no worker has asked for the queue "default" in the last 7 days.',
    )
    assert "no_worker" in {one.fact for one in found.facts}
    assert (await explain(DEFAULT_TENANT, delayed.id, now=NOW)).explanation.startswith("It waits until 2026-03-02T12:05:00")
    await node.leases.claim(DEFAULT_TENANT, LeaseClaimRequest(worker="w1", queues=["default"]), now=NOW)
    running = await explain(DEFAULT_TENANT, waiting.id, now=NOW)
    assert running.explanation == "It is running on w1, attempt 1 of 3."
    assert "no_worker" not in {one.fact for one in running.facts}
