"""Attempts that end early: cancelled, lost, disconnected or timed out, and how they are reported."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from structlog.testing import LogCapture

from everbeat.core.retries import CANCELLED_KIND
from everbeat.worker.context import Context
from tests.support.processes import wait_until_async
from tests.worker.conftest import Workers
from tests.worker.fakes import FakeServer, FakeTransport, ThreadedTransport, definition

LEASE = 0.6


async def test_a_cancelled_async_handler_cleans_up_and_is_reported(
    workers: Workers, server: FakeServer, transport: FakeTransport
) -> None:
    ended: list[tuple[bool, str]] = []

    async def job(ctx: Context) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            ended.append((ctx.cancelled, "cleaned up"))
            raise

    task = server.submit()
    await workers.start(job, transport=transport, lease_seconds=LEASE)
    await workers.until_started()
    server.cancel(task)
    await workers.until_ended()
    assert task.error is not None
    assert task.error.kind == CANCELLED_KIND
    assert task.error.trace is not None
    assert "asyncio.sleep(60)" in task.error.trace
    assert ended == [(True, "cleaned up")]


async def test_a_cancelled_sync_handler_that_checks_for_it_stops(workers: Workers, server: FakeServer) -> None:
    def job(ctx: Context) -> None:
        while True:
            time.sleep(0.005)
            ctx.raise_if_cancelled()

    task = server.submit()
    await workers.start(job, lease_seconds=LEASE)
    await workers.until_started()
    server.cancel(task)
    await workers.until_ended()
    assert task.error is not None
    assert task.error.kind == CANCELLED_KIND


async def test_a_handler_that_finishes_after_a_cancel_has_completed(workers: Workers, server: FakeServer) -> None:
    async def job() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "done anyway"
        return "not reached"

    task = server.submit()
    await workers.start(job, lease_seconds=LEASE)
    await workers.until_started()
    server.cancel(task)
    await workers.until_ended()
    assert (task.state, task.result) == ("completed", "done anyway")


async def test_a_task_cancelled_before_it_starts_never_starts(workers: Workers, server: FakeServer) -> None:
    started: list[int] = []
    release = asyncio.Event()

    async def job(number: int) -> None:
        started.append(number)
        if number == 0:
            await release.wait()

    for _ in range(500):
        server.submit(payload={"number": 1})
    worker = await workers.start(job, concurrency=1, lease_seconds=LEASE)
    await workers.until_ended()
    started.clear()
    server.submit(payload={"number": 0})
    await workers.until_started()
    # Prefetched by hand: the worker would otherwise release the task before the heartbeat.
    worker._prefetch.max_wait_seconds = 60.0
    second = server.submit(payload={"number": 2})
    await wait_until_async(lambda: second.state == "running")
    server.cancel(second)
    await workers.until_ended(second)
    assert second.error is not None
    assert second.error.kind == CANCELLED_KIND
    release.set()
    await workers.until_ended()
    assert started == [0]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_lost_task_is_stopped_and_not_reported(
    workers: Workers, server: FakeServer, is_async: bool, logs: LogCapture
) -> None:
    stopped = threading.Event()

    async def job(ctx: Context) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    def sync_job(ctx: Context) -> str:
        while not ctx.cancelled:
            time.sleep(0.005)
        stopped.set()
        return "too late"

    task = server.submit()
    worker = await workers.start(job if is_async else sync_job, lease_seconds=LEASE)
    await workers.until_started()
    server.steal(task)
    await wait_until_async(stopped.is_set)
    await wait_until_async(lambda: worker.stats.lost == 1)
    await worker.stop()
    assert server.calls["complete"] == server.calls["fail"] == server.calls["release"] == 0
    assert task.state == "running"
    assert [entry["event"] for entry in logs.entries if entry["event"] == "task_lost"] == ["task_lost"]


async def test_a_disconnected_worker_stops_its_tasks_before_their_leases_expire(
    workers: Workers, server: FakeServer, logs: LogCapture
) -> None:
    stopped_at: list[float] = []
    transport = ThreadedTransport(server)

    async def job(ctx: Context) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped_at.append(time.monotonic())

    task = server.submit()
    worker = await workers.start(job, transport=transport, lease_seconds=LEASE * 3)
    await workers.until_started()
    transport.disconnect()
    await wait_until_async(lambda: stopped_at)
    assert stopped_at[0] <= task.lease_until
    assert worker.stats.lost == 1
    assert [entry["event"] for entry in logs.entries].count("server_unavailable") == 1
    transport.reconnect()
    await wait_until_async(lambda: "server_available" in [entry["event"] for entry in logs.entries])
    assert server.calls["fail"] == 0
    assert task.state == "running"


async def test_a_task_finished_after_its_lease_may_have_expired_is_decided_by_the_fence(
    workers: Workers, server: FakeServer, logs: LogCapture
) -> None:
    transport = ThreadedTransport(server)
    may_continue = threading.Event()

    def job(ctx: Context, stolen: bool) -> str:
        may_continue.wait(10)
        assert ctx.cancelled
        return "late"

    kept, stolen = server.submit(payload={"stolen": False}), server.submit(payload={"stolen": True})
    worker = await workers.start(job, transport=transport, lease_seconds=LEASE)
    await workers.until_started(2)
    transport.disconnect()
    await wait_until_async(lambda: all(running_task.stop is not None for running_task in worker._running_tasks.values()))
    server.steal(stolen)
    transport.reconnect()
    may_continue.set()
    await workers.until_ended(kept)
    assert kept.result == "late"
    await wait_until_async(lambda: worker.stats.stale == 1)
    assert stolen.state == "running"
    assert "report_stale" in [entry["event"] for entry in logs.entries]


async def test_a_blocked_event_loop_keeps_its_leases(workers: Workers, server: FakeServer) -> None:
    async def job() -> str:
        time.sleep(LEASE * 2.5)
        return "done"

    task = server.submit()
    await workers.start(job, lease_seconds=LEASE)
    await workers.until_ended()
    assert (task.state, task.result, task.attempt) == ("completed", "done", 1)
    assert server.calls["heartbeat"] >= 4


async def test_a_blocked_event_loop_is_logged_with_the_blocking_line(
    workers: Workers, server: FakeServer, logs: LogCapture, monkeypatch: pytest.MonkeyPatch, transport: FakeTransport
) -> None:
    monkeypatch.setattr("everbeat.worker.heartbeats._BLOCKED_SECONDS", 0.1)

    async def job() -> None:
        await asyncio.sleep(0.05)
        time.sleep(0.5)

    server.submit()
    await workers.start(job, lease_seconds=LEASE, transport=transport)
    await workers.until_ended()
    logged = [entry for entry in logs.entries if entry["event"].startswith("event loop blocked for")]
    assert logged
    assert "test_stops.py" in logged[0]["at"]
    assert "in job" in logged[0]["at"]
    assert ("leases are not renewed" in logged[0]["meaning"]) == (not isinstance(transport, ThreadedTransport))


async def test_heartbeats_are_sent_from_a_separate_thread(workers: Workers, server: FakeServer) -> None:
    transport = ThreadedTransport(server)

    async def job() -> None:
        await asyncio.sleep(LEASE)

    server.submit()
    await workers.start(job, transport=transport, lease_seconds=LEASE)
    await workers.until_ended()
    assert transport.made[0].threads
    assert threading.get_ident() not in transport.made[0].threads


async def test_in_process_heartbeats_use_the_event_loop(workers: Workers, server: FakeServer) -> None:
    transport = FakeTransport(server)

    async def job() -> None:
        await asyncio.sleep(LEASE * 2)

    task = server.submit()
    await workers.start(job, transport=transport, lease_seconds=LEASE)
    await workers.until_ended()
    assert task.state == "completed"
    assert transport.threads == {threading.get_ident()}


async def test_a_task_that_blocked_the_loop_completes_if_no_other_worker_claimed_it(
    workers: Workers, server: FakeServer
) -> None:
    async def job() -> str:
        time.sleep(LEASE * 1.5)
        return "done"

    task = server.submit()
    await workers.start(job, transport=FakeTransport(server), lease_seconds=LEASE)
    await workers.until_ended()
    assert task.result == "done"


# Timeouts


async def test_an_async_handler_that_times_out_is_cancelled_and_failed(workers: Workers, server: FakeServer) -> None:
    async def job(ctx: Context) -> None:
        await asyncio.sleep(60)

    task = await workers.run_one(job, timeout_seconds=0.05)
    assert task.failure is not None
    assert (task.failure.error.kind, task.failure.retryable) == ("timeout", True)
    assert "0.05 seconds" in task.failure.error.message
    assert task.failure.error.trace is not None
    assert "asyncio.sleep(60)" in task.failure.error.trace


async def test_a_handler_that_ignores_its_timeout_has_still_timed_out(workers: Workers) -> None:
    async def job() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "done anyway"
        return "not reached"

    task = await workers.run_one(job, timeout_seconds=0.05)
    assert task.error is not None
    assert task.error.kind == "timeout"


async def test_a_handler_that_ignores_its_cancellation_is_reported_while_it_runs(
    workers: Workers, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everbeat.worker.runners.CLEANUP_SECONDS", 0.05)
    release = asyncio.Event()

    async def job() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    task = server.submit(timeout_seconds=0.05)
    worker = await workers.start(job)
    await workers.until_ended()
    assert task.error is not None
    assert task.error.kind == "timeout"
    assert len(worker._runners.running) == 1
    release.set()
    await wait_until_async(lambda: not worker._runners.running)
    assert server.calls["fail"] == 1


async def test_a_sync_handler_that_times_out_is_failed_but_keeps_its_slot(workers: Workers, server: FakeServer) -> None:
    release = threading.Event()
    seen: list[bool] = []

    def job(ctx: Context) -> str:
        release.wait(10)
        seen.append(ctx.cancelled)
        return "too late"

    task = server.submit(timeout_seconds=0.05)
    worker = await workers.start(job, concurrency=1)
    await workers.until_ended()
    assert task.error is not None
    assert task.error.kind == "timeout"
    assert task.error.trace is not None
    assert "release.wait(10)" in task.error.trace
    assert "everbeat/worker" not in task.error.trace
    waiting = server.submit(timeout_seconds=60)
    await asyncio.sleep(0.03)
    assert waiting.state == "ready"
    release.set()
    await workers.until_ended(waiting)
    assert seen == [True, False]
    assert (waiting.state, server.calls["complete"]) == ("completed", 1)
    assert worker.stats.stale == 0


async def test_timeouts_apply_while_many_tasks_run(workers: Workers, server: FakeServer) -> None:
    async def job() -> None: ...

    async def slow() -> None:
        await asyncio.sleep(60)

    for _ in range(500):
        server.submit()
    slow_ones = [server.submit("slow", timeout_seconds=0.03 + number / 200) for number in range(5)]
    await workers.start(definition(job), definition(slow, "slow"))
    await workers.until_ended(seconds=5)
    assert {task.error.kind for task in slow_ones if task.error is not None} == {"timeout"}
    assert server.states() == {"completed": 500, "failed": 5}
