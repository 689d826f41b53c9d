"""task_runs: how finished tasks of schedules ended."""

from __future__ import annotations

from uuid import UUID

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import TaskState
from everbeat.store.base import Store
from everbeat.store.values import LeaseRef
from tests.factories import NOW, OTHER_TENANT, claim, make_task, seconds

ONE = UUID(int=11)


async def finish(store: Store, schedule_id: UUID | None, after: int) -> UUID:
    task = make_task(schedule_id=schedule_id)
    await store.task_submit([task], now=NOW)
    (claimed,) = await claim(store, task.queue, now=NOW)
    done = await store.task_complete([(LeaseRef(DEFAULT_TENANT, task.id, claimed.fence), None)], now=NOW + seconds(after))
    assert done.finished
    return task.id


async def test_task_runs_returns_the_finished_runs_of_schedules(store: Store) -> None:
    ids = [await finish(store, ONE, after) for after in (1, 2)]
    others = [await finish(store, None, 3), UUID(int=5)]
    live = make_task(schedule_id=ONE)
    await store.task_submit([live], now=NOW)
    runs = await store.task_runs(DEFAULT_TENANT, [*ids, *others, live.id])
    assert [(one.schedule_id, one.state) for one in runs] == [(ONE, TaskState.COMPLETED)] * 2
    assert [(one.started_at, one.finished_at) for one in runs] == [(NOW, NOW + seconds(1)), (NOW, NOW + seconds(2))]
    assert await store.task_runs(OTHER_TENANT, ids) == []
    assert await store.task_runs(DEFAULT_TENANT, []) == []
