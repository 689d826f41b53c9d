"""While another session has locked one row, the other rows of each batch proceed.

PostgreSQL only: SQLite has no row locks. Its one write lock is held for the duration of a write, and the tests of processes
that hold it for longer are in tests/cluster/test_sqlite_processes.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

import pytest

from everbeat.core.ticks import Outcome
from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from tests.contract.test_tick_fire import NODE, insert_and_own
from tests.factories import (
    NOW,
    count_rows,
    find,
    firing_of,
    make_schedule,
)
from tests.support.row_locks import row_locked

T = TypeVar("T")

# A verb that waits for the lock does not return before its lock timeout of five seconds.
_PROMPT_SECONDS = 2.0


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[Store]:
    made = PostgresStore(postgres_url, listen=False)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def prompt(verb: Awaitable[T]) -> T:
    """The result of a verb, which must not wait for a lock."""
    return await asyncio.wait_for(verb, _PROMPT_SECONDS)


async def test_tick_fire_skips_a_locked_schedule_and_fires_the_others(store: Store, postgres_url: str) -> None:
    schedules = [make_schedule(f"job-{number}") for number in range(20)]
    await insert_and_own(store, *schedules)
    locked, others = schedules[7], [one for one in schedules if one is not schedules[7]]
    firings = [firing_of(one) for one in schedules]
    async with row_locked(postgres_url, "schedules", "id = $1", locked.id):
        result = await prompt(store.tick_fire(NODE, firings, now=NOW))
        assert {one.schedule_id: one.outcome for one in result.fired} == {one.id: Outcome.FIRED for one in others}
        assert result.locked_ids == {locked.id}
        assert await find(store, locked) == locked
        assert await count_rows(store, "ticks", locked.id) == await count_rows(store, "tasks", locked.id) == 0
    again = await store.tick_fire(NODE, [firings[7]], now=NOW)
    assert [one.outcome for one in again.fired] == [Outcome.FIRED]
    assert again.locked_ids == frozenset()


async def test_tick_fire_reports_only_schedules_that_would_fire_as_locked(store: Store, postgres_url: str) -> None:
    """A firing that a guard refuses is not tried again, whether or not its row is locked."""
    stale, foreign, valid = make_schedule("stale"), make_schedule("foreign"), make_schedule("valid")
    await insert_and_own(store, stale, foreign, valid)
    firings = [
        firing_of(stale, revision=stale.revision + 1),
        firing_of(foreign, epoch=9),
        firing_of(valid),
    ]
    async with row_locked(postgres_url, "schedules"):
        result = await prompt(store.tick_fire(NODE, firings, now=NOW))
    assert result.fired == []
    assert result.locked_ids == {valid.id}


async def test_tick_fire_by_two_nodes_at_once_fires_each_tick_once(store: Store, postgres_url: str) -> None:
    schedules = [make_schedule(f"job-{number}") for number in range(50)]
    await insert_and_own(store, *schedules)
    stores = [PostgresStore(postgres_url, listen=False) for _ in range(3)]
    try:
        batches = [[firing_of(one) for one in schedules] for _ in range(6)]
        calls = [stores[number % 3].tick_fire(NODE, batch, now=NOW) for number, batch in enumerate(batches)]
        results = await asyncio.gather(*calls)
    finally:
        for one in stores:
            await one.close()
    fired = [one.schedule_id for result in results for one in result.fired]
    assert sorted(fired) == sorted(one.id for one in schedules)
    assert await count_rows(store, "tasks") == await count_rows(store, "ticks") == 50
