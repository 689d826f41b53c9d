"""The event stream: no cost without subscribers, bounded per subscriber, and distributed between nodes in bounded messages."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from everbeat.core.errors import TooManyRequests
from everbeat.core.protocol import (
    ErrorInput,
    Lease,
    LeaseClaimRequest,
    LeaseCompleteRequest,
    LeaseCompletion,
    LeaseFailRequest,
    LeaseFailure,
    LeaseReleaseRequest,
    TaskInput,
)
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services import event_stream as event_streams
from everbeat.services.event_stream import MAX_MESSAGE_BYTES, EventKind, EventRelay, EventStream, EventSubscription
from everbeat.store.base import Store
from tests.factories import NOW, OTHER_TENANT, SteppedNode, minutes, seconds


class FakeChannel:
    """Carries messages between the event streams of a test."""

    def __init__(self) -> None:
        self.receivers: list[Any] = []
        self.sent: list[str] = []

    def event_stream_listen(self, receive: Any) -> bool:
        self.receivers.append(receive)
        return True

    async def event_stream_send(self, message: str) -> None:
        self.sent.append(message)
        for receive in self.receivers:
            receive(message)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def channel() -> Any:
    return FakeChannel()


async def received(subscription: EventSubscription) -> list[tuple[str, Any]]:
    return [(event.kind.value, event.data) for event in await subscription.take(0)]


async def test_a_stream_without_subscribers_wants_no_events() -> None:
    event_stream = EventStream()
    assert not event_stream.has_subscribers
    subscription = event_stream.subscribe(DEFAULT_TENANT)
    assert event_stream.has_subscribers
    event_stream.unsubscribe(subscription)
    event_stream.unsubscribe(subscription)
    assert not event_stream.has_subscribers


async def test_a_subscriber_receives_events_of_its_tenant_and_of_the_cluster() -> None:
    event_stream = EventStream()
    mine, theirs = event_stream.subscribe(DEFAULT_TENANT), event_stream.subscribe(OTHER_TENANT, [EventKind.CLUSTER])
    event_stream.publish(EventKind.TASK, DEFAULT_TENANT, {"n": 1})
    event_stream.publish(EventKind.TASK, OTHER_TENANT, {"n": 2})
    event_stream.publish(EventKind.CLUSTER, None, {"n": 3})
    assert await received(mine) == [("task", {"n": 1}), ("cluster", {"n": 3})]
    assert await received(theirs) == [("cluster", {"n": 3})]


async def test_a_slow_subscriber_receives_the_number_of_lost_events() -> None:
    event_stream = EventStream(size=3)
    subscription = event_stream.subscribe(DEFAULT_TENANT)
    for number in range(10):
        event_stream.publish(EventKind.TASK, DEFAULT_TENANT, {"n": number})
    assert await received(subscription) == [*(("task", {"n": number}) for number in range(3)), ("lost", {"count": 7})]
    event_stream.publish(EventKind.TASK, DEFAULT_TENANT, {"n": 10})
    assert await received(subscription) == [("task", {"n": 10})]


async def test_the_number_of_subscribers_is_limited_per_tenant_and_per_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "MAX_SUBSCRIBERS_PER_TENANT", 2)
    monkeypatch.setattr(event_streams, "MAX_SUBSCRIBERS", 3)
    event_stream = EventStream()
    first = event_stream.subscribe(DEFAULT_TENANT)
    event_stream.subscribe(DEFAULT_TENANT)
    with pytest.raises(TooManyRequests, match="a tenant may have"):
        event_stream.check_capacity(DEFAULT_TENANT)
    event_stream.subscribe(OTHER_TENANT)
    with pytest.raises(TooManyRequests, match="this node serves"):
        event_stream.check_capacity(UUID(int=9))
    event_stream.unsubscribe(first)
    event_stream.check_capacity(DEFAULT_TENANT)


async def test_closing_the_event_stream_ends_every_subscription() -> None:
    event_stream = EventStream()
    subscription = event_stream.subscribe(DEFAULT_TENANT)
    event_stream.close()
    assert (await subscription.take(10), subscription.is_closed) == ([], True)
    assert event_stream.subscribe(DEFAULT_TENANT).is_closed


# Between nodes


async def test_events_are_sent_to_nodes_with_subscribers(channel: Any) -> None:
    clock = Clock()
    here, there = EventStream(channel, monotonic=clock), EventStream(channel, monotonic=clock)
    relays = [EventRelay(channel, one, monotonic=clock) for one in (here, there)]
    assert not here.has_subscribers
    subscription = there.subscribe(OTHER_TENANT)
    await relays[1].run_once(NOW)
    assert here.has_subscribers
    here.publish(EventKind.TASK, OTHER_TENANT, {"id": str(uuid4())})
    here.publish(EventKind.TASK, DEFAULT_TENANT, {"unwanted": "event"})
    here.publish(EventKind.CLUSTER, None, {"change": "ownership"})
    here.publish(EventKind.CLUSTER, None, {"change": "observed by each node"}, local_only=True)
    await relays[0].run_once(NOW)
    assert [kind for kind, _ in await received(subscription)] == ["task", "cluster"]
    assert "unwanted" not in channel.sent[-1]
    clock.now += 11
    assert not here.has_subscribers  # the other node has not repeated its interest


async def test_interest_is_repeated_and_ends_with_the_last_subscriber(channel: Any) -> None:
    clock = Clock()
    event_stream = EventStream(channel, monotonic=clock)
    relay = EventRelay(channel, event_stream, monotonic=clock)
    subscription = event_stream.subscribe(DEFAULT_TENANT)
    for _ in range(3):
        await relay.run_once(NOW)
    assert len(channel.sent) == 1
    clock.now += 3
    await relay.run_once(NOW)
    assert len(channel.sent) == 2
    event_stream.unsubscribe(subscription)
    clock.now += 3
    await relay.run_once(NOW)
    assert len(channel.sent) == 2


async def test_messages_are_bounded_and_lost_events_are_counted(channel: Any) -> None:
    here, there = EventStream(channel), EventStream(channel, size=5000)
    subscription = there.subscribe(DEFAULT_TENANT)
    await EventRelay(channel, there).run_once(NOW)
    for number in range(3000):
        here.publish_task("completed", DEFAULT_TENANT, uuid4(), number=number)
    relay = EventRelay(channel, here)
    while await relay.run_once(NOW):
        pass
    assert max(len(message) for message in channel.sent) <= MAX_MESSAGE_BYTES
    events = await received(subscription)
    lost = sum(data["count"] for kind, data in events if kind == "lost")
    assert [data["number"] for kind, data in events if kind == "task"] == list(range(1000))
    assert lost == 2000


async def test_invalid_messages_are_ignored(channel: Any) -> None:
    event_stream = EventStream(channel)
    for message in ("", "{}", "[1]", '{"sender": "x"}', "\x00"):
        channel.receivers[0](message)
    assert not event_stream.has_subscribers


# Events of services


class ClaimingNode(SteppedNode):
    async def claim(self) -> Any:
        (task,) = await self.leases.claim(DEFAULT_TENANT, LeaseClaimRequest(worker="w1", queues=["default"]), now=self.now)
        return task


async def changes(subscription: EventSubscription) -> list[str]:
    return [str(data.get("change") or data["outcome"]) for _, data in await received(subscription)]


async def test_every_change_of_a_task_is_an_event(store: Store) -> None:
    node = ClaimingNode(store)
    subscription, other = node.event_stream.subscribe(DEFAULT_TENANT), node.event_stream.subscribe(OTHER_TENANT)
    submitted, _ = await node.tasks.submit(DEFAULT_TENANT, TaskInput(type="work", max_attempts=1), now=node.now)
    task = await node.claim()
    lease = Lease(id=task.id, fence=task.fence)
    await node.leases.release(DEFAULT_TENANT, LeaseReleaseRequest(worker="w1", leases=[lease]), now=node.now)
    task = await node.claim()
    failure = LeaseFailure(id=task.id, fence=task.fence, error=ErrorInput(message="no"))
    await node.leases.fail(DEFAULT_TENANT, LeaseFailRequest(worker="w1", failures=[failure]), now=node.now)
    await node.tasks.retry(DEFAULT_TENANT, submitted.id, now=node.now)
    again = await node.claim()
    result = LeaseCompletion(id=again.id, fence=again.fence)
    await node.leases.complete(DEFAULT_TENANT, LeaseCompleteRequest(worker="w1", results=[result]), now=node.now)
    moved, _ = await node.tasks.submit(DEFAULT_TENANT, TaskInput(type="work"), now=node.now)
    await node.tasks.reschedule(DEFAULT_TENANT, moved.id, NOW + minutes(5), now=node.now)
    await node.tasks.cancel(DEFAULT_TENANT, moved.id, now=node.now)
    assert await changes(subscription) == [
        *("submitted", "claimed", "released", "claimed", "dead"),
        *("submitted", "claimed", "completed"),
        *("submitted", "rescheduled", "cancelled"),
    ]
    assert await received(other) == []


async def test_ticks_and_ownership_changes_are_events(store: Store) -> None:
    node = ClaimingNode(store)
    subscription = node.event_stream.subscribe(DEFAULT_TENANT)
    job = await node.put()
    await node.step(NOW + minutes(3) + seconds(20))
    received_events = await received(subscription)
    assert [(kind, data.get("change") or data["outcome"]) for kind, data in received_events] == [
        *(("cluster", "joined"), ("cluster", "ownership")),
        *(("tick", "fired"), ("tick", "skipped")),
    ]
    fired, skipped = received_events[2][1], received_events[3][1]
    assert (fired["schedule_id"], fired["scheduled_for"]) == (job.id, "2026-03-02T12:03:00.000000Z")
    assert (skipped["reason"], skipped["count"], skipped["until"]) == ("misfire", 2, "2026-03-02T12:02:00.000000Z")
