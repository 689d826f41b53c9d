"""The SDK with a real server process: the real API, lost replies, and a server killed under load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from everbeat import Context, Everbeat, NonRetryable, NotReachable, TaskCancelled, TaskFailed
from everbeat.client.errors import ConflictProblem, NotFoundProblem, ServerProblem
from everbeat.core.responses import PurgeResponse, ScheduleResponse
from tests.support.processes import ServerProcess, free_port
from tests.support.proxy import FaultyProxy

URL = "http://127.0.0.1:{}"


class RunningServer:
    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = URL.format(self.port)
        database = f"sqlite:///{folder / 'everbeat.db'}"
        self.process = ServerProcess("dev", "--port", str(self.port), "--database-url", database, folder=folder)

    def start(self) -> None:
        self.process.start()
        self.process.wait_ready(f"{self.url}/readyz")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    made = RunningServer(tmp_path_factory.mktemp("server"))
    with made.process:
        made.process.wait_ready(f"{made.url}/readyz")
        yield made


@pytest.fixture
def eb(running: RunningServer) -> Iterator[Everbeat]:
    """An app with a unique name, used as the queue of the test."""
    made = Everbeat(running.url, name=f"app-{uuid4().hex[:8]}")
    yield made
    made.close()


def ids_in(eb: Everbeat, queue: str) -> list[str]:
    return [task.id for task in eb.client.tasks.list(queue=queue, limit=None)]


# The real API


def test_schedules_through_the_client(eb: Everbeat) -> None:
    schedules, name = eb.client.schedules, eb.name
    made = schedules.put({"name": name, "cron": "0 2 * * *", "target": {"kind": "worker", "type": "t", "queue": name}})
    assert schedules.get(name).id == made.id
    assert schedules.pause(name, "for a while").note == "for a while"
    assert [one.name for one in schedules.list(status="paused", queue=name)] == [name]
    assert schedules.resume(made.id).status == "active"
    task = schedules.trigger(name, {"by": "user"})
    assert (task.origin, task.payload) == ("trigger", {"by": "user"})
    assert [one.id for one in schedules.executions(name)] == [task.id]
    assert schedules.ticks(name, limit=3)[0].outcome == "upcoming"
    assert schedules.put_many([{**_definition(made), "cron": "0 3 * * *"}])[0].status == "updated"
    schedules.delete(name)
    with pytest.raises(NotFoundProblem, match=name):
        schedules.get(name)


def _definition(schedule: ScheduleResponse) -> dict[str, Any]:
    return {"name": schedule.name, "cron": schedule.cron, "target": schedule.target}


async def test_tasks_through_the_client(eb: Everbeat) -> None:
    handle = await eb.submit_async("t", {"a": 1}, queue=eb.name, delay="1h", key=eb.name, labels={"team": "a"})
    assert await eb.submit_async("t", {"a": 1}, queue=eb.name, delay="1h", key=eb.name, labels={"team": "a"}) == handle
    tasks = eb.async_client.tasks
    assert [one.id for one in await tasks.list(queue=eb.name, label="team=a")] == [str(handle.id)]
    assert (await handle.get_async()).state == "scheduled"
    assert (await handle.cancel_async()).state == "cancelled"
    assert (await handle.cancel_async()).state == "cancelled"
    with pytest.raises(TaskCancelled):
        await handle.wait_async(5)
    again = await tasks.retry(handle.id)
    assert again.id != str(handle.id)
    assert await tasks.attempts(again.id) == []
    assert await tasks.log(again.id) == []
    with pytest.raises(ConflictProblem):
        await tasks.retry(again.id)


def test_rescheduling_and_backfilling_through_the_client(eb: Everbeat) -> None:
    at = datetime(2031, 5, 1, tzinfo=UTC)
    task_id = eb.submit("move", queue="moved", delay="1h").id
    assert eb.client.tasks.reschedule(task_id, at).run_at == "2031-05-01T00:00:00.000000Z"
    eb.client.schedules.put(
        {"name": "filled", "cron": "0 0 1 1 *", "target": {"kind": "worker", "type": "fill", "queue": "none"}}
    )
    window: dict[str, Any] = {"from_": datetime(2024, 6, 1, tzinfo=UTC), "to": datetime(2026, 6, 1, tzinfo=UTC)}
    assert eb.client.schedules.backfill("filled", dry_run=True, **window).count == 2
    assert eb.client.schedules.backfill("filled", **window).count == 2
    assert eb.client.schedules.backfill("filled", **window).count == 0
    assert eb.client.dead_letters.purge({"queue": "none"}) == PurgeResponse(count=0)


def test_an_unreachable_server_is_waited_for_only_as_configured() -> None:
    eb = Everbeat(f"http://127.0.0.1:{free_port()}", patience="0.2s")
    started = time.monotonic()
    with pytest.raises(NotReachable):
        eb.submit("work")
    assert time.monotonic() - started < 5


def test_a_key_used_for_another_task_is_refused(eb: Everbeat) -> None:
    eb.submit("t", {"a": 1}, queue=eb.name, key=eb.name)
    with pytest.raises(ServerProblem, match=r"Idempotency-Key: was used before.*HTTP 422"):
        eb.submit("t", {"a": 2}, queue=eb.name, key=eb.name)


def test_large_batches_are_split_into_requests(eb: Everbeat) -> None:
    @eb.task(queue=eb.name)
    def work(number: int, text: str) -> None: ...

    handles = work.submit_many([{"number": number, "text": "x" * 1000} for number in range(12_000)])
    assert len({handle.id for handle in handles}) == 12_000


# A worker


async def test_a_worker_over_http_runs_submitted_tasks(eb: Everbeat) -> None:
    @eb.task(queue=eb.name)
    async def add(ctx: Context, one: int, two: int) -> int:
        ctx.log(f"{one} and {two}")
        return one + two

    @eb.task(queue=eb.name)
    def refuse() -> None:
        raise NonRetryable("never")

    @eb.cron("0 0 1 1 *", queue=eb.name, name=f"{eb.name}-yearly")
    def yearly(ctx: Context) -> str | None:
        return ctx.schedule

    async with eb.running(concurrency=4):
        assert await (await add.submit_async(one=1, two=2)).wait_async(20) == 3
        handle = await asyncio.to_thread(refuse.submit)
        with pytest.raises(TaskFailed, match="NonRetryable: never"):
            await handle.wait_async(20)
        assert (await eb.async_client.dead_letters.get(handle.id)).attempts == 1
        assert (await eb.async_client.dead_letters.replay(handle.id)).origin == "replay"
        assert (await eb.async_client.dead_letters.replay_all({"queue": eb.name})).count >= 0
        triggered = await eb.async_client.schedules.trigger(f"{eb.name}-yearly")
        assert await _result(eb, triggered.id) == f"{eb.name}-yearly"
    assert (await eb.register_async(prune=True)).unchanged == [f"{eb.name}-yearly"]
    other = Everbeat(eb.url, name=eb.name)
    assert (await other.register_async(prune=True)).pruned == [f"{eb.name}-yearly"]


async def _result(eb: Everbeat, task_id: str) -> Any:
    from everbeat.client.handles import TaskHandle

    return await TaskHandle(UUID(task_id), eb._connection).wait_async(20)


# Faults


async def test_lost_replies_never_duplicate_a_task(running: RunningServer, eb: Everbeat) -> None:
    async with FaultyProxy("127.0.0.1", running.port, seed=1) as proxy:
        proxy.lose_reply_probability = 0.4
        proxy.losable = lambda request: request.startswith(b"POST /v1/tasks")
        through = Everbeat(proxy.through(running.url))
        handles = []
        for number in range(30):
            handles.append(await through.submit_async("t", {"n": number}, queue=eb.name))
            handles.append(await asyncio.to_thread(through.submit, "t", {"n": number}, queue=eb.name))
        handles += await asyncio.gather(*(through.submit_async("t", {}, queue=eb.name) for _ in range(50)))
        through.close()
        assert proxy.lost_replies > 10
    found = await asyncio.to_thread(ids_in, eb, eb.name)
    assert sorted(found) == sorted(str(handle.id) for handle in handles)


def test_a_server_killed_under_load_neither_loses_nor_duplicates_acknowledged_tasks(tmp_path: Path) -> None:
    server = RunningServer(tmp_path)
    server.start()
    eb = Everbeat(server.url)

    def submit(number: int) -> str:
        return str(eb.submit("t", {"n": number}, queue="load").id)

    try:
        with ThreadPoolExecutor(8) as threads:
            futures = [threads.submit(submit, number) for number in range(400)]
            futures[100].result(timeout=60)
            server.process.kill9()
            server.start()
            acknowledged = [future.result(timeout=60) for future in futures]
        found = eb.client.tasks.list(queue="load", limit=None)
        assert sorted(task.id for task in found) == sorted(acknowledged)
        assert sorted(task.payload["n"] for task in found) == list(range(400))
    finally:
        eb.close()
        server.process.kill9()
