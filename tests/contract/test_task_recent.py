"""task_recent: the newest finished tasks of many schedules."""

from __future__ import annotations

from uuid import UUID

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import TaskState
from everbeat.store.base import Store
from everbeat.store.values import LeaseRef
from tests.factories import NOW, OTHER_TENANT, claim, make_task, seconds

ONE, TWO = UUID(int=11), UUID(int=12)


async def finish(store: Store, schedule_id: UUID, after: int) -> None:
    task = make_task(schedule_id=schedule_id)
    await store.task_submit([task], now=NOW)
    (claimed,) = await claim(store, task.queue, now=NOW)
    done = await store.task_complete([(LeaseRef(DEFAULT_TENANT, task.id, claimed.fence), None)], now=NOW + seconds(after))
    assert done.finished


async def test_task_recent_returns_the_newest_runs_of_each_schedule(store: Store) -> None:
    for after in (1, 2, 3):
        await finish(store, ONE, after)
    await finish(store, TWO, 5)
    runs = await store.task_recent(DEFAULT_TENANT, [ONE, TWO, UUID(int=13)], limit=2)
    assert [(one.schedule_id, one.finished_at) for one in runs] == [
        (ONE, NOW + seconds(2)),
        (ONE, NOW + seconds(3)),
        (TWO, NOW + seconds(5)),
    ]
    assert {one.state for one in runs} == {TaskState.COMPLETED}
    assert all(one.started_at is not None for one in runs)
    assert await store.task_recent(OTHER_TENANT, [ONE, TWO], limit=2) == []
    assert await store.task_recent(DEFAULT_TENANT, [], limit=2) == []
