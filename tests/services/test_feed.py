"""The feed: cheap when nobody listens, bounded when somebody does, and told between nodes in messages of bounded size."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from everbeat.core.errors import TooManyRequests
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.protocol import LeaseClaimRequest, LeaseCompleteRequest, ErrorInput, LeaseFailure, LeaseFailRequest, Lease, LeaseReleaseRequest, LeaseCompletion, TaskInput
from everbeat.services import feed as feeds
from everbeat.services.feed import LONGEST_MESSAGE, EventKind, Feed, Listening, Relay
from everbeat.services.ownership import Ownership
from everbeat.services.tasks import Tasks
from everbeat.services.ticker import Ticker
from everbeat.services.turns import Turns
from everbeat.services.work import Work
from everbeat.store.base import Store
from tests.factories import NOW, OTHER_TENANT, SteppedNode, node_heartbeat, minutes, seconds


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


async def heard(listening: Listening) -> list[tuple[str, Any]]:
    return [(event.kind.value, event.data) for event in await listening.take(0)]


async def test_nothing_is_wanted_until_somebody_listens() -> None:
    feed = Feed()
    assert not feed.is_wanted
    listening = feed.listen(DEFAULT_TENANT)
    assert feed.is_wanted
    feed.leave(listening)
    feed.leave(listening)
    assert not feed.is_wanted


async def test_a_listener_hears_its_tenant_and_what_concerns_everybody() -> None:
    feed = Feed()
    mine, theirs = feed.listen(DEFAULT_TENANT), feed.listen(OTHER_TENANT, [EventKind.CLUSTER])
    feed.tell(EventKind.TASK, DEFAULT_TENANT, {"n": 1})
    feed.tell(EventKind.TASK, OTHER_TENANT, {"n": 2})
    feed.tell(EventKind.CLUSTER, None, {"n": 3})
    assert await heard(mine) == [("task", {"n": 1}), ("cluster", {"n": 3})]
    assert await heard(theirs) == [("cluster", {"n": 3})]


async def test_a_slow_listener_is_told_how_many_it_lost() -> None:
    feed = Feed(size=3)
    listening = feed.listen(DEFAULT_TENANT)
    for number in range(10):
        feed.tell(EventKind.TASK, DEFAULT_TENANT, {"n": number})
    assert await heard(listening) == [*(("task", {"n": number}) for number in range(3)), ("lost", {"count": 7})]
    feed.tell(EventKind.TASK, DEFAULT_TENANT, {"n": 10})
    assert await heard(listening) == [("task", {"n": 10})]


async def test_streams_are_bounded_in_number_for_a_tenant_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "MOST_PER_TENANT", 2)
    monkeypatch.setattr(feeds, "MOST_LISTENERS", 3)
    feed = Feed()
    first = feed.listen(DEFAULT_TENANT)
    feed.listen(DEFAULT_TENANT)
    with pytest.raises(TooManyRequests, match="a tenant may have"):
        feed.ensure_room(DEFAULT_TENANT)
    feed.listen(OTHER_TENANT)
    with pytest.raises(TooManyRequests, match="this node serves"):
        feed.ensure_room(UUID(int=9))
    feed.leave(first)
    feed.ensure_room(DEFAULT_TENANT)


async def test_closing_the_feed_ends_every_stream() -> None:
    feed = Feed()
    listening = feed.listen(DEFAULT_TENANT)
    feed.close()
    assert (await listening.take(10), listening.is_closed) == ([], True)
    assert feed.listen(DEFAULT_TENANT).is_closed


# Between nodes


async def test_events_travel_to_nodes_that_said_they_listen(air: Any) -> None:
    clock = Clock()
    here, there = Feed(air, monotonic=clock), Feed(air, monotonic=clock)
    relays = [Relay(air, one, monotonic=clock) for one in (here, there)]
    assert not here.is_wanted
    listening = there.listen(OTHER_TENANT)
    await relays[1].run_once(NOW)
    assert here.is_wanted
    here.tell(EventKind.TASK, OTHER_TENANT, {"id": str(uuid4())})
    here.tell(EventKind.TASK, DEFAULT_TENANT, {"nobody": "listens for it"})
    here.tell(EventKind.CLUSTER, None, {"change": "ownership"})
    here.tell(EventKind.CLUSTER, None, {"change": "seen by each node itself"}, here_only=True)
    await relays[0].run_once(NOW)
    assert [kind for kind, _ in await heard(listening)] == ["task", "cluster"]
    assert "nobody" not in air.sent[-1]
    clock.now += 11
    assert not here.is_wanted  # nobody repeated it


async def test_interest_is_repeated_and_ends_with_the_last_listener(air: Any) -> None:
    clock = Clock()
    feed = Feed(air, monotonic=clock)
    relay = Relay(air, feed, monotonic=clock)
    listening = feed.listen(DEFAULT_TENANT)
    for _ in range(3):
        await relay.run_once(NOW)
    assert len(air.sent) == 1
    clock.now += 3
    await relay.run_once(NOW)
    assert len(air.sent) == 2
    feed.leave(listening)
    clock.now += 3
    await relay.run_once(NOW)
    assert len(air.sent) == 2


async def test_messages_are_bounded_and_what_overflows_is_counted(air: Any) -> None:
    here, there = Feed(air), Feed(air, size=5000)
    listening = there.listen(DEFAULT_TENANT)
    await Relay(air, there).run_once(NOW)
    for number in range(3000):
        here.tell_task("completed", DEFAULT_TENANT, uuid4(), number=number)
    relay = Relay(air, here)
    while await relay.run_once(NOW):
        pass
    assert max(len(message) for message in air.sent) <= LONGEST_MESSAGE
    events = await heard(listening)
    lost = sum(data["count"] for kind, data in events if kind == "lost")
    assert [data["number"] for kind, data in events if kind == "task"] == list(range(1000))
    assert lost == 2000


async def test_words_that_are_not_understood_do_no_harm(air: Any) -> None:
    feed = Feed(air)
    for message in ("", "{}", "[1]", '{"sender": "x"}', "\x00"):
        air.hearers[0](message)
    assert not feed.is_wanted


# What services tell


class ToldNode(SteppedNode):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        feed = self.feed = Feed()
        self.turns = Turns(store, self.polls, feed=feed, monotonic=lambda: self.monotonic)
        self.tasks = Tasks(store, self.polls, self.turns, feed=feed)
        self.work = Work(store, self.polls, self.turns, feed=feed)
        clock = self.ticker._clock
        self.ownership = Ownership(store, node_heartbeat(self.id), clock, feed=feed, monotonic=lambda: self.monotonic)
        self.ticker = Ticker(store, self.ownership, clock, self.timelines, feed=feed, on_tasks=self._on_tasks)

    async def claim(self) -> Any:
        (task,) = await self.work.claim(DEFAULT_TENANT, LeaseClaimRequest(worker="w1", queues=["default"]), now=self.now)
        return task


async def changes(listening: Listening) -> list[str]:
    return [str(data.get("change") or data["outcome"]) for _, data in await heard(listening)]


async def test_every_change_of_a_task_is_told(store: Store) -> None:
    node = ToldNode(store)
    listening, other = node.feed.listen(DEFAULT_TENANT), node.feed.listen(OTHER_TENANT)
    submitted, _ = await node.tasks.submit(DEFAULT_TENANT, TaskInput(type="work", max_attempts=1), now=node.now)
    task = await node.claim()
    lease = Lease(id=task.id, fence=task.fence)
    await node.work.release(DEFAULT_TENANT, LeaseReleaseRequest(worker="w1", leases=[lease]), now=node.now)
    task = await node.claim()
    failure = LeaseFailure(id=task.id, fence=task.fence, error=ErrorInput(message="no"))
    await node.work.fail(DEFAULT_TENANT, LeaseFailRequest(worker="w1", failures=[failure]), now=node.now)
    await node.tasks.retry(DEFAULT_TENANT, submitted.id, now=node.now)
    again = await node.claim()
    result = LeaseCompletion(id=again.id, fence=again.fence)
    await node.work.complete(DEFAULT_TENANT, LeaseCompleteRequest(worker="w1", results=[result]), now=node.now)
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
    listening = node.feed.listen(DEFAULT_TENANT)
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
