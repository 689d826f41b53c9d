"""Pages of tasks: newest first, live and finished in one order, complete although tasks move while one turns the pages."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.protocol import TaskInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import TaskRecord, TaskState
from everbeat.store.base import Store
from everbeat.store.values import TaskFilter, TaskScan
from tests.factories import NOW, OTHER_TENANT, SteppedNode, StoreOverride, minutes
from tests.services.workers import Worker, submit, submit_many

ANY = TaskFilter()


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


async def turn_pages(node: SteppedNode, filter_: TaskFilter = ANY, *, limit: int = 3) -> list[TaskRecord]:
    found: list[TaskRecord] = []
    before: UUID | None = None
    for _ in range(1000):
        page = await node.tasks.page(DEFAULT_TENANT, filter_, before=before, limit=limit)
        assert len(page.tasks) <= limit
        found += page.tasks
        if page.next_before is None:
            return found
        assert before is None or page.next_before < before, "it goes on, always"
        before = page.next_before
    raise AssertionError("the pages never end")


async def mixed(node: SteppedNode, count: int = 20) -> list[UUID]:
    """Tasks in every kind of state, newest first."""
    ids = await submit_many(node, count)
    worker = Worker(node)
    for place, task in enumerate(await worker.claim(count)):
        match place % 5:
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
async def test_pages_hold_every_task_once_newest_first(node: SteppedNode, limit: int) -> None:
    ids = await mixed(node)
    await submit(node, tenant_id=OTHER_TENANT)
    assert [task.id for task in await turn_pages(node, limit=limit)] == ids


async def test_a_page_of_nothing_is_empty_and_the_last_one(node: SteppedNode) -> None:
    page = await node.tasks.page(DEFAULT_TENANT, TaskFilter(), before=None, limit=10)
    assert page == ([], None)


@pytest.mark.parametrize("state", list(TaskState))
async def test_a_state_filters(node: SteppedNode, state: TaskState) -> None:
    ids = await mixed(node)
    found = await turn_pages(node, TaskFilter(state=state.value))
    assert {task.state for task in found} <= {state}
    everything = await turn_pages(node)
    assert [task.id for task in found] == [task.id for task in everything if task.state is state]
    assert len(everything) == len(ids)


async def test_queue_type_schedule_and_label_filter(node: SteppedNode) -> None:
    given: list[dict[str, Any]] = [
        {"type": "a", "queue": "one"},
        {"type": "b", "queue": "one", "labels": {"team": "x"}},
        {"type": "a", "queue": "two", "labels": {"team": "y", "odd": ""}},
    ]
    await node.tasks.submit_batch(DEFAULT_TENANT, [TaskInput(**one) for one in given * 3], now=NOW)
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
        assert len(await turn_pages(node, filter_, limit=2)) == count, filter_


class Moving(StoreOverride):
    """Between the look at live tasks and the one at finished tasks, and between pages, something happens."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.happen: Any = None

    async def task_list(self, *given: Any, **more: Any) -> TaskScan:
        scan: TaskScan = await self.inner.task_list(*given, **more)
        if self.happen is not None:
            await self.happen()
        return scan


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("is_filtered", [False, True])
async def test_tasks_that_end_while_one_turns_the_pages_are_not_missed(store: Store, seed: int, is_filtered: bool) -> None:
    random = Random(seed)
    moving = Moving(store)
    node = SteppedNode(moving)
    worker = Worker(node)
    ids = await submit_many(node, 40, queue="mine")
    running = await worker.claim(40, queues=["mine"])
    random.shuffle(running)

    async def happen() -> None:
        for _ in range(random.randrange(4)):
            if running:
                await worker.complete(running.pop())
        if random.random() < 0.3:
            await submit(node, queue="mine")  # newer than all that was seen: not on these pages

    moving.happen = happen
    found = await turn_pages(node, TaskFilter(queue="mine") if is_filtered else TaskFilter(), limit=random.randint(1, 7))
    seen = [task.id for task in found]
    assert len(seen) == len(set(seen)), "none twice"
    assert set(ids) <= set(seen), "none missed"
    assert seen == sorted(seen, reverse=True)


async def test_a_filter_that_matches_little_ends_a_page_early_and_the_next_one_goes_on(store: Store) -> None:
    class CutShort(StoreOverride):
        """A scan looks at five tasks, then answers with what it has."""

        async def task_list(self, tenant_id: UUID, filter_: TaskFilter, *, limit: int, **more: Any) -> TaskScan:
            everything = (await self.inner.task_list(tenant_id, ANY, limit=6, **more)).tasks
            looked, rest = everything[:5], everything[5:]
            found = [task for task in looked if task.type == filter_.type][:limit]
            return TaskScan(found, looked[-1].id if rest and len(found) < limit else None)

    node = SteppedNode(CutShort(store))
    types = ["rare" if number % 11 == 0 else "common" for number in range(44)]
    ids = await node.tasks.submit_batch(DEFAULT_TENANT, [TaskInput(type=one) for one in types], now=NOW)
    worker = Worker(node)
    await worker.complete(*(await worker.claim(30))[::2])
    found = await turn_pages(node, TaskFilter(type="rare"), limit=3)
    assert [task.id for task in found] == [id_ for id_, one in zip(ids, types, strict=True) if one == "rare"][::-1]
