"""The essential verbs of the contract work without a session, through PgBouncer in transaction mode.

With EVERBEAT_TEST_POOLING=transaction, the whole contract runs through PgBouncer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest

import everbeat.store.postgres as postgres
from everbeat.core.errors import StoreLocked
from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from tests.contract.test_dead_letters import test_dead_replay_under_concurrency_creates_one_task as dead_replay
from tests.contract.test_month_prune import test_month_prune_removes_older_rows_and_keeps_the_rest as month_prune
from tests.contract.test_schedule_write import test_a_response_with_a_used_key_rolls_back_the_whole_write as schedule_write
from tests.contract.test_task_end import test_task_end_under_concurrency_ends_each_attempt_once as task_end
from tests.contract.test_task_release_held import (
    test_task_release_held_and_concurrent_tick_fire_keep_the_limit as task_release_held,
)
from tests.contract.test_task_submit import test_task_submit_with_a_known_key_twice_in_a_batch as task_submit
from tests.contract.test_tick_fire import test_concurrent_firings_of_the_same_ticks_create_one_task_each as tick_fire
from tests.factories import url_of
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresAdmin

EssentialTest = Callable[[Store], Awaitable[None]]


@pytest.mark.parametrize(
    "essential", [dead_replay, month_prune, schedule_write, task_end, task_submit, task_release_held, tick_fire]
)
async def test_the_essential_verbs_work_without_a_session(pooled_store: Store, essential: EssentialTest) -> None:
    await essential(pooled_store)


async def test_more_callers_than_connections_share_them(pooled_store: Store) -> None:
    pools = [pooled_store.pool("api"), pooled_store.pool("engine"), pooled_store.pool("maintenance")]
    assert len(await asyncio.gather(*(pool.partition_list() for pool in pools * 30))) == 90


async def test_migrations_run_through_the_pooler(postgres_server: PostgresAdmin, pgbouncer: PgBouncer) -> None:
    name = postgres_server.create_database()
    store = PostgresStore(pgbouncer.url(name), listen=False, pooling="transaction")
    try:
        assert (await store.schema_version())[0] == 0
        assert len(await store.migrate()) == (await store.schema_version())[1]
    finally:
        await store.close()
        postgres_server.drop_database(name)


async def test_timeouts_and_plans_apply_to_each_transaction(pooled_store: PostgresStore) -> None:
    async with pooled_store._transaction("test") as connection:
        names = ("statement_timeout", "lock_timeout", "enable_seqscan", "jit")
        assert [await connection.fetchval(f"SHOW {name}") for name in names] == ["10s", "100ms", "off", "off"]
    async with pooled_store._connections.outside_transaction("api", "test") as connection:
        assert await connection.fetchval("SHOW enable_seqscan") == "on"


async def test_a_statement_waits_for_a_lock_only_until_the_timeout(pooled_url: str, postgres_url: str) -> None:
    store = PostgresStore(pooled_url, listen=False, listen_url=postgres_url, pooling="transaction", timeout_seconds=0.6)
    blocker = await asyncpg.connect(url_of(store))
    try:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE tasks")
            with pytest.raises(StoreLocked):
                await store.task_depths()
        assert await store.task_depths() == []
    finally:
        await blocker.close()
        await store.close()


def test_transactions_begin_in_one_place() -> None:
    """The driver's own transactions would not set the timeouts behind a pooler."""
    folder = Path(postgres.__path__[0])
    assert [path.name for path in folder.glob("*.py") if ".transaction()" in path.read_text(encoding="utf-8")] == []
