"""Reports over a bad network and to a strict server: repeated, split or given up, but never lost without a log entry."""

from __future__ import annotations

import asyncio
import time

import pytest
from structlog.testing import LogCapture

from everbeat.client.errors import NotReachable, ServerProblem
from tests.support.processes import wait_until_async
from tests.worker.conftest import Workers
from tests.worker.fakes import FakeServer, FakeTransport, ThreadedTransport


def events(logs: LogCapture) -> list[str]:
    return [entry["event"] for entry in logs.entries]


async def test_a_completion_whose_reply_is_lost_is_sent_again(workers: Workers, server: FakeServer, logs: LogCapture) -> None:
    async def job() -> str:
        return "done"

    server.lost_replies["complete"] = 3
    task = server.submit()
    worker = await workers.start(job)
    await wait_until_async(lambda: server.calls["complete"] == 4)
    await wait_until_async(lambda: not worker._running_tasks)
    assert (task.state, task.result) == ("completed", "done")
    assert worker.stats.stale == 0
    assert events(logs).count("server_unavailable") == 1
    assert events(logs).count("server_available") == 1


@pytest.mark.parametrize(
    "fault",
    [
        ServerProblem(503, {"detail": "database unavailable"}, 0),
        ServerProblem(429, {"detail": "slow down"}, 0),
        ServerProblem(500, {"detail": "?"}),
        NotReachable("fake", "reset"),
        TimeoutError(),
        RuntimeError("a bug in the transport"),
    ],
)
@pytest.mark.parametrize("verb", ["claim", "complete", "fail"])
async def test_temporary_faults_are_tolerated(workers: Workers, server: FakeServer, fault: Exception, verb: str) -> None:
    async def job(bad: bool) -> None:
        if bad:
            raise ValueError("no")

    server.faults[verb] = [fault, fault]
    good, bad = server.submit(payload={"bad": False}), server.submit(payload={"bad": True})
    await workers.start(job)
    await workers.until_ended()
    assert (good.state, bad.state) == ("completed", "failed")


async def test_a_failure_whose_reply_is_lost_is_sent_again(workers: Workers, server: FakeServer) -> None:
    async def job() -> None:
        raise ValueError("no")

    server.lost_replies["fail"] = 2
    task = server.submit()
    worker = await workers.start(job)
    await wait_until_async(lambda: server.calls["fail"] == 3)
    await wait_until_async(lambda: not worker._running_tasks)
    assert task.state == "failed"


async def test_a_report_is_dropped_with_a_log_entry_when_its_lease_may_have_expired(
    workers: Workers, server: FakeServer, logs: LogCapture
) -> None:
    transport = ThreadedTransport(server)

    async def job() -> None:
        transport.disconnect()

    task = server.submit()
    worker = await workers.start(job, transport=transport, lease_seconds=0.5)
    await wait_until_async(lambda: "report_dropped" in events(logs))
    assert not worker._running_tasks
    assert task.state == "running"
    transport.reconnect()
    again = server.submit()
    await wait_until_async(lambda: again.state == "running" or again.state == "completed")


async def test_a_refused_result_does_not_block_others(workers: Workers, server: FakeServer, logs: LogCapture) -> None:
    async def job(number: int) -> int:
        return number

    tasks = [server.submit(payload={"number": number}) for number in range(100)]
    poison = tasks[37]
    server.refuse = lambda verb, item: "result: refused here" if verb == "complete" and item.id == poison.id else None
    await workers.start(job)
    await workers.until_ended()
    assert server.states() == {"completed": 99, "failed": 1}
    assert poison.failure is not None
    assert not poison.failure.retryable
    assert "refused here" in poison.failure.error.message
    assert "report_rejected" in events(logs)


async def test_a_refused_error_is_replaced_by_a_plain_one(workers: Workers, server: FakeServer) -> None:
    async def job(number: int) -> None:
        raise ValueError("poison" if number == 3 else "plain")

    tasks = [server.submit(payload={"number": number}) for number in range(10)]
    server.refuse = lambda verb, item: "error: no" if verb == "fail" and item.error.message == "poison" else None
    await workers.start(job)
    await workers.until_ended()
    assert server.states() == {"failed": 10}
    assert tasks[3].error is not None
    assert tasks[3].error.kind == "refused"
    assert tasks[4].error is not None
    assert tasks[4].error.message == "plain"


async def test_large_results_are_split_over_requests(workers: Workers, server: FakeServer) -> None:
    async def job() -> str:
        return "x" * 60_000

    sizes: list[int] = []

    class MeasuringTransport(ThreadedTransport):
        async def complete(self, completion):  # type: ignore[no-untyped-def]
            sizes.append(sum(len(memoryview(result.result)) for result in completion.results))
            return await super().complete(completion)

    for _ in range(300):
        server.submit()
    await workers.start(job, transport=MeasuringTransport(server), concurrency=300)
    await workers.until_ended()
    assert max(sizes) <= 4 * 1024 * 1024
    assert sum(sizes) == 300 * 60_002


async def test_stale_reports_are_counted_and_logged(workers: Workers, server: FakeServer, logs: LogCapture) -> None:
    release = asyncio.Event()

    async def job() -> None:
        await release.wait()

    task = server.submit()
    worker = await workers.start(job)
    await workers.until_started()
    server.steal(task)
    release.set()
    await wait_until_async(lambda: worker.stats.stale == 1)
    assert task.state == "running"
    assert "report_stale" in events(logs)


async def test_a_worker_waits_for_a_server_that_starts_later(workers: Workers, server: FakeServer, logs: LogCapture) -> None:
    async def job() -> None: ...

    server.is_down = True
    task = server.submit()
    await workers.start(job)
    await wait_until_async(lambda: server.calls["claim"] >= 3)
    server.is_down = False
    await workers.until_ended(task)
    assert events(logs).count("server_unavailable") == 1
    assert events(logs).count("server_available") == 1


async def test_log_entries_of_many_failures_are_limited(workers: Workers, server: FakeServer, logs: LogCapture) -> None:
    async def job() -> None:
        raise ValueError("no")

    for _ in range(500):
        server.submit()
    started_at = time.monotonic()
    await workers.start(job)
    await workers.until_ended()
    logged = [entry for entry in logs.entries if entry["event"] == "task_failed"]
    assert 20 <= len(logged) <= 20 * (time.monotonic() - started_at + 2)
    assert logged[0]["error"] == "ValueError: no"
    assert "test_reports.py" in logged[0]["at"]


async def test_a_task_claimed_again_by_the_same_worker_is_a_separate_attempt(workers: Workers, server: FakeServer) -> None:
    """The first attempt was lost without the worker knowing it. Its report must not end the second attempt."""
    attempts: list[int] = []
    release = asyncio.Event()

    async def job(ctx) -> int:  # type: ignore[no-untyped-def]
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            await asyncio.sleep(60)
        await release.wait()
        return int(ctx.attempt)

    task = server.submit()
    worker = await workers.start(job, transport=FakeTransport(server))
    await wait_until_async(lambda: attempts == [1])
    task.state = "ready"
    server.submit_many([task])
    await wait_until_async(lambda: attempts == [1, 2])
    release.set()
    await workers.until_ended()
    assert task.result == 2
    assert worker.stats.lost == 1
