"""Random operations by workers, users and time: each task finishes once, and no stale report counts."""

from __future__ import annotations

from collections import Counter

import pytest

from everbeat.core.tasks import TaskState
from everbeat.store.base import Store
from tests.services.task_sequences import Simulation

STEPS = 250


@pytest.mark.parametrize("seed", range(4))
async def test_every_task_finishes_once_and_has_an_explanation(store: Store, seed: int) -> None:
    simulation = Simulation(store, seed)
    await simulation.create_schedules()
    step_counts: Counter[str] = Counter()
    try:
        for _ in range(STEPS):
            step_counts[await simulation.take_random_step()] += 1
            await simulation.check()
        await simulation.finish_all()
    finally:
        await simulation.close()
    ends = Counter(task.state for task in simulation.before.values())
    assert set(ends) >= {TaskState.COMPLETED, TaskState.DEAD, TaskState.CANCELLED}, "the walk reached all final states"
    assert step_counts.total() == STEPS
