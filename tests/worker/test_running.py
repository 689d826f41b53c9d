"""Claiming and running: concurrency, batches, order, and isolation between handlers."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import Counter
from typing import Any
from uuid import UUID

import msgspec
import pytest

from everbeat.client.errors import NotAllowed, ServerProblem, problem_of
from everbeat.worker.context import Context
from everbeat.worker.runners import interleave_tenants
from everbeat.worker.running_task import RunningTask
from everbeat.worker.runtime import Worker, new_worker_name
from tests.support.processes import wait_until_async
from tests.worker.conftest import Workers
from tests.worker.fakes import FakeServer, FakeTask, FakeTransport, ThreadedTransport, claimed_tasks_of, definition, registry_of


def many(count: int, payload: bytes = b"{}") -> list[FakeTask]:
    return [FakeTask("job", payload, 60, 3) for _ in range(count)]


async def test_it_runs_a_task_and_completes_it(workers: Workers, server: FakeServer, transport: FakeTransport) -> None:
    async def job(ctx: Context, a: int, b: str = "x") -> dict[str, Any]:
        return {"a": a, "b": b, "type": ctx.type, "attempt": ctx.attempt, "worker": ctx.worker}

    task = server.submit(payload={"a": 7})
    worker = await workers.start(job, transport=transport, name="w1")
    await workers.until_ended()
    assert task.result == {"a": 7, "b": "x", "type": "job", "attempt": 1, "worker": "w1"}
    await wait_until_async(lambda: worker.stats.completed == 1)


async def test_a_sync_handler_runs_in_a_thread(workers: Workers, server: FakeServer) -> None:
    def job(ctx: Context) -> bool:
        return threading.current_thread() is threading.main_thread()

    task = await workers.run_one(job)
    assert (task.state, task.result) == ("completed", False)


async def test_worker_names_are_unique() -> None:
    assert new_worker_name() != new_worker_name()


async def test_it_claims_its_queues_and_types(workers: Workers, server: FakeServer) -> None:
    async def job() -> None: ...

    await workers.start(definition(job, "a", queue="mail"), definition(job, "b", queue="reports"), lease_seconds=12)
    await workers.start(job, queues=["only"])
    await wait_until_async(lambda: len(server.claims) == 2)
    first, second = server.claims
    assert (first.queues, first.types, first.lease_seconds) == (["mail", "reports"], ["a", "b"], 12)
    assert second.queues == ["only"]
    assert first.wait_seconds == pytest.approx(9.0)
    assert second.wait_seconds == pytest.approx(24.0)


async def test_a_poll_with_a_short_lease_leaves_time_for_a_late_answer(workers: Workers, server: FakeServer) -> None:
    """The lease counts from the beginning of the poll. A task that comes at its end must not count as lost at once."""

    async def job() -> None: ...

    await workers.start(job, lease_seconds=5)
    await wait_until_async(lambda: len(server.claims) == 1)
    (claim,) = server.claims
    assert claim.wait_seconds == pytest.approx(2.5)


@pytest.mark.parametrize("is_async", [True, False])
async def test_concurrency_is_limited(workers: Workers, server: FakeServer, is_async: bool) -> None:
    running = max_running = 0
    lock = threading.Lock()

    def count(step: int) -> None:
        nonlocal running, max_running
        with lock:
            running += step
            max_running = max(max_running, running)

    async def job() -> None:
        count(1)
        await asyncio.sleep(0.005)
        count(-1)

    def sync_job() -> None:
        count(1)
        time.sleep(0.005)
        count(-1)

    server.submit_many(many(60))
    await workers.start(job if is_async else sync_job, concurrency=7)
    await workers.until_ended()
    assert max_running == 7


async def test_sync_and_async_handlers_share_the_slots(workers: Workers, server: FakeServer) -> None:
    running = max_running = 0
    lock = threading.Lock()

    def count(step: int) -> None:
        nonlocal running, max_running
        with lock:
            running += step
            max_running = max(max_running, running)

    async def job() -> None:
        count(1)
        await asyncio.sleep(0.005)
        count(-1)

    def other() -> None:
        count(1)
        time.sleep(0.005)
        count(-1)

    server.submit_many([FakeTask("job" if number % 3 else "other", b"{}", 60, 3) for number in range(90)])
    await workers.start(definition(job), definition(other, "other"), concurrency=9)
    await workers.until_ended()
    assert max_running == 9
    assert server.states() == {"completed": 90}


@pytest.mark.parametrize("is_async", [True, False])
async def test_short_tasks_are_claimed_and_reported_in_batches(workers: Workers, server: FakeServer, is_async: bool) -> None:
    async def job() -> None: ...

    def sync_job() -> None: ...

    server.submit_many(many(20_000))
    server.latency_seconds = 0.002
    await workers.start(job if is_async else sync_job)
    await workers.until_ended()
    assert server.states() == {"completed": 20_000}
    # Generous limits: batch sizes depend on the speed of the machine, which other processes may use.
    assert max(claim.max for claim in server.claims) >= 150
    assert server.calls["claim"] < 1000
    assert server.calls["complete"] < 2000
    assert max(server.batches["complete"]) >= 50


async def test_a_single_completion_of_an_idle_worker_is_sent_immediately(workers: Workers, server: FakeServer) -> None:
    async def job() -> None: ...

    await workers.start(job)
    await wait_until_async(lambda: server.calls["claim"] == 1)
    started_at = time.monotonic()
    task = server.submit()
    while task.state != "completed":
        await asyncio.sleep(0)
    assert time.monotonic() - started_at < 0.05


async def test_long_tasks_are_not_claimed_ahead_of_other_workers(workers: Workers, server: FakeServer) -> None:
    release = asyncio.Event()

    async def job() -> None:
        await release.wait()

    server.submit_many(many(30))
    await workers.start(job, concurrency=4)
    await workers.start(job, concurrency=4)
    await wait_until_async(lambda: server.states()["running"] == 8)
    assert server.states()["ready"] == 22
    assert Counter(task.worker for task in server.tasks.values() if task.state == "running").most_common()[0][1] == 4
    release.set()
    await workers.until_ended()


async def test_prefetched_tasks_are_released_when_running_tasks_take_long(workers: Workers, server: FakeServer) -> None:
    release = asyncio.Event()

    async def job(long: bool = False) -> None:
        if long:
            await release.wait()

    server.submit_many(many(3000))
    worker = await workers.start(job, concurrency=4, lease_seconds=5)
    await workers.until_ended()
    server.submit_many(many(300, b'{"long": true}'))
    await wait_until_async(lambda: server.states()["running"] > 4)
    await wait_until_async(lambda: server.states()["running"] == 4, message="all prefetched tasks are released")
    assert worker.stats.released > 0
    assert all(task.attempt == 0 for task in server.tasks.values() if task.state == "ready")
    release.set()


async def test_handlers_do_not_share_context_variables(workers: Workers, server: FakeServer) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="clean")
    seen: list[str] = []

    async def job() -> None:
        seen.append(variable.get())
        variable.set("dirty")

    def other() -> None:
        seen.append(variable.get())
        variable.set("dirty")

    server.submit_many([FakeTask("job" if number % 2 else "other", b"{}", 60, 3) for number in range(200)])
    await workers.start(definition(job), definition(other, "other"), concurrency=3)
    await workers.until_ended()
    assert seen == ["clean"] * 200


async def test_a_handler_that_cancels_itself_does_not_affect_others(workers: Workers, server: FakeServer) -> None:
    async def job(bad: bool = False) -> str:
        if bad:
            current = asyncio.current_task()
            assert current is not None
            current.cancel()
            return "cancelled, but returned first"
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
        return "done"

    for number in range(40):
        server.submit(payload={"bad": number % 4 == 0})
    await workers.start(job, concurrency=2)
    await workers.until_ended()
    assert server.states() == {"completed": 40}


async def test_a_cancellation_of_something_else_is_an_ordinary_failure(workers: Workers) -> None:
    async def job() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    task = await workers.run_one(job)
    assert task.failure is not None
    assert task.failure.retryable
    assert "although it was not cancelled" in task.failure.error.message


async def test_handlers_that_never_wait_do_not_starve_the_event_loop(workers: Workers, server: FakeServer) -> None:
    async def job() -> None:
        time.sleep(0.001)

    server.submit_many(many(300))
    gaps: list[float] = []

    async def watch() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.001)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    watching = asyncio.create_task(watch())
    await workers.start(job)
    await workers.until_ended()
    watching.cancel()
    assert sorted(gaps)[len(gaps) // 2] < 0.05


async def test_a_claim_that_is_always_refused_ends_the_worker(server: FakeServer) -> None:
    async def job() -> None: ...

    server.faults["claim"] = [ServerProblem(422, {"detail": "queues: bad name"})]
    worker = Worker(registry_of(job), ThreadedTransport(server))
    with pytest.raises(ServerProblem, match="bad name"):
        await asyncio.wait_for(worker.run(), 5)


@pytest.mark.parametrize(("status", "slug"), [(401, "unauthenticated"), (403, "forbidden")])
async def test_a_refused_key_ends_the_worker_after_running_tasks_finish(server: FakeServer, status: int, slug: str) -> None:
    has_started = asyncio.Event()

    async def job() -> None:
        has_started.set()
        await asyncio.sleep(0.2)

    task = server.submit()
    worker = Worker(registry_of(job), ThreadedTransport(server))
    running = asyncio.create_task(worker.run())
    await has_started.wait()
    server.faults["claim"] = [problem_of(status, {"type": f"urn:everbeat:problem:{slug}", "detail": "it was revoked"})]
    server.submit()  # ends the long poll in progress
    with pytest.raises(NotAllowed, match="it was revoked"):
        await asyncio.wait_for(running, 30)
    assert task.state == "completed"


async def test_a_refusal_by_a_proxy_is_retried(server: FakeServer) -> None:
    async def job() -> None: ...

    server.faults["claim"] = [problem_of(403, "Forbidden by the proxy")]
    worker = Worker(registry_of(job), ThreadedTransport(server))
    running = asyncio.create_task(worker.run())
    task = server.submit()
    await wait_until_async(lambda: task.state == "completed")
    await worker.stop()
    await running


async def test_run_returns_after_stop(server: FakeServer) -> None:
    async def job() -> None: ...

    worker = Worker(registry_of(job), ThreadedTransport(server))
    running = asyncio.create_task(worker.run())
    task = server.submit()
    await wait_until_async(lambda: task.state == "completed")
    assert not running.done()
    await worker.stop()
    await asyncio.wait_for(running, 1)


def test_tenants_in_one_claim_are_interleaved_in_order() -> None:
    given = [(1, "a"), (1, "b"), (1, "c"), (2, "d"), (3, "e"), (2, "f")]
    running_tasks = [running_task_of(FakeTask(name, b"{}", 60, 3), tenant_id=UUID(int=tenant)) for tenant, name in given]
    assert [one.task.type for one in interleave_tenants(running_tasks)] == ["a", "d", "e", "b", "f", "c"]


def running_task_of(task: FakeTask, *, tenant_id: UUID) -> RunningTask:
    claimed = msgspec.structs.replace(claimed_tasks_of(task), tenant_id=tenant_id)
    return RunningTask(claimed, definition(lambda: None, task.type), 0.0, 0.0)
