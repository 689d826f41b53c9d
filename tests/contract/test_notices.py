"""subscribe and publish: notices are delivered immediately within a process and coalesced between processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from everbeat.store.base import Store
from everbeat.store.notices import Notices, pause_after
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.values import Notice


async def until(condition: Callable[[], bool], deadline_seconds: float = 20) -> None:
    async with asyncio.timeout(deadline_seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def test_publish_notifies_listeners_of_this_process_immediately(store: Store) -> None:
    one: list[Notice] = []
    two: list[Notice] = []
    store.subscribe(one.append)
    store.subscribe(two.append)
    store.publish(Notice.SCHEDULES)
    store.publish(Notice.CALENDARS)
    assert one == two == [Notice.SCHEDULES, Notice.CALENDARS]


async def test_publish_to_others_does_not_notify_this_process(postgres_url: str) -> None:
    sender, listener = PostgresStore(postgres_url), PostgresStore(postgres_url)
    own: list[Notice] = []
    received: list[Notice] = []
    sender.subscribe(own.append)
    listener.subscribe(received.append)
    await sender.open()
    await listener.open()
    await until(lambda: set(own) == set(received) == set(Notice))
    own.clear()
    received.clear()
    sender.publish_to_others(Notice.TASKS)
    await until(lambda: received == [Notice.TASKS])
    assert own == []
    await sender.close()
    await listener.close()


async def test_publish_coalesces_notices_to_other_processes(postgres_url: str) -> None:
    sender, listener = PostgresStore(postgres_url), PostgresStore(postgres_url)
    own: list[Notice] = []
    received: list[Notice] = []
    sender.subscribe(own.append)
    listener.subscribe(received.append)
    await sender.open()
    await listener.open()
    # A new listener receives every notice once, because changes may have happened before it listened.
    await until(lambda: set(own) == set(received) == set(Notice))
    own.clear()
    received.clear()
    sender.publish(Notice.SCHEDULES)
    await until(lambda: len(received) == 1)
    for _ in range(49):
        sender.publish(Notice.SCHEDULES)
    await until(lambda: len(received) == 2)
    sender.publish(Notice.CALENDARS)
    await until(lambda: Notice.CALENDARS in received)
    assert received == [Notice.SCHEDULES, Notice.SCHEDULES, Notice.CALENDARS], (
        "the first is sent immediately, the rest are combined into one"
    )
    assert own == [*[Notice.SCHEDULES] * 50, Notice.CALENDARS], "a process receives no echo of its own notices"
    await sender.close()
    await listener.close()


@pytest.mark.parametrize("has_sent_before", [False, True])
async def test_a_closing_store_sends_its_pending_notices(postgres_url: str, has_sent_before: bool) -> None:
    """A stopping node publishes its last notices, so that other nodes do not wait for their next poll."""
    sender, listener = PostgresStore(postgres_url, listen=False), PostgresStore(postgres_url)
    received: list[Notice] = []
    listener.subscribe(received.append)
    await listener.open()
    await until(lambda: set(received) == set(Notice))
    received.clear()
    if has_sent_before:
        sender.publish(Notice.OWNERSHIP)
        await until(lambda: len(received) == 1)
        received.clear()
    sender.publish(Notice.OWNERSHIP)
    await sender.close()
    await until(lambda: received == [Notice.OWNERSHIP])
    await listener.close()


async def test_notices_30_milliseconds_apart_are_each_sent_immediately() -> None:
    """Workers on other nodes wait for the notice, so a task every 30 ms must not wait for a pause."""
    delays: list[float] = []
    published_at = 0.0
    monotonic = asyncio.get_running_loop().time

    async def send(_notice: Notice) -> None:
        delays.append(monotonic() - published_at)

    notices = Notices(send)
    for _ in range(20):
        published_at = monotonic()
        notices.publish(Notice.TASKS)
        await asyncio.sleep(0.03)
    await notices.close()
    assert sum(delay < 0.01 for delay in delays) >= 15


@pytest.mark.parametrize(("send_seconds", "pause"), [(0.0, 0.02), (0.001, 0.02), (0.01, 0.08), (0.05, 0.1), (9.0, 0.1)])
def test_the_pause_between_notices_follows_the_duration_of_the_send(send_seconds: float, pause: float) -> None:
    assert pause_after(send_seconds) == pytest.approx(pause)
