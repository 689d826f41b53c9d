"""Pages of tasks: newest first, live and finished tasks in one order, and complete although tasks finish between pages."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import TaskRecord, TaskState
from everbeat.store.base import Store
from everbeat.store.values import TaskFilter, TaskScan
from tests.factories import NOW, OTHER_TENANT, SteppedNode, StoreOverride, make_input, minutes
from tests.services.workers import Worker, submit, submit_many

ANY = TaskFilter()


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


async def read_all_pages(node: SteppedNode, filter_: TaskFilter = ANY, *, limit: int = 3) -> list[TaskRecord]:
    found: list[TaskRecord] = []
    before: UUID | None = None
    for _ in range(1000):
        page = await node.tasks.page(DEFAULT_TENANT, filter_, before=before, limit=limit)
        assert len(page.tasks) <= limit
        found += page.tasks
        if page.next_before is None:
            return found
        assert before is None or page.next_before < before, "each page continues further back"
        before = page.next_before
    raise AssertionError("the pages never end")


async def create_mixed_tasks(node: SteppedNode, count: int = 20) -> list[UUID]:
    """Create tasks in several states, and return their ids, newest first."""
    ids = await submit_many(node, count)
    worker = Worker(node)
    for number, task in enumerate(await worker.claim(count)):
        match number % 5:
            case 0:
                await worker.complete(task)
            case 1:
                await worker.fail(task, retryable=False)
            case 2:
                await worker.fail(task, retry_in_seconds=60)
            case 3:
                await worker.release(task)
            case _:
                pass
    return sorted(ids, reverse=True)


@pytest.mark.parametrize("limit", [1, 3, 19, 20, 21, 1000])
async def test_pages_contain_every_task_once_newest_first(node: SteppedNode, limit: int) -> None:
    ids = await create_mixed_tasks(node)
    await submit(node, tenant_id=OTHER_TENANT)
    assert [task.id for task in await read_all_pages(node, limit=limit)] == ids


async def test_a_page_without_tasks_is_empty_and_the_last_one(node: SteppedNode) -> None:
    page = await node.tasks.page(DEFAULT_TENANT, TaskFilter(), before=None, limit=10)
    assert page == ([], None)


@pytest.mark.parametrize("state", list(TaskState))
async def test_a_filter_by_state(node: SteppedNode, state: TaskState) -> None:
    ids = await create_mixed_tasks(node)
    found = await read_all_pages(node, TaskFilter(state=state.value))
    assert {task.state for task in found} <= {state}
    everything = await read_all_pages(node)
    assert [task.id for task in found] == [task.id for task in everything if task.state is state]
    assert len(everything) == len(ids)


async def test_a_filter_by_queue_type_schedule_and_label(node: SteppedNode) -> None:
    given: list[dict[str, Any]] = [
        {"type": "a", "queue": "one"},
        {"type": "b", "queue": "one", "labels": {"team": "x"}},
        {"type": "a", "queue": "two", "labels": {"team": "y", "odd": ""}},
    ]
    await node.tasks.submit_batch(DEFAULT_TENANT, [make_input(**one) for one in given * 3], now=NOW)
    worker = Worker(node)
    await worker.complete(*await worker.claim(4, queues=["one", "two"]))
    job = await node.put()
    await node.run(NOW + minutes(1), by_seconds=60)
    for filter_, count in (
        (TaskFilter(type="a"), 6),
        (TaskFilter(queue="one"), 6),
        (TaskFilter(queue="two", type="a"), 3),
        (TaskFilter(queue="two", type="b"), 0),
        (TaskFilter(label_key="team"), 6),
        (TaskFilter(label_key="team", label_value="x"), 3),
        (TaskFilter(label_key="odd", label_value=""), 3),
        (TaskFilter(label_key="no such"), 0),
        (TaskFilter(schedule_id=job.id), 1),
        (TaskFilter(schedule_id=job.id, state="completed"), 0),
        (TaskFilter(schedule_id=UUID(int=9)), 0),
    ):
        assert len(await read_all_pages(node, filter_, limit=2)) == count, filter_


class ChangingStore(StoreOverride):
    """Runs a callback after each query, that is, between pages and between the queries of live and of finished tasks."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.callback: Any = None

    async def task_list(self, *given: Any, **more: Any) -> TaskScan:
        scan: TaskScan = await self.inner.task_list(*given, **more)
        if self.callback is not None:
            await self.callback()
        return scan


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("is_filtered", [False, True])
async def test_tasks_that_finish_between_pages_are_not_missed(store: Store, seed: int, is_filtered: bool) -> None:
    random = Random(seed)
    changing = ChangingStore(store)
    node = SteppedNode(changing)
    worker = Worker(node)
    ids = await submit_many(node, 40, queue="mine")
    running = await worker.claim(40, queues=["mine"])
    random.shuffle(running)

    async def callback() -> None:
        for _ in range(random.randrange(4)):
            if running:
                await worker.complete(running.pop())
        if random.random() < 0.3:
            await submit(node, queue="mine")  # newer than all tasks seen so far, so it is not on these pages

    changing.callback = callback
    found = await read_all_pages(node, TaskFilter(queue="mine") if is_filtered else TaskFilter(), limit=random.randint(1, 7))
    seen = [task.id for task in found]
    assert len(seen) == len(set(seen)), "no task twice"
    assert set(ids) <= set(seen), "no task missed"
    assert seen == sorted(seen, reverse=True)


async def test_a_selective_filter_ends_a_page_early_and_the_next_page_continues(store: Store) -> None:
    class ShortScanStore(StoreOverride):
        """Scans five tasks at most, and returns the matches among them."""

        async def task_list(self, tenant_id: UUID, filter_: TaskFilter, *, limit: int, **more: Any) -> TaskScan:
            everything = (await self.inner.task_list(tenant_id, ANY, limit=6, **more)).tasks
            scanned, rest = everything[:5], everything[5:]
            found = [task for task in scanned if task.type == filter_.type][:limit]
            return TaskScan(found, scanned[-1].id if rest and len(found) < limit else None)

    node = SteppedNode(ShortScanStore(store))
    types = ["rare" if number % 11 == 0 else "common" for number in range(44)]
    ids = await node.tasks.submit_batch(DEFAULT_TENANT, [make_input(type=one) for one in types], now=NOW)
    worker = Worker(node)
    await worker.complete(*(await worker.claim(30))[::2])
    found = await read_all_pages(node, TaskFilter(type="rare"), limit=3)
    assert [task.id for task in found] == [id_ for id_, one in zip(ids, types, strict=True) if one == "rare"][::-1]
