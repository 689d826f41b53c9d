"""Everything in one process: the engine, the worker and the app on one database, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from everbeat import Context, Everbeat
from everbeat.client.errors import BlockingCall, RegistrationError
from everbeat.core.errors import InvalidInput


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        return url
    path: Path = request.getfixturevalue("sqlite_path")
    return f"sqlite:///{path}"


@pytest.fixture
def eb(url: str) -> Iterator[Everbeat]:
    made = Everbeat(url, name="billing")
    yield made
    made.close()


@pytest.fixture
async def ticks(eb: Everbeat) -> asyncio.Queue[datetime]:
    received: asyncio.Queue[datetime] = asyncio.Queue()

    @eb.every(1)
    async def ping(ctx: Context) -> None:
        assert ctx.scheduled_for is not None
        received.put_nowait(ctx.scheduled_for)

    return received


async def test_it_fires_ticks_and_runs_tasks_in_this_process(eb: Everbeat, ticks: asyncio.Queue[datetime]) -> None:
    @eb.task
    def add(one: int, two: int) -> int:
        return one + two

    async with eb.running() as same:
        assert same is eb
        assert await (await add.submit_async(one=1, two=2)).wait_async(20) == 3
        handle = await asyncio.to_thread(add.submit, one=3, two=4)
        assert await asyncio.to_thread(handle.wait, 20) == 7
        with pytest.raises(BlockingCall, match="submit_async"):
            add.submit(one=1, two=1)
        async with asyncio.timeout(20):
            first, second = await ticks.get(), await ticks.get()
        assert (second - first).total_seconds() == 1


async def test_two_processes_on_one_database_fire_each_tick_once(
    url: str, eb: Everbeat, ticks: asyncio.Queue[datetime]
) -> None:
    other = Everbeat(url, name="billing")

    @other.every(1)
    async def ping(ctx: Context) -> None:
        assert ctx.scheduled_for is not None
        ticks.put_nowait(ctx.scheduled_for)

    async with eb.running(), other.running(), asyncio.timeout(30):
        received = [await ticks.get() for _ in range(4)]
    assert len(set(received)) == 4


def test_sync_code_can_submit_and_read_before_the_app_runs(eb: Everbeat) -> None:
    @eb.task
    def add(one: int, two: int) -> int:
        return one + two

    handle = add.options(key="once").submit(one=1, two=2)
    assert add.options(key="once").submit(one=1, two=2) == handle
    assert handle.get().state == "ready"

    async def run() -> int:
        again = await add.submit_async(one=2, two=2)
        async with eb.running():
            assert await handle.wait_async(20) == 3
            result: int = await again.wait_async(20)
            return result

    assert asyncio.run(run()) == 4
    assert handle.wait(5) == 3


async def test_an_app_runs_only_once_at_a_time(eb: Everbeat) -> None:
    async with eb.running(worker=False):
        with pytest.raises(RegistrationError, match="already running"):
            async with eb.running():
                pass
    async with eb.running(worker=False):
        pass


async def test_a_failed_start_can_be_repeated(eb: Everbeat, ticks: asyncio.Queue[datetime]) -> None:
    with pytest.raises(RegistrationError, match="prune"):
        async with Everbeat(eb.url).running(prune=True):
            pass
    eb.registry.schedules["ping"]["cron"] = "* * * * *"
    with pytest.raises(Exception, match="exactly one of cron"):
        async with eb.running():
            pass
    del eb.registry.schedules["ping"]["cron"]
    async with eb.running(), asyncio.timeout(20):
        await ticks.get()


@pytest.mark.parametrize(("level", "is_logged"), [("info", True), ("warning", False)])
async def test_the_log_level_applies(
    level: str, is_logged: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("everbeat")
    monkeypatch.setattr(logger, "level", logger.level)
    eb = Everbeat(f"sqlite:///{tmp_path}/log.db")
    eb.task(name="work")(lambda: None)
    async with eb.running(log_level=level):
        pass
    assert any("worker_started" in record.getMessage() for record in caplog.records) is is_logged
    caplog.clear()
    monkeypatch.setenv("EVERBEAT_LOG_LEVEL", level)
    async with eb.running():
        pass
    assert any("worker_started" in record.getMessage() for record in caplog.records) is is_logged


async def test_a_wrong_log_level_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="log_level: 'loud' is not one of debug, info"):
        async with Everbeat(f"sqlite:///{tmp_path}/log.db").running(log_level="loud"):
            pass
