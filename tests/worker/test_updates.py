"""Progress and log lines: they are sent with heartbeats, and the last ones before the attempt is reported."""

from __future__ import annotations

import asyncio

import pytest

from everbeat.worker.context import Context
from tests.support.processes import wait_until_async
from tests.worker.conftest import Workers
from tests.worker.fakes import FakeServer, FakeTransport


async def test_updates_arrive_while_the_handler_runs(
    workers: Workers, server: FakeServer, transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everbeat.worker.heartbeats.UPDATE_SECONDS", 0.05)
    release = asyncio.Event()

    async def job(ctx: Context) -> None:
        ctx.progress(0.4, "fetching")
        ctx.log("one")
        ctx.log("two")
        await release.wait()

    task = server.submit()
    await workers.start(job, transport=transport)
    await wait_until_async(lambda: task.log)
    assert task.log == ["one\ntwo"]
    assert task.progress is not None
    assert (task.progress.fraction, task.progress.message) == (0.4, "fetching")
    release.set()
    await workers.until_ended()
    assert task.log == ["one\ntwo"]


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("is_async", [True, False])
async def test_the_last_update_arrives_before_the_report(
    workers: Workers, server: FakeServer, fails: bool, is_async: bool
) -> None:
    async def job(ctx: Context) -> None:
        sync_job(ctx)

    def sync_job(ctx: Context) -> None:
        ctx.progress(1)
        ctx.log("last line")
        if fails:
            raise ValueError("no")

    task = await workers.run_one(job if is_async else sync_job)
    assert task.state == ("failed" if fails else "completed")
    assert task.log == ["last line"]


async def test_log_lines_of_lost_heartbeats_are_sent_again_in_order(
    workers: Workers, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everbeat.worker.heartbeats.UPDATE_SECONDS", 0.01)
    server.is_down = False

    async def job(ctx: Context) -> None:
        for number in range(20):
            ctx.log(str(number))
            server.is_down = number % 5 in (2, 3)
            await asyncio.sleep(0.02)
        server.is_down = False

    task = await workers.run_one(job)
    assert "\n".join(task.log).split("\n") == [str(number) for number in range(20)]


async def test_refused_updates_lose_neither_the_lease_nor_the_result(workers: Workers, server: FakeServer) -> None:
    server.refuse = lambda verb, item: "log: refused here" if verb == "heartbeat" and item.log else None

    async def job(ctx: Context) -> str:
        ctx.log("bad")
        await asyncio.sleep(1.0)
        ctx.log("bad")
        return "done"

    task = server.submit()
    await workers.start(job, lease_seconds=0.6)
    await workers.until_ended()
    assert task.result == "done"
    assert task.attempt == 1
