"""Poolers, locks, saturated pools and restricted roles: the tick loop continues, and the API responds with Retry-After."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import asyncpg
import httpx

from everbeat.store.postgres.store import PostgresStore
from tests.cluster.fleet import Site
from tests.cluster.harness import running_cluster
from tests.contract.test_tick_fire import NODE, fire, insert_and_own
from tests.factories import firing_of, make_schedule
from tests.support.postgres import PostgresAdmin, run_outside_loop
from tests.support.processes import wait_until


def test_a_node_and_a_worker_run_behind_a_pooler_with_four_connections(
    postgres_server: PostgresAdmin, postgres_url: str, pooled_url: str, tmp_path: Path
) -> None:
    with running_cluster(postgres_url, tmp_path) as cluster:
        node = cluster.add(url=pooled_url, flags=("--database-pooling", "transaction"))
        site = Site(postgres_url, node.base, tmp_path)
        try:
            cluster.register(10, target={"kind": "worker", "queue": site.queue, "type": "effect"})
            site.worker()
            submitted = site.submit_many("effect", 20)
            for task in submitted:
                site.wait_state(task)
            ticks = "SELECT count(*) FROM task_history WHERE origin = 'tick' AND state = 'completed'"
            wait_until(lambda: site.reader.value(ticks) >= 30, 20, lambda: f"ticks done{site.logs()}")
            cluster.assert_accounted()
        finally:
            site.close()
        assert "notices_are_off" in node.process.logs()
        assert node.process.terminate() == 0


def test_a_lock_on_a_hot_table_causes_503_and_delays_no_tick(
    postgres_server: PostgresAdmin, postgres_url: str, tmp_path: Path
) -> None:
    with running_cluster(postgres_url, tmp_path) as cluster:
        node = cluster.add()
        cluster.register(10)
        cluster.wait_firing(postgres_server, 10)

        async def request_while_locked() -> list[tuple[int, str | None, float]]:
            blocker = await asyncpg.connect(postgres_url)
            async with blocker.transaction():
                await blocker.execute("LOCK TABLE tasks")
                async with httpx.AsyncClient(base_url=node.base, trust_env=False, timeout=15.0) as client:
                    responses = await asyncio.gather(*(_request(client, number) for number in range(40)))
                waiting = await blocker.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted")
                assert waiting <= 8 + 3 + 2, "too many sessions wait for the lock"
            await blocker.close()
            return list(responses)

        responses = run_outside_loop(request_while_locked())
        assert {(status, retry is not None) for status, retry, _ in responses} == {(503, True)}
        assert max(took for *_, took in responses) < 2 * 2 + 2  # the timeout of a database call is two seconds
        cluster.wait_firing(postgres_server, 20)
        cluster.assert_accounted()
        assert node.client.post("/v1/tasks", json={"type": "t"}).status_code == 201


async def _request(client: httpx.AsyncClient, number: int) -> tuple[int, str | None, float]:
    started = time.monotonic()
    if number % 2:
        response = await client.get("/v1/tasks")
    else:
        response = await client.post("/v1/tasks", json={"type": "t"})
    return response.status_code, response.headers.get("Retry-After"), time.monotonic() - started


async def test_a_saturated_api_does_not_delay_the_tick_loop(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, listen=False, api_connections=2)
    engine = store.pool("engine")
    schedule = make_schedule()
    await insert_and_own(engine, schedule)
    release = asyncio.Event()

    async def block() -> None:
        async with store._connections.use("api", "test"):
            await release.wait()

    blocking = [asyncio.create_task(block()) for _ in range(2)]
    try:
        await engine.clock()
        waiting = asyncio.create_task(store.clock())
        await asyncio.wait({waiting}, timeout=0.1)
        assert not waiting.done(), "the API connection pool is not saturated"
        started = time.monotonic()
        assert len(await fire(engine, firing_of(schedule), node=NODE)) == 1
        await store.pool("maintenance").task_expired(limit=10)
        assert time.monotonic() - started < 1
    finally:
        release.set()
        await asyncio.gather(*blocking, waiting)
        await store.close()
