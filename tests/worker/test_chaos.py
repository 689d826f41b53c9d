"""Many workers, a network that loses messages, and a server that is sometimes unavailable: every task finishes once."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any

from everbeat.client.errors import NotReachable, ServerProblem
from everbeat.worker.context import Context
from tests.support.processes import wait_until_async
from tests.worker.conftest import Workers
from tests.worker.fakes import FakeServer, FakeTransport, ThreadedTransport, definition

TASKS = 1500


class LossyTransport(ThreadedTransport):
    """Loses some of the requests, and some of the replies to the others."""

    def __init__(self, server: FakeServer, rng: random.Random) -> None:
        super().__init__(server)
        self._random = rng

    def for_thread(self) -> FakeTransport:
        self.made.append(LossyTransport(self.server, random.Random(self._random.random())))
        return self.made[-1]

    async def _before(self, verb: str, request: Any, items: Any = ()) -> None:
        await super()._before(verb, request, items)
        value = self._random.random()
        if value < 0.05:
            raise NotReachable("fake", "connection reset")
        if value < 0.1:
            raise ServerProblem(503, {"detail": "database unavailable"}, 0)
        await asyncio.sleep(self._random.random() * 0.005)

    def _after(self, verb: str, response: list[Any]) -> list[Any]:
        if self._random.random() < 0.05:
            raise NotReachable("fake", "the reply was lost")
        return super()._after(verb, response)


async def test_every_task_finishes_once(workers: Workers, server: FakeServer) -> None:
    rng = random.Random(7)
    runs: Counter[int] = Counter()

    async def job(ctx: Context, number: int) -> int:
        runs[number] += 1
        ctx.log(f"run {ctx.attempt}")
        if number % 3 == 0:
            await asyncio.sleep(number % 10 / 1000)
        return number

    def other(number: int) -> int:
        runs[number] += 1
        time.sleep(number % 7 / 1000)
        if number % 50 == 0:
            raise ValueError(number)
        return number

    tasks = [server.submit("job" if number % 2 else "other", {"number": number}, max_attempts=100) for number in range(TASKS)]
    for _ in range(4):
        await workers.start(
            definition(job), definition(other, "other"), transport=LossyTransport(server, rng), lease_seconds=0.6, concurrency=8
        )

    def all_finished() -> bool:
        server.reap()
        return set(server.states()) <= {"completed", "failed"}

    await wait_until_async(all_finished, 60, lambda: str(server.states()))
    await wait_until_async(lambda: not any(worker._running_tasks for worker in workers.made))
    assert [task.result for task in tasks if task.state == "completed"] == [
        number for number, task in enumerate(tasks) if task.state == "completed"
    ]
    assert server.states()["failed"] == len([number for number in range(0, TASKS, 2) if number % 50 == 0])
    assert set(runs) == set(range(TASKS))
    extra_runs = sum(runs.values()) - TASKS
    lost = sum(worker.stats.lost + worker.stats.stale for worker in workers.made)
    reclaimed = sum(task.attempt - 1 for task in tasks)
    assert extra_runs <= reclaimed
    assert lost <= reclaimed + extra_runs
