"""task_ready_count: the number of ready tasks of a tenant over all queues, counted up to the given limit."""

from __future__ import annotations

from uuid import UUID

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.base import Store
from tests.factories import NOW, OTHER_TENANT, claim, make_task, seconds


async def test_task_ready_count_adds_up_the_queues_of_one_tenant(store: Store) -> None:
    own = [make_task(queue=queue) for queue in ("a", "b", "b", "d")]
    others = [make_task(queue=queue, tenant_id=OTHER_TENANT) for queue in ("a", "c", "e", "e")]
    await store.task_submit([*own, *others], now=NOW)
    assert await store.task_ready_count(DEFAULT_TENANT, limit=100) == 4
    assert await store.task_ready_count(OTHER_TENANT, limit=100) == 4
    assert await store.task_ready_count(UUID(int=99), limit=100) == 0


async def test_task_ready_count_leaves_out_waiting_and_running_tasks(store: Store) -> None:
    await store.task_submit([make_task(run_at=NOW + seconds(1)), make_task(), make_task()], now=NOW)
    assert len(await claim(store, limit=1)) == 1
    assert await store.task_ready_count(DEFAULT_TENANT, limit=100, now=NOW) == 1


async def test_task_ready_count_includes_tasks_that_are_due_soon(store: Store) -> None:
    later = [make_task(delay_seconds=delay) for delay in (0.001, 30, 60, 61, 3600)]
    await store.task_submit([make_task(), *later, make_task(run_at=NOW + seconds(1), tenant_id=OTHER_TENANT)], now=NOW)
    for soon_seconds, expected in ((0, 1), (1, 2), (60, 4), (7200, 6)):
        count = await store.task_ready_count(DEFAULT_TENANT, limit=100, soon_seconds=soon_seconds, now=NOW)
        assert count == expected
    assert await store.task_ready_count(DEFAULT_TENANT, limit=3, soon_seconds=7200, now=NOW) == 3
    assert await store.task_ready_count(DEFAULT_TENANT, limit=100, now=NOW + seconds(60)) == 4, "due, but not promoted yet"


async def test_task_ready_count_stops_at_the_limit(store: Store) -> None:
    await store.task_submit([make_task(queue=f"q{number % 3}") for number in range(30)], now=NOW)
    assert await store.task_ready_count(DEFAULT_TENANT, limit=5) == 5
    assert await store.task_ready_count(DEFAULT_TENANT, limit=0) == 0


async def test_task_ready_count_of_an_empty_table_is_zero(store: Store) -> None:
    assert await store.task_ready_count(DEFAULT_TENANT, limit=5) == 0
