"""The feed: cheap when nobody listens, bounded when somebody does, and told between nodes in messages of bounded size."""

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


class Air:
    """What carries messages between the feeds of a test."""

    def __init__(self) -> None:
        self.hearers: list[Any] = []
        self.sent: list[str] = []

    def event_stream_listen(self, hear: Any) -> bool:
        self.hearers.append(hear)
        return True

    async def event_stream_send(self, message: str) -> None:
        self.sent.append(message)
        for hear in self.hearers:
            hear(message)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def air() -> Any:
    return Air()


async def heard(listening: EventSubscription) -> list[tuple[str, Any]]:
    return [(event.kind.value, event.data) for event in await listening.take(0)]


async def test_nothing_is_wanted_until_somebody_listens() -> None:
    event_stream = EventStream()
    assert not event_stream.has_audience
    listening = event_stream.subscribe(DEFAULT_TENANT)
    assert event_stream.has_audience
    event_stream.unsubscribe(listening)
    event_stream.unsubscribe(listening)
    assert not event_stream.has_audience


async def test_a_listener_hears_its_tenant_and_what_concerns_everybody() -> None:
    event_stream = EventStream()
    mine, theirs = event_stream.subscribe(DEFAULT_TENANT), event_stream.subscribe(OTHER_TENANT, [EventKind.CLUSTER])
    event_stream.publish(EventKind.TASK, DEFAULT_TENANT, {"n": 1})
    event_stream.publish(EventKind.TASK, OTHER_TENANT, {"n": 2})
    event_stream.publish(EventKind.CLUSTER, None, {"n": 3})
    assert await heard(mine) == [("task", {"n": 1}), ("cluster", {"n": 3})]
    assert await heard(theirs) == [("cluster", {"n": 3})]


async def test_a_slow_listener_is_told_how_many_it_lost() -> None:
    event_stream = EventStream(size=3)
    listening = event_stream.subscribe(DEFAULT_TENANT)
    for number in range(10):
        event_stream.publish(EventKind.TASK, DEFAULT_TENANT, {"n": number})
    assert await heard(listening) == [*(("task", {"n": number}) for number in range(3)), ("lost", {"count": 7})]
    event_stream.publish(EventKind.TASK, DEFAULT_TENANT, {"n": 10})
    assert await heard(listening) == [("task", {"n": 10})]


async def test_streams_are_bounded_in_number_for_a_tenant_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_closing_the_feed_ends_every_stream() -> None:
    event_stream = EventStream()
    listening = event_stream.subscribe(DEFAULT_TENANT)
    event_stream.close()
    assert (await listening.take(10), listening.is_closed) == ([], True)
    assert event_stream.subscribe(DEFAULT_TENANT).is_closed


# Between nodes


async def test_events_travel_to_nodes_that_said_they_listen(air: Any) -> None:
    clock = Clock()
    here, there = EventStream(air, monotonic=clock), EventStream(air, monotonic=clock)
    relays = [EventRelay(air, one, monotonic=clock) for one in (here, there)]
    assert not here.has_audience
    listening = there.subscribe(OTHER_TENANT)
    await relays[1].run_once(NOW)
    assert here.has_audience
    here.publish(EventKind.TASK, OTHER_TENANT, {"id": str(uuid4())})
    here.publish(EventKind.TASK, DEFAULT_TENANT, {"nobody": "listens for it"})
    here.publish(EventKind.CLUSTER, None, {"change": "ownership"})
    here.publish(EventKind.CLUSTER, None, {"change": "seen by each node itself"}, here_only=True)
    await relays[0].run_once(NOW)
    assert [kind for kind, _ in await heard(listening)] == ["task", "cluster"]
    assert "nobody" not in air.sent[-1]
    clock.now += 11
    assert not here.has_audience  # nobody repeated it


async def test_interest_is_repeated_and_ends_with_the_last_listener(air: Any) -> None:
    clock = Clock()
    event_stream = EventStream(air, monotonic=clock)
    relay = EventRelay(air, event_stream, monotonic=clock)
    listening = event_stream.subscribe(DEFAULT_TENANT)
    for _ in range(3):
        await relay.run_once(NOW)
    assert len(air.sent) == 1
    clock.now += 3
    await relay.run_once(NOW)
    assert len(air.sent) == 2
    event_stream.unsubscribe(listening)
    clock.now += 3
    await relay.run_once(NOW)
    assert len(air.sent) == 2


async def test_messages_are_bounded_and_what_overflows_is_counted(air: Any) -> None:
    here, there = EventStream(air), EventStream(air, size=5000)
    listening = there.subscribe(DEFAULT_TENANT)
    await EventRelay(air, there).run_once(NOW)
    for number in range(3000):
        here.publish_task("completed", DEFAULT_TENANT, uuid4(), number=number)
    relay = EventRelay(air, here)
    while await relay.run_once(NOW):
        pass
    assert max(len(message) for message in air.sent) <= MAX_MESSAGE_BYTES
    events = await heard(listening)
    lost = sum(data["count"] for kind, data in events if kind == "lost")
    assert [data["number"] for kind, data in events if kind == "task"] == list(range(1000))
    assert lost == 2000


async def test_words_that_are_not_understood_do_no_harm(air: Any) -> None:
    event_stream = EventStream(air)
    for message in ("", "{}", "[1]", '{"sender": "x"}', "\x00"):
        air.hearers[0](message)
    assert not event_stream.has_audience


# What services tell


class ToldNode(SteppedNode):
    async def claim(self) -> Any:
        (task,) = await self.leases.claim(DEFAULT_TENANT, LeaseClaimRequest(worker="w1", queues=["default"]), now=self.now)
        return task


async def changes(listening: EventSubscription) -> list[str]:
    return [str(data.get("change") or data["outcome"]) for _, data in await heard(listening)]


async def test_every_change_of_a_task_is_told(store: Store) -> None:
    node = ToldNode(store)
    listening, other = node.event_stream.subscribe(DEFAULT_TENANT), node.event_stream.subscribe(OTHER_TENANT)
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
    assert await changes(listening) == [
        *("submitted", "claimed", "released", "claimed", "dead"),
        *("submitted", "claimed", "completed"),
        *("submitted", "rescheduled", "cancelled"),
    ]
    assert await heard(other) == []


async def test_ticks_and_ownership_are_told(store: Store) -> None:
    node = ToldNode(store)
    listening = node.event_stream.subscribe(DEFAULT_TENANT)
    job = await node.put()
    await node.step(NOW + minutes(3) + seconds(20))
    told = await heard(listening)
    assert [(kind, data.get("change") or data["outcome"]) for kind, data in told] == [
        *(("cluster", "joined"), ("cluster", "ownership")),
        *(("tick", "fired"), ("tick", "skipped")),
    ]
    fired, skipped = told[2][1], told[3][1]
    assert (fired["schedule_id"], fired["scheduled_for"]) == (job.id, "2026-03-02T12:03:00.000000Z")
    assert (skipped["reason"], skipped["count"], skipped["until"]) == ("misfire", 2, "2026-03-02T12:02:00.000000Z")
