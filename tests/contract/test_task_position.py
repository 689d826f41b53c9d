"""task_position."""

from __future__ import annotations

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.base import Store
from tests.factories import NOW, make_task, seconds


async def test_task_position_counts_the_ready_tasks_before_one_in_its_queue(store: Store) -> None:
    tasks = [make_task("a"), make_task("a", priority=5), make_task("b"), make_task("a", run_at=NOW + seconds(60))]
    other = make_task("a", queue="other")
    await store.task_submit([*tasks, other], now=NOW)
    ready = sorted((task for task in tasks[:3]), key=lambda task: (task.priority, task.id))
    for index, task in enumerate(ready):
        position = await store.task_position(
            DEFAULT_TENANT, "default", priority=task.priority, run_at=NOW, id_=task.id, limit=100
        )
        assert position == (index, 1 if task.priority == 5 else 3)


async def test_task_position_reads_a_limited_number_of_tasks(store: Store) -> None:
    tasks = [make_task("a") for _ in range(5)]
    await store.task_submit(tasks, now=NOW)
    last = max(tasks, key=lambda task: task.id)
    assert await store.task_position(DEFAULT_TENANT, "default", priority=last.priority, run_at=NOW, id_=last.id, limit=3) == (
        3,
        3,
    )
