"""subscribe and publish: hints between nodes, at once inside a process, coalesced between processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.values import Notice


async def until(is_so: Callable[[], bool], deadline_seconds: float = 20) -> None:
    async with asyncio.timeout(deadline_seconds):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_publish_tells_the_listeners_of_this_process_at_once(store: Store) -> None:
    one: list[Notice] = []
    two: list[Notice] = []
    store.subscribe(one.append)
    store.subscribe(two.append)
    store.publish(Notice.SCHEDULES)
    store.publish(Notice.CALENDARS)
    assert one == two == [Notice.SCHEDULES, Notice.CALENDARS]


async def test_publish_reaches_other_processes_as_one_notice_for_many(postgres_url: str) -> None:
    speaker, listener = PostgresStore(postgres_url), PostgresStore(postgres_url)
    own: list[Notice] = []
    heard: list[Notice] = []
    speaker.subscribe(own.append)
    listener.subscribe(heard.append)
    await speaker.open()
    await listener.open()
    # A listener that has just come is told everything once, for what was said before it listened.
    await until(lambda: set(own) == set(heard) == set(Notice))
    own.clear()
    heard.clear()
    speaker.publish(Notice.SCHEDULES)
    await until(lambda: len(heard) == 1)
    for _ in range(49):
        speaker.publish(Notice.SCHEDULES)
    await until(lambda: len(heard) == 2)
    speaker.publish(Notice.CALENDARS)
    await until(lambda: Notice.CALENDARS in heard)
    assert heard == [Notice.SCHEDULES, Notice.SCHEDULES, Notice.CALENDARS], "one at once, and one for all that came after it"
    assert own == [*[Notice.SCHEDULES] * 50, Notice.CALENDARS], "no echo of what it said itself"
    await speaker.close()
    await listener.close()


@pytest.mark.parametrize("has_spoken_before", [False, True])
async def test_a_store_that_closes_sends_what_still_waits(postgres_url: str, has_spoken_before: bool) -> None:
    """A node that stops says so in its last breath; nobody should have to find out by waiting."""
    speaker, listener = PostgresStore(postgres_url, listen=False), PostgresStore(postgres_url)
    heard: list[Notice] = []
    listener.subscribe(heard.append)
    await listener.open()
    await until(lambda: set(heard) == set(Notice))
    heard.clear()
    if has_spoken_before:
        speaker.publish(Notice.OWNERSHIP)
        await until(lambda: len(heard) == 1)
        heard.clear()
    speaker.publish(Notice.OWNERSHIP)
    await speaker.close()
    await until(lambda: heard == [Notice.OWNERSHIP])
    await listener.close()
