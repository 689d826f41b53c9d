from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import msgspec
import pytest

from everbeat.core.access import LOCAL_CALLER
from everbeat.core.brokers import Broker
from everbeat.core.circuit_breakers import BreakerState
from everbeat.core.deliveries import DeliveryResponse, DeliveryTask
from everbeat.core.destinations import NodeDeliveries
from everbeat.core.errors import InvalidInput
from everbeat.core.protocol import LeaseClaimRequest, TaskInput
from everbeat.core.schedules import DEFAULT_TENANT, Retry, RetryKind
from everbeat.core.tasks import TaskState
from everbeat.delivery.base import Accepted, Delivered, DeliveryOutcome, Refused, RetryDelivery
from everbeat.services.events import CircuitBreakerChanged, DeliveryEnded, DeliveryKindUnavailable
from everbeat.store.base import Store
from tests.factories import definition
from tests.services.deliveries import Behavior, DispatcherNode, wait_until

SOON = Retry(kind=RetryKind.FIXED, base_seconds=0.01, jitter=False)


@pytest.fixture
def node(store: Store) -> DispatcherNode:
    return DispatcherNode(store)


def answering(*outcomes: DeliveryOutcome) -> Behavior:
    """Return a behavior that has these outcomes, one after the other. The last one is repeated."""
    left = list(outcomes)

    async def deliver(_task: DeliveryTask) -> DeliveryOutcome:
        return left.pop(0) if len(left) > 1 else left[0]

    return deliver


async def hang(_task: DeliveryTask) -> DeliveryOutcome:
    await asyncio.sleep(60)
    raise AssertionError("it was not stopped")


async def test_a_delivered_task_is_completed_with_its_result_and_response(node: DispatcherNode) -> None:
    response = DeliveryResponse(duration_ms=3.5, status=200, size=2, body="ok")
    node.target.behaviors["a"] = answering(Delivered({"sum": 3}, response))
    async with node.running():
        task = await node.submit(payload=msgspec.Raw(b'{"x":1}'))
        done = await node.ended(task)
    assert (done.state, done.attempt, msgspec.json.decode(done.result or b"")) == (TaskState.COMPLETED, 1, {"sum": 3})
    assert msgspec.json.decode(done.response or b"", type=DeliveryResponse) == response
    (received,) = node.target.received
    assert (received.id, received.payload, received.attempt, received.fence) == (task.id, b'{"x":1}', 1, 1)
    assert received.message_id == str(task.id)
    assert DeliveryEnded("scripted", "delivered", 0, "2xx") == node.events_of(DeliveryEnded)[0]._replace(seconds=0)


