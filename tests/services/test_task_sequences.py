"""Whatever workers, users and time do to tasks: each ends once, nothing acknowledged is lost, nothing stale counts."""

from __future__ import annotations

from collections import Counter

import pytest

from everbeat.core.tasks import TaskState
from everbeat.store.base import Store
from tests.services.task_sequences import World

STEPS = 250


@pytest.mark.parametrize("seed", range(4))
async def test_tasks_end_once_and_are_explained_whatever_happens(store: Store, seed: int) -> None:
    world = World(store, seed)
    await world.begin()
    happened: Counter[str] = Counter()
    try:
        for _ in range(STEPS):
            happened[await world.happen()] += 1
            await world.check()
        await world.heal()
    finally:
        await world.close()
    ends = Counter(task.state for task in world.before.values())
    assert set(ends) >= {TaskState.COMPLETED, TaskState.DEAD, TaskState.CANCELLED}, "the walk went through all of it"
    assert happened.total() == STEPS
