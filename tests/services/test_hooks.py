"""Hooks: tasks that are written in the transaction of the ending, or of the missed tick."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from everbeat.core.errors import InvalidInput
from everbeat.core.protocol import TaskInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import Origin, TaskRecord, TaskState
from everbeat.store.base import Store
from everbeat.store.values import TaskFilter
from tests.factories import NOW, SteppedNode, minutes, seconds
from tests.services.workers import Worker, get

ON_SUCCESS = {"kind": "worker", "type": "thank", "queue": "notes"}
ON_FAILURE = {"kind": "http", "url": "https://example.org/hook", "headers": {"X-Token": "t"}}
HOOKS = {"on_success": [ON_SUCCESS], "on_failure": [ON_FAILURE, ON_SUCCESS]}


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


async def submit(node: SteppedNode, **more: Any) -> TaskRecord:
    given = msgspec.json.decode(msgspec.json.encode({"type": "work", "hooks": HOOKS, **more}), type=TaskInput)
    return (await node.tasks.submit(DEFAULT_TENANT, given, now=node.now))[0]


async def sent(node: SteppedNode) -> list[TaskRecord]:
    scan = await node.store.task_list(DEFAULT_TENANT, TaskFilter(), before=None, limit=100, live=True)
    return [task for task in scan.tasks if task.origin is Origin.HOOK]


async def test_on_success_is_sent_with_the_completion(node: SteppedNode) -> None:
    task = await submit(node, priority=7)
    worker = Worker(node)
    await worker.complete(await worker.claim_one())
    (hook,) = await sent(node)
    assert (hook.queue, hook.type, hook.state, hook.priority, hook.run_at) == ("notes", "thank", TaskState.READY, 7, NOW)
    assert hook.labels == {"hook": "on_success", "about": str(task.id)}
    assert msgspec.json.decode(hook.payload) == {
        "hook": "on_success",
        "task_id": str(task.id),
        "type": "work",
        "queue": "default",
        "state": "completed",
        "attempt": 1,
        "origin": "submit",
        "schedule": None,
        "schedule_id": None,
        "scheduled_for": None,
        "finished_at": "2026-03-02T12:00:00.000000Z",
        "reason": None,
        "error": None,
    }
    (claimed,) = await worker.claim(queues=["notes"])
    assert claimed.id == hook.id


async def test_on_failure_is_sent_for_a_dead_letter_only(node: SteppedNode) -> None:
    task = await submit(node, max_attempts=2)
    worker = Worker(node)
    await worker.fail(await worker.claim_one(), retry_in_seconds=0)
    assert await sent(node) == []
    await worker.fail(await worker.claim_one(), "it broke")
    hooks = sorted(await sent(node), key=lambda one: one.queue)
    assert [(one.queue, one.type, one.fair_key) for one in hooks] == [
        ("everbeat:http", "work", "example.org"),
        ("notes", "thank", ""),
    ]
    payload = msgspec.json.decode(hooks[0].payload)
    assert (payload["task_id"], payload["error"]["message"], payload["state"]) == (str(task.id), "it broke", "dead")
    assert hooks[0].id != hooks[1].id


async def test_a_lost_lease_that_ends_the_task_sends_on_failure(node: SteppedNode) -> None:
    await submit(node, max_attempts=1)
    await Worker(node).claim_one()
    await node.reap(NOW + seconds(31))
    assert {one.labels["hook"] for one in await sent(node)} == {"on_failure"}


async def test_a_cancelled_task_sends_nothing(node: SteppedNode) -> None:
    task = await submit(node)
    await node.tasks.cancel(DEFAULT_TENANT, task.id, now=NOW)
    assert await sent(node) == []


async def test_a_hook_is_not_sent_for_its_own_failure(node: SteppedNode) -> None:
    await submit(node)
    worker = Worker(node)
    await worker.complete(await worker.claim_one())
    hook = await worker.claim_one(queues=["notes"])
    await worker.fail(hook, retryable=False)
    assert (await get(node, hook)).state is TaskState.DEAD
    assert await sent(node) == []


async def test_a_repeated_completion_sends_nothing_again(node: SteppedNode) -> None:
    await submit(node)
    worker = Worker(node)
    claimed = await worker.claim_one()
    assert await worker.complete(claimed) == await worker.complete(claimed) == ["ok"]
    assert len(await sent(node)) == 1


async def test_if_the_completion_is_rolled_back_so_is_the_hook(node: SteppedNode) -> None:
    await submit(node)
    worker = Worker(node)
    claimed = await worker.claim_one()
    await worker.fail(claimed, retryable=False)
    before = len(await sent(node))
    assert await worker.complete(claimed) == ["stale"]
    assert len(await sent(node)) == before


async def test_the_tasks_of_a_schedule_have_its_hooks_and_a_replay_too(node: SteppedNode) -> None:
    await node.renew()
    await node.put(hooks=HOOKS, every_seconds=60, anchor="2026-03-02T12:00:00Z")
    node.move_to(NOW + minutes(1))
    await node.renew()
    await node.tick()
    worker = Worker(node)
    await worker.fail(claimed := await worker.claim_one(), retryable=False)
    hook = (await sent(node))[0]
    payload = msgspec.json.decode(hook.payload)
    assert (payload["schedule"], payload["scheduled_for"]) == ("job", "2026-03-02T12:01:00.000000Z")
    assert hook.schedule_id is None
    await node.dead_letters.replay(DEFAULT_TENANT, claimed.id, now=node.now)
    await worker.complete(await worker.claim_one())
    assert "on_success" in {one.labels["hook"] for one in await sent(node)}


async def test_missed_ticks_send_one_hook_for_each_range(node: SteppedNode) -> None:
    await node.renew()
    schedule = await node.put(hooks={"on_missed": [ON_SUCCESS]}, every_seconds=60, anchor="2026-03-02T12:00:00Z")
    node.move_to(NOW + minutes(10))
    await node.renew()
    await node.tick()
    (hook,) = await sent(node)
    payload = msgspec.json.decode(hook.payload)
    assert payload == {
        "hook": "on_missed",
        "schedule": "job",
        "schedule_id": str(schedule.id),
        "scheduled_for": "2026-03-02T12:01:00.000000Z",
        "until": "2026-03-02T12:09:00.000000Z",
        "count": 9,
        "reason": "misfire",
    }
    assert hook.labels == {"hook": "on_missed", "about": str(schedule.id)}


@pytest.mark.parametrize(
    ("hooks", "field"),
    [
        ({"on_success": [{"kind": "worker", "type": "a b"}]}, "hooks.on_success[0].type"),
        ({"on_failure": [ON_SUCCESS, {"kind": "http", "url": "http://127.0.0.1/"}]}, "hooks.on_failure[1].url"),
        ({"on_missed": [ON_SUCCESS]}, "hooks.on_missed"),
        ({"on_success": [ON_SUCCESS] * 11}, "hooks.on_success"),
        ({"on_success": [{**ON_FAILURE, "headers": {"X-Token": "***"}}]}, "hooks.on_success[0]"),
    ],
)
async def test_wrong_hooks_are_refused(node: SteppedNode, hooks: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        await submit(node, hooks=hooks)
    assert [error.field for error in caught.value.errors] == [field]


async def test_secrets_of_hooks_are_kept_by_a_put_that_redacts_them(node: SteppedNode) -> None:
    await node.put(hooks={"on_failure": [ON_FAILURE]})
    redacted = {**ON_FAILURE, "headers": {"X-Token": "***"}}
    schedule = await node.put(hooks={"on_failure": [redacted]}, description="changed")
    (target,) = schedule.spec.hooks.on_failure
    assert msgspec.to_builtins(target)["headers"] == {"X-Token": "t"}