async def test_a_tenant_that_may_no_longer_use_a_connection_is_not_delivered_to_it(
    node: DispatcherNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await node.submit(max_attempts=1)
    restricted = {"a": Broker(name="a", kind="scripted", tenants=frozenset({"shop"}))}
    monkeypatch.setattr(node.engine.target_rules, "_brokers", restricted)
    async with node.running():
        done = await node.ended(task)
    assert (done.state, node.target.received) == (TaskState.DEAD, [])
    assert b'the tenant may not use the broker \\"a\\"' in (done.error or b"")


async def test_a_failed_delivery_is_retried_with_the_same_message_id(node: DispatcherNode) -> None:
    response = DeliveryResponse(duration_ms=1, status=503)
    node.target.behaviors["a"] = answering(RetryDelivery(None, "it is down", "status-503", response), Delivered())
    async with node.running():
        task = await node.submit(retry=SOON)
        done = await node.ended(task)
    assert (done.state, done.attempt) == (TaskState.COMPLETED, 2)
    assert [(one.message_id, one.attempt) for one in node.target.received] == [(str(task.id), 1), (str(task.id), 2)]
    first, last = await node.engine.tasks.attempts(DEFAULT_TENANT, task.id)
    assert msgspec.json.decode(first.error or b"")["message"] == "it is down"
    assert msgspec.json.decode(first.response or b"")["status"] == 503
    assert last.response is None


async def test_a_task_whose_attempts_are_used_up_becomes_a_dead_letter(node: DispatcherNode) -> None:
    node.target.behaviors["a"] = answering(RetryDelivery(0.0, "no"))
    async with node.running():
        dead = await node.ended(await node.submit(max_attempts=2))
    assert (dead.state, dead.attempt) == (TaskState.DEAD, 2)
    assert msgspec.json.decode(dead.error or b"") == {"message": "no", "kind": "delivery", "trace": None}


async def test_a_refused_task_is_not_retried(node: DispatcherNode) -> None:
    node.target.behaviors["a"] = answering(Refused("400 Bad Request", "status-400"))
    async with node.running():
        dead = await node.ended(await node.submit(max_attempts=5))
    assert (dead.state, dead.attempt, dead.reason) == (TaskState.DEAD, 1, "the delivery was refused: 400 Bad Request")


async def test_a_destination_that_is_gone_pauses_the_schedule(node: DispatcherNode) -> None:
    node.target.behaviors["a"] = answering(Refused("410 Gone", pauses_schedule=True))
    target = {"kind": "custom", "name": "scripted", "broker": "a"}
    schedules = node.engine.schedules
    await schedules.put(DEFAULT_TENANT, "job", definition(target=target))
    task = await node.engine.backfill.trigger(DEFAULT_TENANT, "job", None)
    async with node.running():
        await node.ended(task)

        async def is_paused() -> bool:
            return (await schedules.get(DEFAULT_TENANT, "job")).note == "410 Gone"

        await wait_until(is_paused)
    assert (await schedules.get(DEFAULT_TENANT, "job")).status.value == "paused"


async def test_a_destination_that_does_not_answer_is_a_timeout(node: DispatcherNode) -> None:
    node.target.behaviors["a"] = hang
    node.target.timeout_seconds = 0.05
    async with node.running():
        dead = await node.ended(await node.submit(max_attempts=1))
    assert dead.state is TaskState.DEAD
    assert msgspec.json.decode(dead.error or b"")["kind"] == "timeout"
    assert "within 0.05 seconds" in msgspec.json.decode(dead.error or b"")["message"]


async def test_a_target_that_raises_fails_the_attempt_but_does_not_blame_the_destination(node: DispatcherNode) -> None:
    async def broken(_task: DeliveryTask) -> DeliveryOutcome:
        raise KeyError("x")

    node.target.behaviors["a"] = broken
    async with node.running():
        dead = await node.ended(await node.submit(max_attempts=6, retry=SOON))
    assert msgspec.json.decode(dead.error or b"")["message"] == "KeyError: 'x'"
    assert node.deliverer.destinations.not_closed() == []


async def test_an_accepted_task_stays_running_with_the_response(node: DispatcherNode) -> None:
    node.target.behaviors["a"] = answering(Accepted(None, DeliveryResponse(duration_ms=1, status=202)))
    async with node.running():
        task = await node.submit(timeout_seconds=3000)

        async def is_accepted() -> bool:
            return (await node.get(task)).response is not None

        await wait_until(is_accepted)
        running = await node.get(task)
        assert (running.state, running.fence, node.deliverer.running) == (TaskState.RUNNING, 1, 0)
        assert running.lease_until is not None
        assert running.started_at is not None
        assert (running.lease_until - running.started_at).total_seconds() == 3000


async def test_a_cancelled_task_is_stopped_while_it_is_delivered(node: DispatcherNode) -> None:
    node.target.behaviors["a"] = hang
    async with node.running():
        task = await node.submit()
        await wait_until(lambda: is_delivering(node, 1))
        await node.engine.tasks.cancel(DEFAULT_TENANT, task.id)
        await node.deliverer.renew_leases()
        ended = await node.ended(task)
    assert ended.state is TaskState.CANCELLED
    assert node.events_of(DeliveryEnded)[-1].outcome == "cancelled"


async def is_delivering(node: DispatcherNode, count: int) -> bool:
    return len(node.target.received) >= count


async def test_a_delivery_whose_lease_is_lost_is_stopped(node: DispatcherNode) -> None:
    node.target.behaviors["a"] = hang
    async with node.running():
        task = await node.submit()
        await wait_until(lambda: is_delivering(node, 1))
        (claimed,) = node.target.received
        await node.engine.leases.complete_delivery(lease(task, claimed.fence), None, None)  # as another node would
        await node.deliverer.renew_leases()

        async def is_stopped() -> bool:
            return node.deliverer.running == 0

        await wait_until(is_stopped)
    assert node.events_of(DeliveryEnded)[-1].outcome == "lost"


def lease(task: Any, fence: int) -> Any:
    from everbeat.store.values import LeaseRef

    return LeaseRef(task.tenant_id, task.id, fence)


async def test_a_stopping_node_releases_the_tasks_that_it_cannot_finish(node: DispatcherNode) -> None:
    node.target.behaviors["a"] = hang
    async with node.running():
        task = await node.submit()
        await wait_until(lambda: is_delivering(node, 1))
    released = await node.get(task)
    assert (released.state, released.attempt) == (TaskState.READY, 0)
    assert node.target.is_closed


async def test_a_destination_that_fails_is_left_alone_and_its_tasks_keep_their_attempts(node: DispatcherNode) -> None:
    node.target.behaviors["a"] = answering(RetryDelivery(60.0, "down"))
    async with node.running():
        failing = [await node.submit("a") for _ in range(5)]

        async def has_opened() -> bool:
            return bool(node.deliverer.destinations.not_closed())

        await wait_until(has_opened)
        waiting = await node.submit("a")
        other = await node.submit("b")
        assert (await node.ended(other)).state is TaskState.COMPLETED
        assert ((await node.get(waiting)).state, (await node.get(waiting)).attempt) == (TaskState.READY, 0)
    (one,) = node.deliverer.destinations.not_closed()
    assert (one.destination, one.state, one.failures) == ("scripted:a", BreakerState.OPEN, 5)
    (changed,) = node.events_of(CircuitBreakerChanged)
    assert (changed.state, changed.not_closed) == (BreakerState.OPEN, 1)
    assert len(failing) == 5
    await node.engine.ownership.run_once()
    (shown,) = (await node.engine.cluster.view(DEFAULT_TENANT)).nodes
    deliveries = msgspec.json.decode(shown.deliveries or "", type=NodeDeliveries)
    assert [(breaker.destination, breaker.state) for breaker in deliveries.circuit_breakers] == [
        ("scripted:a", BreakerState.OPEN)
    ]


async def test_a_hanging_destination_takes_few_slots_and_does_not_delay_another(store: Store) -> None:
    node = DispatcherNode(store, delivery_concurrency=16)
    node.target.behaviors["a"] = hang
    async with node.running():
        for _ in range(30):
            await node.submit("a")
        others = [await node.submit("b") for _ in range(30)]
        for other in others:
            assert (await node.ended(other)).state is TaskState.COMPLETED
        assert sum(one.target.broker == "a" for one in node.target.received) <= 8  # type: ignore[union-attr]


async def test_two_dispatchers_deliver_each_task_once(store: Store) -> None:
    nodes = [DispatcherNode(store), DispatcherNode(store)]
    async with nodes[0].running(), nodes[1].running():
        tasks = [await nodes[index % 2].submit("abc"[index % 3]) for index in range(40)]
        for task in tasks:
            await nodes[0].ended(task)
    received = [one.id for node in nodes for one in node.target.received]
    assert sorted(received) == sorted(task.id for task in tasks)


async def test_a_worker_cannot_claim_from_a_reserved_queue(node: DispatcherNode) -> None:
    claim = LeaseClaimRequest(worker="w", queues=["everbeat:http"])
    with pytest.raises(InvalidInput, match="reserved"):
        await node.engine.leases.claim(UUID(int=1), claim)


async def test_a_target_with_an_unknown_connection_is_refused(node: DispatcherNode) -> None:
    with pytest.raises(InvalidInput, match='no broker named "x"'):
        await node.submit("x")


async def test_a_queue_or_a_fair_key_is_refused_for_a_delivery(node: DispatcherNode) -> None:
    with pytest.raises(InvalidInput, match="can only be used with worker targets"):
        await node.submit(fair_key="x")
    with pytest.raises(InvalidInput, match="reserved"):
        await node.engine.tasks.submit(DEFAULT_TENANT, TaskInput(type="x", queue="everbeat:http"))


async def test_a_tick_is_delivered_and_its_destination_is_its_fair_key(node: DispatcherNode) -> None:
    target = {"kind": "custom", "name": "scripted", "broker": "a"}
    await node.engine.schedules.put(DEFAULT_TENANT, "job", definition(target=target))
    task = await node.engine.backfill.trigger(DEFAULT_TENANT, "job", None)
    assert (task.queue, task.fair_key) == ("everbeat:scripted", "scripted:a")
    async with node.running():
        assert (await node.ended(task)).state is TaskState.COMPLETED
    (received,) = node.target.received
    assert received.schedule == "job"


async def test_a_kind_that_cannot_be_made_is_reported_and_left_to_other_nodes(store: Store) -> None:
    from everbeat.delivery.base import ExtraMissing, TargetContext

    def missing(_context: TargetContext) -> Any:
        raise ExtraMissing("kafka", "kafka")

    node = DispatcherNode(store)
    node.engine.registry._extra["kafka"] = missing
    async with node.running():
        await node.ended(await node.submit())
    assert [one.kind for one in node.events_of(DeliveryKindUnavailable) if one.kind == "kafka"] == ["kafka"]


async def test_a_paused_tenant_gets_no_deliveries_until_it_is_resumed(node: DispatcherNode) -> None:
    await node.engine.pauses.pause(DEFAULT_TENANT, by=LOCAL_CALLER)
    async with node.running():
        task = await node.submit()
        for _ in range(3):
            await node.engine.directory.refresh()
            node.deliverer._woken.set()
            await asyncio.sleep(0.05)
        assert (await node.get(task)).state is TaskState.READY
        await node.engine.pauses.resume(DEFAULT_TENANT, by=LOCAL_CALLER)
        assert (await node.ended(task)).state is TaskState.COMPLETED


async def test_a_task_for_a_worker_does_not_make_the_deliverer_scan(
    node: DispatcherNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each submit and each report of a busy node would cost a query on the flows of all kinds of targets."""
    async with node.running():
        task = await node.submit()
        await node.ended(task)
        woken: list[bool] = []
        monkeypatch.setattr(node.engine.deliverer, "_mark_stale", woken.append)
        await node.engine.tasks.submit(DEFAULT_TENANT, TaskInput(type="report", queue="reports"))
        assert not node.engine.deliverer._woken.is_set()
        assert woken == []
