"""Stopping: no new claims, unstarted tasks are released immediately, running tasks may finish, and the rest is released."""

from __future__ import annotations

import asyncio
import threading
import time

from everbeat.core.protocol import LeaseClaimRequest
from everbeat.core.tasks import ClaimedTask
from everbeat.worker.context import Context
from everbeat.worker.runtime import Worker
from tests.support.processes import wait_until_async
from tests.worker.conftest import Workers
from tests.worker.fakes import FakeServer, ThreadedTransport, definition, registry_of


async def test_an_idle_worker_stops_immediately(workers: Workers, server: FakeServer) -> None:
    async def job() -> None: ...

    worker = await workers.start(job)
    await wait_until_async(lambda: server.calls["claim"] == 1)
    started_at = time.monotonic()
    await worker.stop()
    assert time.monotonic() - started_at < 1
    assert threading.active_count() < 50


async def test_running_tasks_may_finish_within_the_grace_time(workers: Workers, server: FakeServer) -> None:
    async def job() -> str:
        await asyncio.sleep(0.1)
        return "done"

    def other() -> str:
        time.sleep(0.1)
        return "done"

    tasks = [server.submit("job"), server.submit("other")]
    worker = await workers.start(definition(job), definition(other, "other"))
    await workers.until_started(2)
    await worker.stop(5)
    assert [task.result for task in tasks] == ["done", "done"]
    assert server.calls["release"] == 0


async def test_a_stopping_worker_claims_nothing_and_releases_unstarted_tasks(workers: Workers, server: FakeServer) -> None:
    release = asyncio.Event()

    async def job(long: bool = False) -> None:
        if long:
            await release.wait()

    for _ in range(2000):
        server.submit()
    worker = await workers.start(job, concurrency=2)
    await workers.until_ended()
    server.latency_seconds = 0.01
    for _ in range(50):
        server.submit(payload={"long": True})
    await wait_until_async(lambda: len(worker._runners.running) == 2 and worker._runners.ready)
    stopping = asyncio.create_task(worker.stop(5))
    await wait_until_async(lambda: server.states()["running"] == 2, 1, "unstarted tasks are released")
    assert not stopping.done()
    assert all(task.attempt == 0 for task in server.tasks.values() if task.state == "ready")
    release.set()
    await stopping
    assert server.states() == {"completed": 2002, "ready": 48}


async def test_a_task_that_becomes_ready_while_stopping_is_not_claimed(workers: Workers, server: FakeServer) -> None:
    release = asyncio.Event()

    async def job() -> None:
        await release.wait()

    first = server.submit()
    worker = await workers.start(job, concurrency=5)
    await wait_until_async(lambda: worker._runners.running and server.calls["claim"] == 2)
    stopping = asyncio.create_task(worker.stop(5))
    await wait_until_async(lambda: worker._tasks[0].done())
    late = server.submit()
    release.set()
    await stopping
    assert (first.state, late.state, late.attempt) == ("completed", "ready", 0)
    assert server.calls["release"] == 0


async def test_after_the_grace_time_async_handlers_are_cancelled_and_their_tasks_released(
    workers: Workers, server: FakeServer
) -> None:
    cleaned: list[bool] = []

    async def job(ctx: Context) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(ctx.cancelled)

    task = server.submit()
    worker = await workers.start(job)
    await workers.until_started()
    await worker.stop(0.05)
    assert (task.state, task.attempt, cleaned) == ("ready", 0, [True])


async def test_the_task_of_a_sync_handler_that_does_not_end_is_released(workers: Workers, server: FakeServer) -> None:
    release = threading.Event()

    def job(ctx: Context) -> None:
        release.wait(30)

    task = server.submit()
    worker = await workers.start(job)
    await workers.until_started()
    await worker.stop(0.01)
    release.set()
    assert (task.state, task.attempt) == ("ready", 0)


async def test_a_handler_that_returns_after_a_cancel_has_completed(workers: Workers, server: FakeServer) -> None:
    async def job() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "saved"
        return "not reached"

    task = server.submit()
    worker = await workers.start(job)
    await workers.until_started()
    await worker.stop(0.01)
    assert (task.state, task.result) == ("completed", "saved")


async def test_completions_are_flushed_before_the_end(workers: Workers, server: FakeServer) -> None:
    started: list[int] = []

    async def job() -> None:
        started.append(1)
        await asyncio.sleep(0.02)

    for _ in range(40):
        server.submit()
    server.latency_seconds = 0.05
    worker = await workers.start(job)
    await wait_until_async(lambda: len(started) == 40)
    await worker.stop(5)
    assert server.states() == {"completed": 40}


async def test_stopping_does_not_hang_on_an_unreachable_server(workers: Workers, server: FakeServer) -> None:
    transport = ThreadedTransport(server)

    async def job() -> None:
        transport.disconnect()

    server.submit()
    worker = await workers.start(job, transport=transport, lease_seconds=1)
    await wait_until_async(lambda: transport.is_disconnected)
    started_at = time.monotonic()
    await worker.stop(0)
    assert time.monotonic() - started_at < 7


async def test_tasks_of_a_poll_cancelled_too_late_are_released(workers: Workers, server: FakeServer) -> None:
    class LateTransport(ThreadedTransport):
        """Returns the claimed tasks although it was cancelled, as if the response had already arrived."""

        async def claim(self, claim: LeaseClaimRequest) -> list[ClaimedTask]:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                return self.server.claim(claim)
            raise AssertionError("not reached")

    async def job() -> None: ...

    task = server.submit()
    worker = await workers.start(job, transport=LateTransport(server))
    await asyncio.sleep(0.01)
    await worker.stop()
    assert (task.state, task.attempt) == ("ready", 0)


async def test_all_leases_can_be_released_from_another_thread_while_the_loop_is_blocked(
    workers: Workers, server: FakeServer
) -> None:
    async def job() -> None:
        await asyncio.sleep(60)

    for _ in range(5):
        server.submit()
    worker = await workers.start(job)
    await workers.until_started(5)
    worker.release_all_leases(1)
    assert server.states() == {"ready": 5}


async def test_a_worker_stopped_before_it_starts_never_starts(server: FakeServer) -> None:
    async def job() -> None: ...

    worker = Worker(registry_of(job), ThreadedTransport(server))
    running = asyncio.create_task(worker.run())
    await worker.stop()
    await asyncio.wait_for(running, 1)
    assert server.calls["claim"] == 0


async def test_a_worker_can_be_stopped_while_it_starts(workers: Workers, server: FakeServer) -> None:
    async def job() -> None: ...

    for _ in range(20):
        worker = await workers.start(job)
        await asyncio.wait_for(worker.stop(), 5)
